-- The least that a sliding window log in Redis can be, as minimal_gcra.lua is for a rate limit: nothing is validated,
-- a clock that steps back is not noticed, and whoever calls finds a name for the unit that no other has.
-- KEYS[1]: the log. ARGV: microseconds in the window, units, the name.
-- Returns 1 and the microseconds until the log is empty, or 0 and the microseconds to wait.
local clock = redis.call('TIME')
local now = clock[1] * 1000000 + clock[2]
local length = tonumber(ARGV[1])
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', now - length)
if redis.call('ZCARD', KEYS[1]) >= tonumber(ARGV[2]) then
  return {0, redis.call('ZRANGE', KEYS[1], 0, 0, 'WITHSCORES')[2] + length - now}
end
redis.call('ZADD', KEYS[1], now, ARGV[3])
redis.call('PEXPIRE', KEYS[1], math.ceil(length / 1000) + 1)
return {1, length}
