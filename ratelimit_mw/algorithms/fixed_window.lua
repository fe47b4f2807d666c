-- Fixed window. Twin of fixed_window.py: the same steps on the same whole numbers.
-- State: count (units), start (us).
-- Numbers of the limit: length (us), quota (units).

if wanted.fixed_window then
  local max, min = math.max, math.min

  -- Count and start of the window that runs, and whether the state is from a time ahead of now.
  local function read(key, now, length)
    local state = load(key, 2, 2)
    if not state or now - state[2] >= length then return 0, now, false end
    return state[1], min(state[2], now), state[2] > now
  end

  look.fixed_window = function(key, now, cost, _, length, quota)
    local count, start, ahead = read(key, now, length)
    local rest = start + length - now
    local allowed, retry_after, state = 1, 0, nil
    if cost > 0 then
      if count + cost <= quota then
        count = count + cost
      else
        allowed, retry_after = 0, cost <= quota and rest or -1
      end
      if allowed == 1 or ahead then state = write_state(2, count, start) end
    end
    local reset_after = count > 0 and rest or 0
    return state, start + length, allowed, quota, max(0, quota - count), retry_after, rest, reset_after, 0, now
  end

  settle.fixed_window = function(key, now, delta, at, length, quota)
    local count, start = read(key, now, length)
    local new = count
    if delta > 0 then
      new = max(count, min(count + delta, 2 * quota))
    elseif at >= start then
      new = max(0, count + delta)
    end
    if new == count then return nil end
    if new == 0 then return false end
    return write_state(2, new, start), start + length
  end
end
