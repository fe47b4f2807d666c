-- Fixed window: the Lua implementation of fixed_window.py, with the same steps on the same whole numbers.
-- State: count (units), start (us).
-- Numbers of the limit: length (us), quota (units).

local define_window -- defines this algorithm and calendar_window
if decide.fixed_window or decide.calendar_window then
  -- `read(key, now, ...)`: its further arguments are the numbers of the limit except the second, the quota. Returns
  -- count, start and end of the window at `now`, when the key expires, whether the state is later than `now`, and
  -- whether it is from this window. The start is later than `now` only if `now` is before the window.
  -- `continued`: see `Counting` in takeover.py.
  function define_window(name, read, continued)
    decide[name] = function(key, now, cost, _, first, quota, ...)
      local count, start, finish, expires, ahead, in_window = read(key, now, first, ...)
      local rest = finish - now
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
      local at = start > now and start or now
      expires = (has_injected_time or not in_window) and expires
      return state, expires, allowed, quota, remaining, retry_after, rest, reset_after, 0, at
    end

    if counting then
      counting[name] = {
        capacity = function(_, quota) return quota end,
        room = function(cost, _, _, quota) return quota - cost end,
        used = function(key, now, first, _, ...) return (read(key, now, first, ...)) end,
        until_used = function(key, now, most, first, _, ...)
          local count, _, finish = read(key, now, first, ...)
          return count > most and finish - now or 0
        end,
        holding = function(_, now, units, _, quota)
          return units > 0 and write_state("<dd", math.min(units, 2 * quota), now)
        end,
        continued = function(key, now, old, numbers, first, _, ...)
          if old == name and continued(now, numbers, first, ...) then return get("GET", key) end
        end,
      }
    end

    if has_room then
      has_room[name] = function(_, cost, _, quota)
        return function(text)
          return #text == 2 * WIDTH and unpack_state("<d", text) + cost <= quota -- also in a window that is over
        end
      end
    end

    if settle then
      settle[name] = function(key, now, delta, at, first, quota, ...)
        local count, start, _, expires = read(key, now, first, ...)
        local new = count
        if delta > 0 then
          new = math.max(count, math.min(count + delta, 2 * quota))
        elseif at >= start then
          new = math.max(0, count + delta)
        end
        if new == count then return nil end
        if new == 0 then return false end
        return write_state("<dd", new, start), expires
      end
    end
  end
end

if decide.fixed_window then
  define_window("fixed_window", function(key, now, length)
    local count, start = load(key)
    if not start or now - start >= length then return 0, now, now + length, now + length, false, false end
    if start > now then return count, now, now + length, now + length, true, false end
    return count, start, start + length, start + length, false, true
  end, function(_, numbers, length) return numbers[1] == length end)
end
