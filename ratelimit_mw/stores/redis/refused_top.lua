-- Adds to the numbers of refusals of a minute, a sorted set. Keeps the highest ones, and sets their time to live.
-- KEYS[1]: the sorted set. ARGV: the time to live in ms, how many members to keep, how many follow, then a number and a
-- member for each. Under asyncio, the client appends the number of the call, which this script does not return.

for i = 4, 2 + 2 * ARGV[3], 2 do redis.call("ZINCRBY", KEYS[1], ARGV[i], ARGV[i + 1]) end
redis.call("ZREMRANGEBYRANK", KEYS[1], 0, -ARGV[2] - 1)
redis.call("PEXPIRE", KEYS[1], ARGV[1])
return 1
