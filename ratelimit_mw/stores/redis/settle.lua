-- Corrects charges.
-- KEYS: the bucket of each charge.
-- args: no values for the driver. The two values of a charge that depend on the script: units (negative ones are
-- refunded), at in us.
-- Returns for each charge the decision on a cost of 0 after the correction.

for i = 1, #KEYS do
  local c = CHARGES + i * 11 - 11
  check(c + 4, c + 5)
  local units = args[c + 3]
  if not (units >= -MAX_EXACT and units <= MAX_EXACT and units % 1 == 0) then
    error("ratelimit_mw: the correction is not a whole number up to 2^53")
  end
end
local out = {}
for i, key in ipairs(KEYS) do
  local c = CHARGES + i * 11 - 11
  local correct, show = settle[args[c]], decide[args[c]]
  local state, expires = correct(key, now, unpack(args, c + 3, c + 10))
  if state then
    save(key, state, expires, now)
  elseif state == false then -- nothing is left to count
    redis.call("UNLINK", key)
  end
  local _, _, allowed, limit, remaining, retry_after, next_after, reset_after, delay, at =
    show(key, now, 0, 0, unpack(args, c + 5, c + 10))
  out[i] = decision(allowed, limit, remaining, retry_after, next_after, reset_after, delay, at)
end
return reply(out)
