-- Corrects what was taken.
-- KEYS: the bucket of each charge. ARGV[1]: { told time, { algorithms }, { charge, ... } }; a charge is
--   { algorithm, units (negative gives back), at in us, the numbers of its limit ... }.

local now = now_us()
for i, charge in ipairs(args[3]) do
  check(charge, 3)
  if not whole(math.abs(charge[2])) then error("ratelimit_mw: the correction is no whole number up to 2^53") end
  local correct = settle[charge[1]]
  local state, expires =
    correct(KEYS[i], now, charge[2], charge[3], charge[4], charge[5], charge[6], charge[7], charge[8], charge[9])
  if state then
    save(KEYS[i], state, expires, now)
  elseif state == false then -- nothing is left to count
    redis.call("DEL", KEYS[i])
  end
end
return #KEYS
