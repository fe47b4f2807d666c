-- The least that a rate limit in Redis can be: the floor that a store's latency is measured against. It validates
-- nothing and tells no more than its verdict.
-- KEYS[1]: the bucket. ARGV: microseconds per unit, microseconds that a full bucket holds.
-- Returns 1 and the microseconds until the bucket is whole, or 0 and the microseconds to wait.
local clock = redis.call('TIME')
local now = clock[1] * 1000000 + clock[2]
local unit, full = tonumber(ARGV[1]), tonumber(ARGV[2])
local drained = math.max(tonumber(redis.call('GET', KEYS[1]) or 0), now) + unit
if drained - now > full then
  return {0, drained - now - full}
end
redis.call('SET', KEYS[1], string.format('%.0f', drained), 'PX', math.ceil((drained - now) / 1000) + 1)
return {1, drained - now}
