-- Fixed window: the Lua implementation of fixed_window.py, with the same steps on the same whole numbers.
-- State: count (units), start (us).
-- Numbers of the limit: length (us), quota (units).

if decide.fixed_window then
  -- Returns count and start of the window at `now`, whether the state is later than `now`, and whether it is from
  -- this window.
  local function read(key, now, length)
    local count, start = load(key)
    if not start or now - start >= length then return 0, now, false, false end
    if start > now then return count, now, true, false end
    return count, start, false, true
  end

  function decide.fixed_window(key, now, cost, _, length, quota)
    local count, start, ahead, in_window = read(key, now, length)
    local rest = start + length - now
    local allowed, retry_after, state = 1, 0, nil
    if cost > 0 then
      if count + cost <= quota then
        count = count + cost
      else
        allowed, retry_after = 0, cost <= quota and rest or -1
      end
      if allowed == 1 or ahead then state = write_state("<dd", count, start) end
    end
    local remaining, reset_after = count < quota and quota - count or 0, count > 0 and rest or 0
    local expires = (has_injected_time or not in_window) and start + length
    return state, expires, allowed, quota, remaining, retry_after, rest, reset_after, 0, now
  end

  if counting then
    counting.fixed_window = {
      capacity = function(_, quota) return quota end,
      room = function(cost, _, _, quota) return quota - cost end,
      used = function(key, now, length) return (read(key, now, length)) end,
      until_used = function(key, now, most, length)
        local count, start = read(key, now, length)
        return count > most and start + length - now or 0
      end,
      holding = function(_, now, units, _, quota)
        return units > 0 and write_state("<dd", math.min(units, 2 * quota), now)
      end,
      continued = function(key, _, old, numbers, length)
        if old == "fixed_window" and numbers[1] == length then return get("GET", key) end
      end,
    }
  end

  if has_room then
    function has_room.fixed_window(_, cost, _, quota)
      return function(text)
        return #text == 2 * WIDTH and unpack_state("<d", text) + cost <= quota -- also in a window that is over
      end
    end
  end

  if settle then
    function settle.fixed_window(key, now, delta, at, length, quota)
      local count, start = read(key, now, length)
      local new = count
      if delta > 0 then
        new = math.max(count, math.min(count + delta, 2 * quota))
      elseif at >= start then
        new = math.max(0, count + delta)
      end
      if new == count then return nil end
      if new == 0 then return false end
      return write_state("<dd", new, start), start + length
    end
  end
end
