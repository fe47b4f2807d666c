-- Appends refusals to a stream. Keeps about the latest ones, and sets their time to live.
-- KEYS[1]: the stream. ARGV: the time to live in ms, how many entries to keep, how many follow, then key, limit, time,
-- wait, method and path of each. Under asyncio, the client appends the number of the call, which this script does not return.

for i = 4, 6 * ARGV[3], 6 do
  local key, limit, time, wait, method, path = unpack(ARGV, i, i + 5)
  redis.call("XADD", KEYS[1], "MAXLEN", "~", ARGV[2], "*", "k", key, "l", limit, "t", time, "w", wait, "m", method,
    "p", path)
end
redis.call("PEXPIRE", KEYS[1], ARGV[1])
return 1
