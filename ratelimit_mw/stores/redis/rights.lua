-- Returns the commands that the user may not call from a script. KEYS[1]: a key with the store's prefix. ARGV: names of
-- commands. Each call changes at most KEYS[1], which then expires after a second. Most calls also fail for a user with
-- all rights, but for another reason.
local calls = {
  get = {'GET', KEYS[1]},
  hdel = {'HDEL', KEYS[1], 'a'},
  hget = {'HGET', KEYS[1], 'a'},
  hgetall = {'HGETALL', KEYS[1]},
  hset = {'HSET', KEYS[1], 'a', '', 'b'},
  pexpire = {'PEXPIRE', KEYS[1], '1000'},
  set = {'SET', KEYS[1], '', 'PX', '1000'},
  time = {'TIME'},
  xadd = {'XADD', KEYS[1], 'none', 'k', ''},
  zadd = {'ZADD', KEYS[1], 'none', 'a'},
  zcount = {'ZCOUNT', KEYS[1], '0', '0'},
  zincrby = {'ZINCRBY', KEYS[1], 'none', 'a'},
  zrange = {'ZRANGE', KEYS[1], '0', '0'},
  zrangebyscore = {'ZRANGEBYSCORE', KEYS[1], '0', '0'},
  zrem = {'ZREM', KEYS[1], 'a'},
  zremrangebyrank = {'ZREMRANGEBYRANK', KEYS[1], '1', '0'},
  zremrangebyscore = {'ZREMRANGEBYSCORE', KEYS[1], '1', '0'},
  zscore = {'ZSCORE', KEYS[1], 'a'},
}
local missing = {}
for _, name in ipairs(ARGV) do
  local reply = redis.pcall(unpack(calls[name]))
  local failed = type(reply) == 'table' and reply.err or ''
  if string.find(failed, 'permission') or string.find(failed, "can't run") or string.find(failed, 'ACL') then
    missing[#missing + 1] = name
  end
end
return missing
