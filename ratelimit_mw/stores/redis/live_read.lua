-- Returns slots of the rings of the dashboard, and the processes.
-- KEYS: the hash of the processes, then one for each ring. ARGV: for each ring, how many slots follow, and these.
-- Under asyncio, the client appends the number of the call, which this script does not return.

local replies, i = { redis.call("HGETALL", KEYS[1]) }, 1
for ring = 2, #KEYS do
  local slots = {}
  for n = 1, tonumber(ARGV[i]) do slots[n] = ARGV[i + n] end
  replies[ring] = slots[1] and redis.call("HMGET", KEYS[ring], unpack(slots)) or {}
  i = i + 1 + #slots
end
return replies
