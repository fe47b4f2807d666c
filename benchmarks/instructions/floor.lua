-- The least that a rate limit in Redis can be, for several keys. It validates nothing.
-- ARGV: microseconds per unit, microseconds that a full bucket holds.
-- Returns the microseconds that each bucket holds, or 0 if one is full.
local clock = redis.call('TIME')
local now = clock[1] * 1000000 + clock[2]
local held = {}
for i = 1, #KEYS do
  local drained = tonumber(redis.call('GET', KEYS[i]) or 0)
  if drained < now then drained = now end
  drained = drained + tonumber(ARGV[1])
  if drained - now > tonumber(ARGV[2]) then return {0} end
  redis.call('SET', KEYS[i], string.format('%.0f', drained), 'PX', 3600000)
  held[i] = drained - now
end
return held
