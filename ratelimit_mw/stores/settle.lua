-- Corrects what was taken.
-- KEYS: the bucket of each charge. ARGV[1]: { told time, { algorithms }, { charge, ... } }; a charge is
--   { algorithm, units (negative gives back), at in us, the numbers of its limit ... }.

local now = now_us()
for _, charge in ipairs(args[3]) do
  check(charge, 3, 4)
  local units = charge[2]
  if type(units) ~= "number" or not whole(math.abs(units)) then -- math.abs alone would take "0x10" for 16
    error("ratelimit_mw: the correction is no whole number up to 2^53")
  end
end
for i, charge in ipairs(args[3]) do
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
