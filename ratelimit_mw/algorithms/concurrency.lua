-- Concurrency: the Lua implementation of concurrency.py, with the same slots under the same names.
-- State: a sorted set with a member for every slot. The score is its end unless it is renewed (us). The name is its
-- number in 16 digits, so that names sort like numbers.
-- Numbers of the limit: lifetime (us), quota (slots), retry (us).

if decide.concurrency then
  local max, min = math.max, math.min
  local CHUNK = 1000 -- members in one command
  local MOST = 10000 -- slots in one settlement

  local function named(number)
    return string.format("%016.0f", number)
  end

  local function number_of(name)
    local number = #name == 16 and not string.find(name, "%D") and tonumber(name)
    return number and number <= MAX_EXACT and number
  end

  -- Returns the number of slots held at `now`, and the end and the name of the last one to end (0 without slots). The
  -- name is nil if the key contains anything but such a set.
  local function read(key, now)
    local found = redis.pcall("ZRANGE", key, -1, -1, "WITHSCORES")
    if found.err then
      if not string.find(found.err, "WRONGTYPE", 1, true) then error(found.err) end -- see `load`
      return 0, 0, nil
    end
    if not found[1] then return 0, 0, 0 end
    local last, name = tonumber(found[2]), number_of(found[1])
    if not (last and last >= 0 and last <= MAX_EXACT and last % 1 == 0 and name) then return 0, 0, nil end
    if last <= now then return 0, 0, 0 end
    return redis.call("ZCOUNT", key, now + 1, "+inf"), last, name
  end

  -- Runs `command` on the names in chunks, with `score`, if any, before each name.
  local function each(command, key, score, names)
    for first = 1, #names, CHUNK do
      local members = {}
      for i = first, min(#names, first + CHUNK - 1) do
        if score then members[#members + 1] = score end
        members[#members + 1] = names[i]
      end
      redis.call(command, key, unpack(members))
    end
  end

  -- Drops expired slots, and cuts lifetimes that would end later than one that starts now.
  local function tidy(key, now, length, last, name)
    if not name then
      redis.call("UNLINK", key)
      return
    end
    -- after any write, even of nothing, a full server (OOM) would permit the other writes of the script
    if last == 0 and redis.call("ZCOUNT", key, "-inf", now) == 0 then return end
    redis.call("ZREMRANGEBYSCORE", key, "-inf", now)
    if last > now + length then
      each("ZADD", key, now + length, redis.call("ZRANGEBYSCORE", key, now + length + 1, "+inf"))
    end
  end

  -- Returns the first of `cost` free names in sequence: see `_free_name` in concurrency.py.
  local function free_name(key, now, cost, length, used, last, name)
    if used == 0 then return now end
    if last > now + length then -- their ends will be cut
      for _, other in ipairs(redis.call("ZRANGEBYSCORE", key, now + length, "+inf")) do
        name = max(name, number_of(other) or 0)
      end
    end
    local first = max(now, name + 1)
    local i = 0
    while i < cost do
      local ends = redis.call("ZSCORE", key, named(first + i))
      i = i + 1
      if ends and tonumber(ends) > now then first, i = first + i, 0 end
    end
    return first
  end

  function decide.concurrency(key, now, cost, _, length, quota, retry)
    local used, last, name = read(key, now)
    local allowed, retry_after, state, at = 1, 0, nil, now
    if cost > 0 then
      local ahead = last > now + length
      if used + cost <= quota then
        at = free_name(key, now, cost, length, used, last, name)
        state = function()
          local names = {}
          for i = 1, cost do names[i] = named(at + i - 1) end
          tidy(key, now, length, last, name)
          each("ZADD", key, now + length, names)
        end
      else
        allowed, retry_after = 0, cost <= quota and retry or -1
        if ahead then state = function() tidy(key, now, length, last, name) end end
      end
      used = used + allowed * cost
    end
    return state, now + length, allowed, quota, max(0, quota - used), retry_after, retry, used > 0 and retry or 0, 0, at
  end

  if settle then
    function settle.concurrency(key, now, delta, at, length, quota)
      local used, last, name = read(key, now)
      -- others may have taken the whole quota since the slots were lost, so twice the quota has room for both
      local room = delta > 0 and at <= MAX_EXACT / 2 and max(0, 2 * quota - used) or 0
      local current, lost = {}, {}
      for i = 1, min(math.abs(delta), MOST) do
        local one = named(at + i - 1)
        local ends = used > 0 and redis.call("ZSCORE", key, one)
        if ends and tonumber(ends) > now then
          current[#current + 1] = one
        elseif #lost < room then
          lost[#lost + 1] = one
        end
      end
      if delta < 0 then
        if #current == 0 then return nil end
        if #current == used then return false end
        return function()
          tidy(key, now, length, last, name)
          each("ZREM", key, nil, current)
        end, now + length
      end
      if at > MAX_EXACT / 2 or #current + #lost == 0 then return nil end
      return function()
        tidy(key, now, length, last, name)
        each("ZADD", key, now + length, current)
        each("ZADD", key, now + length, lost)
      end, now + length
    end
  end
end
