-- Ban: the Lua implementation of ban.py, with the same steps on the same whole numbers.
-- State: count (refusals), start (us); during a ban also until (us).
-- Numbers of the limit: length (us), quota (refusals), ban (us).

if decide.ban then
  -- Returns count, start, the end of the ban (nil without one), and the end that is stored.
  local function read(key, now, length, quota, ban)
    local count, start, stored_end = load(key)
    if not start then return 0, now end
    local first = start < now and start or now
    if stored_end then
      if stored_end <= now then return 0, now end
      return quota, first, math.min(stored_end, now + ban), stored_end
    end
    if now - start >= length then return 0, now end
    return count, first
  end

  local function write(count, start, ban_end, length)
    if ban_end then return write_state("<ddd", count, start, ban_end), ban_end end
    return write_state("<dd", count, start), start + length
  end

  function decide.ban(key, now, cost, _, length, quota, ban)
    local count, start, ban_end, stored_end = read(key, now, length, quota, ban)
    local rest, retry_after, reset_after, state, expires = ban, 0, 0, nil, nil
    if ban_end then
      rest = ban_end - now
      if cost > 0 then
        retry_after = rest
        if stored_end ~= ban_end then state, expires = write(count, start, ban_end, length) end
      end
    elseif cost > 0 then
      count = math.min(count + cost, quota)
      if count == quota then ban_end = now + ban end
      state, expires = write(count, start, ban_end, length)
    end
    if ban_end then reset_after = ban_end - now elseif count > 0 then reset_after = start + length - now end
    return state, expires, retry_after == 0 and 1 or 0, quota, quota - count, retry_after, rest, reset_after, 0, now
  end

  if counting then
    counting.ban = {
      used = function(key, now, ...) return (read(key, now, ...)) end,
      -- Returns the state of a limit of `quota` with the refusals that another one counted, and whether a ban runs.
      continued = function(key, now, quota, length, old_quota, ban)
        local count, start, ban_end = read(key, now, length, old_quota, ban)
        count = math.min(count, quota - 1)
        return count > 0 and write_state("<dd", count, start), ban_end
      end,
    }
  end

  if has_room then
    function has_room.ban()
      return function(text) return #text == 2 * WIDTH end -- no end of a ban
    end
  end

  if settle then
    function settle.ban(key, now, delta, at, length, quota, ban)
      local count, start, ban_end = read(key, now, length, quota, ban)
      if delta > 0 and not ban_end then
        count = math.min(count + delta, quota)
        return write(count, start, count == quota and now + ban or nil, length)
      end
      if delta >= 0 or at < (ban_end and ban_end - ban or start) then return nil end
      count = count + delta
      if count <= 0 or now - start >= length then return false end
      return write(count, start, nil, length)
    end
  end
end
