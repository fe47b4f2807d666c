-- Corrects what was taken.
-- KEYS: the bucket of each charge. ARGV[1]: { told time, { parts }, { charge, ... } }; a charge is
--   { algorithm, units (negative gives back), at in us, the numbers of its limit, which 1 makes up to six }.
-- Returns how each stands after it, as take.lua does for a cost of 0.

for _, charge in ipairs(args[3]) do
  check(charge, 3, 4)
  local units = charge[2]
  if not (units >= -EXACT and units <= EXACT and units % 1 == 0) then
    error("ratelimit_mw: the correction is no whole number up to 2^53")
  end
end
local out, _ = {}, nil
for i, charge in ipairs(args[3]) do
  local key, o = KEYS[i], (i - 1) * 8
  local correct, show = settle[charge[1]], look[charge[1]]
  local state, expires =
    correct(key, now, charge[2], charge[3], charge[4], charge[5], charge[6], charge[7], charge[8], charge[9])
  if state then
    save(key, state, expires, now)
  elseif state == false then -- nothing is left to count
    redis.call("DEL", key)
  end
  _, _, out[o + 1], out[o + 2], out[o + 3], out[o + 4], out[o + 5], out[o + 6], out[o + 7], out[o + 8] =
    show(key, now, 0, 0, charge[4], charge[5], charge[6], charge[7], charge[8], charge[9])
end
return out
