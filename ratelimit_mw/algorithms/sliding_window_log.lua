-- Sliding window log. Twin of sliding_window_log.py: the same units at the same instants.
-- State: a sorted set with a member for every unit. The score is its instant (us); the name is a number that goes up by
-- one, so that no two are the same and names stand in the order of scores.
-- Numbers of the limit: length (us), quota (units), most (units of one charge).

if look.sliding_window_log then
  local max, min = math.max, math.min
  local CHUNK = 1000 -- members in one command

  local function whole(x)
    return x and x >= 0 and x <= EXACT and x % 1 == 0
  end

  local function text(instant)
    return string.format("%.0f", instant)
  end

  -- The set as it is at `now`: { gone = units that left, used = units that count, newest = instant, last = name };
  -- what is no set of ours is { spoiled = true }.
  local function read(key, now, length)
    local newest = redis.pcall("ZRANGE", key, -1, -1, "WITHSCORES")
    if newest.err then return { used = 0, gone = 0, last = 0, newest = 0, spoiled = true } end
    if not newest[1] then return { used = 0, gone = 0, last = 0, newest = 0 } end
    local score = tonumber(newest[2])
    local last = #newest[1] == 16 and not string.find(newest[1], "%D") and tonumber(newest[1])
    if not whole(score) or not last or last > EXACT / 2 then -- as many names are not used in an age
      return { used = 0, gone = 0, last = 0, newest = 0, spoiled = true }
    end
    local gone = redis.call("ZCOUNT", key, "-inf", text(now - length))
    return { gone = gone, used = redis.call("ZCARD", key) - gone, newest = score, last = last }
  end

  -- When so many of the used units have left; what is not there yet leaves a window from now.
  local function leaves(key, set, now, length, which)
    if which > set.used then return length end
    local rank = set.gone + which - 1
    local score = tonumber(redis.call("ZRANGE", key, rank, rank, "WITHSCORES")[2])
    return (whole(score) and min(score, now) or now) + length - now
  end

  -- Writes `units` more at `now`, drops what left, and moves what is ahead of now back to it.
  local function add(key, set, now, length, units)
    if set.spoiled then redis.call("DEL", key) end
    if set.gone > 0 then redis.call("ZREMRANGEBYSCORE", key, "-inf", text(now - length)) end
    local instant = text(now)
    while set.newest > now do
      local ahead = redis.call("ZRANGEBYSCORE", key, "(" .. instant, "+inf", "LIMIT", 0, CHUNK)
      if #ahead == 0 then break end
      local moved = {}
      for _, name in ipairs(ahead) do
        moved[#moved + 1] = instant
        moved[#moved + 1] = name
      end
      redis.call("ZADD", key, unpack(moved))
    end
    for first = 1, units, CHUNK do
      local members = {}
      for unit = first, min(units, first + CHUNK - 1) do
        members[#members + 1] = instant
        members[#members + 1] = string.format("%016.0f", set.last + unit)
      end
      redis.call("ZADD", key, unpack(members))
    end
  end

  function look.sliding_window_log(key, now, cost, _, length, quota, most)
    local set = read(key, now, length)
    local used = set.used
    local allowed, retry_after, state, newest = 1, 0, nil, min(set.newest, now)
    if cost > 0 then
      if cost > most then
        allowed, retry_after = 0, -1
      elseif used + cost > quota then
        allowed, retry_after = 0, leaves(key, set, now, length, used + cost - quota)
      else
        used, newest = used + cost, now
      end
      if allowed == 1 or set.newest > now then
        local units = allowed * cost
        state = function() add(key, set, now, length, units) end
      end
    end
    local remaining = max(0, quota - used)
    local next_after = leaves(key, set, now, length, used + remaining + 1 - quota)
    local reset_after = used > 0 and newest + length - now or 0
    return state, newest + length, allowed, quota, remaining, retry_after, next_after, reset_after, 0, now
  end

  if settle then
    function settle.sliding_window_log(key, now, delta, at, length, quota)
      local set = read(key, now, length)
      if delta > 0 then
        local units = min(delta, 2 * quota - set.used)
        if units <= 0 then return nil end
        return function() add(key, set, now, length, units) end, now + length
      end
      if set.used == 0 or at <= now - length then return nil end
      local instant = text(at)
      local units = min(-delta, redis.call("ZCOUNT", key, instant, instant))
      if units == 0 then return nil end
      if units == set.used then return false end
      local first = redis.call("ZCOUNT", key, "-inf", "(" .. instant)
      redis.call("ZREMRANGEBYRANK", key, first, first + units - 1)
      local newest = tonumber(redis.call("ZRANGE", key, -1, -1, "WITHSCORES")[2])
      return function() add(key, set, now, length, 0) end, min(newest, now) + length
    end
  end
end
