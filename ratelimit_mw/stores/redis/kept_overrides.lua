-- Replaces the set of overrides, and adds a change.
-- KEYS[1]: the hash of the set. KEYS[2]: the list of changes. ARGV: the version that the caller has read, the new
-- version, the entries, their MAC, the change, the most changes that are kept, the milliseconds that they are kept.
-- Returns 1; 0 if the version is another one.
if (redis.call('HGET', KEYS[1], 'version') or '') ~= ARGV[1] then return 0 end
redis.call('HSET', KEYS[1], 'version', ARGV[2], 'entries', ARGV[3], 'mac', ARGV[4])
redis.call('LPUSH', KEYS[2], ARGV[5])
redis.call('LTRIM', KEYS[2], 0, ARGV[6] - 1)
redis.call('PEXPIRE', KEYS[2], ARGV[7])
return 1
