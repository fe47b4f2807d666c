-- Sliding window log: the Lua implementation of sliding_window_log.py, with the same units at the same instants.
-- State: a sorted set with a member for every unit. The score is its instant (us). The name is a number that increases
-- by one, so that names are unique and sort like scores.
-- Numbers of the limit: length (us), quota (units), most (units of one charge).
--
-- Few commands make it fast. Ranks count from the end, so that expired units need not be counted. Instants are passed
-- as numbers, because Redis formats them with all digits, which Lua would not.

if decide.sliding_window_log then
  local max, min = math.max, math.min
  local CHUNK = 1000 -- members in one command
  local TRIM = 2000 -- members that one charge can drop: twice what it can add, so that dropping keeps up

  local function is_int(x)
    return x and x >= 0 and x <= MAX_EXACT and x % 1 == 0
  end

  -- Returns the number of units that count at `now`, and instant and name of the newest unit (0 without units). The
  -- name is nil if the key contains anything but such a set.
  local function read(key, now, length)
    local units = held and held[key]
    if units then return units, units > 0 and now or 0, nil end
    local found = redis.pcall("ZRANGE", key, -1, -1, "WITHSCORES")
    if found.err then
      if not string.find(found.err, "WRONGTYPE", 1, true) then error(found.err) end -- see `load`
      return 0, 0, nil
    end
    if not found[1] then return 0, 0, 0 end
    local newest = tonumber(found[2])
    local last = #found[1] == 16 and not string.find(found[1], "%D") and tonumber(found[1])
    if not is_int(newest) or not last or last > MAX_EXACT / 2 then return 0, 0, nil end -- not reached in any real use
    return redis.call("ZCOUNT", key, now - length + 1, "+inf"), newest, last
  end

  -- Returns the time (us) until `nth` of the `used` units have expired; later units expire a window from now.
  local function us_until_gone(key, now, length, used, nth)
    if nth > used or (held and held[key]) then return length end
    local rank = nth - used - 1
    local instant = tonumber(redis.call("ZRANGE", key, rank, rank, "WITHSCORES")[2])
    return (is_int(instant) and min(instant, now) or now) + length - now
  end

  -- Adds `units` at `now`, drops expired units, and moves units with later times to `now`. `used`: units that counted.
  local function add(key, now, length, used, newest, last, units)
    if not last or used == 0 then
      -- frees its memory without blocking the server; a new key has none, and after any write a full server (OOM) would
      -- permit the other writes of the script
      if last ~= 0 then redis.call("UNLINK", key) end
    elseif newest > now then
      redis.call("ZREMRANGEBYSCORE", key, "-inf", now - length)
    elseif units > 0 then
      local left = redis.call("ZCOUNT", key, "-inf", now - length)
      if left > 0 then redis.call("ZREMRANGEBYRANK", key, 0, min(left, TRIM) - 1) end
    end
    while newest > now do
      local ahead = redis.call("ZRANGEBYSCORE", key, now + 1, "+inf", "LIMIT", 0, CHUNK)
      if #ahead == 0 then break end
      local clamped = {}
      for _, name in ipairs(ahead) do
        clamped[#clamped + 1] = now
        clamped[#clamped + 1] = name
      end
      redis.call("ZADD", key, unpack(clamped))
    end
    for first = 1, units, CHUNK do
      local members = { now, string.format("%016.0f", (last or 0) + first) }
      for unit = first + 1, min(units, first + CHUNK - 1) do
        members[#members + 1] = now
        members[#members + 1] = string.format("%016.0f", (last or 0) + unit)
      end
      redis.call("ZADD", key, unpack(members))
    end
  end

  function decide.sliding_window_log(key, now, cost, _, length, quota, most)
    local used, newest, last = read(key, now, length)
    local allowed, retry_after, state, final = 1, 0, nil, min(newest, now)
    local ahead, before = newest > now, held and held[key] or 0
    if cost > 0 then
      if cost > most then
        allowed, retry_after = 0, -1
      elseif used + cost > quota then
        allowed, retry_after = 0, us_until_gone(key, now, length, used, used + cost - quota)
      else
        final = now
      end
      if allowed == 1 or ahead then
        state = function() add(key, now, length, used, newest, last, before + allowed * cost) end
      end
    end
    local new_used = used + allowed * cost
    local remaining = max(0, quota - new_used)
    local next_after = us_until_gone(key, now, length, used, new_used + remaining + 1 - quota)
    local reset_after = new_used > 0 and final + length - now or 0
    return state, final + length, allowed, quota, remaining, retry_after, next_after, reset_after, 0, now
  end

  if counting then
    counting.sliding_window_log = {
      capacity = function(_, quota) return quota end,
      room = function(cost, _, _, quota) return quota - cost end,
      used = function(key, now, length) return (read(key, now, length)) end,
      until_used = function(key, now, most, length)
        local used = read(key, now, length)
        return used > most and us_until_gone(key, now, length, used, used - most) or 0
      end,
      holding = function(key, _, units, _, quota)
        held[key] = min(units, 2 * quota)
        return false
      end,
      continued = function(_, _, old, numbers, length)
        if old == "sliding_window_log" and numbers[1] == length then return false end
      end,
    }
  end

  if settle then
    function settle.sliding_window_log(key, now, delta, at, length, quota)
      local used, newest, last = read(key, now, length)
      if delta > 0 then
        local units = math.max(0, min(delta, 2 * quota - used))
        if units == 0 then return nil end
        return function() add(key, now, length, used, newest, last, units) end, now + length
      end
      if used == 0 or at <= now - length then return nil end
      local latest = at == MAX_EXACT - 1 -- refund the newest units
      local units = min(-delta, latest and used or redis.call("ZCOUNT", key, at, at))
      if units == 0 then return nil end
      if units == used then return false end
      local first = latest and -units or redis.call("ZCOUNT", key, "-inf", at - 1)
      redis.call("ZREMRANGEBYRANK", key, first, first + units - 1)
      newest = tonumber(redis.call("ZRANGE", key, -1, -1, "WITHSCORES")[2])
      return function() add(key, now, length, used - units, newest, last, 0) end, min(newest, now) + length
    end
  end
end
