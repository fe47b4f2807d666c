-- Sliding window counter: the Lua implementation of sliding_window_counter.py, with the same steps on the same whole
-- numbers.
-- State: start of the newest sub-window (clock steps), then the units of each sub-window, newest first.
-- Numbers of the limit: clock (us in a clock step), length (clock steps in a sub-window), quota (units), buckets,
-- strict (0 or 1).

if decide.sliding_window_counter then
  -- Returns the state at `step` (c[1] is the start, c[2] the newest count, c[buckets + 2] the oldest), the stored start
  -- (-1 without a state), the sum of all units, and how many of them count.
  local function read(key, step, length, buckets, strict)
    local last = buckets + 2
    local stored_start, newest, oldest, c
    if buckets == 1 then
      stored_start, newest, oldest = load(key)
      c = oldest and { stored_start, newest, oldest }
    else -- more numbers than `load` supports
      local text = get("GET", key) or ""
      if #text == last * WIDTH then
        c = { unpack_state("<" .. string.rep("d", last), text) }
        stored_start = c[1]
        for i = 1, last do
          local x = c[i]
          if not (x >= 0 and x <= MAX_EXACT and x % 1 == 0) then
            c = nil
            break
          end
        end
      elseif text.err and not string.find(text.err, "WRONGTYPE", 1, true) then
        error(text.err) -- see `load`
      end
    end
    if not c then return { step, 0, [last] = 0 }, -1, 0, 0 end
    local passed = (step - stored_start - (step - stored_start) % length) / length
    if passed > buckets then return { step, 0, [last] = 0 }, stored_start, 0, 0 end
    if passed < 0 then
      c[1] = step
    elseif passed > 0 then
      for i = last, 2, -1 do c[i] = i - passed >= 2 and c[i - passed] or 0 end
      c[1] = stored_start + passed * length
    end
    local units = c[2] + c[last]
    for i = 3, last - 1 do units = units + c[i] end
    if units == 0 then return { step, 0, [last] = 0 }, stored_start, 0, 0 end
    if strict == 1 then return c, stored_start, units, units end
    local weighted = c[last] * (length - (step - c[1]) - 1)
    return c, stored_start, units, units - c[last] + (weighted - weighted % length) / length
  end

  local function write(c, clock, length, buckets)
    local expires = (c[1] + (buckets + 1) * length) * clock
    if buckets == 1 then return write_state("<ddd", c[1], c[2], c[3]), expires end
    for i = 2, buckets + 2 do c[i] = c[i] or 0 end
    return write_state("<" .. string.rep("d", buckets + 2), unpack(c, 1, buckets + 2)), expires
  end

  -- Returns the clock steps until at most `max_used` units count, with `extra` units added to the newest count.
  local function wait(c, units, extra, elapsed, max_used, length, buckets, strict)
    local counted, oldest, i = units + extra, 0, buckets + 2
    if strict == 0 then
      oldest = c[i]
      counted = counted - oldest
      i = i - 1
    end
    while counted > max_used and i >= 2 do -- the oldest leaves, and the next one becomes the oldest
      oldest = (c[i] or 0) + (i == 2 and extra or 0)
      counted = counted - oldest
      if strict == 1 then oldest = 0 end
      elapsed = elapsed - length
      i = i - 1
    end
    local steps = -elapsed
    if oldest > 0 then
      local fits = (max_used - counted + 1) * length - 1
      local overlap = (fits - fits % oldest) / oldest
      if overlap < length then steps = length - 1 - overlap - elapsed end
    end
    return steps > 0 and steps or 0
  end

  function decide.sliding_window_counter(key, now, cost, _, clock, length, quota, buckets, strict)
    local phase = now % clock
    local step = (now - phase) / clock
    local c, stored_start, units, used = read(key, step, length, buckets, strict)
    local elapsed, room = step - c[1], quota - used
    local allowed, retry_after, state, expires = 1, 0, nil, nil
    if cost > 0 then
      if cost <= room then
        room, units = room - cost, units + cost
        c[2] = c[2] + cost
      else
        allowed, retry_after = 0, -1
        if cost <= quota then
          retry_after = wait(c, units, 0, elapsed, quota - cost, length, buckets, strict) * clock - phase
        end
      end
      if allowed == 1 or stored_start > step then state, expires = write(c, clock, length, buckets) end
      if c[1] == stored_start and not has_injected_time then expires = false end
    end
    local remaining, next_after, reset_after = room > 0 and room or 0, 0, 0
    local newest = c[2]
    if buckets > 1 or strict == 1 or newest == 0 then
      next_after = wait(c, units, remaining, elapsed, quota - 1, length, buckets, strict)
      if units > 0 then reset_after = wait(c, units, 0, elapsed, 0, length, buckets, strict) end
    else -- two counters, and units in the newest: wait(), inlined
      local filled, fits = newest + remaining, 0
      next_after = length - elapsed
      if filled < quota then -- the oldest one counts
        fits = (quota - filled) * length - 1
        next_after = next_after - (fits - fits % c[3]) / c[3] - 1
      elseif filled > quota then -- in debt
        fits = quota * length - 1
        next_after = next_after + length - 1 - (fits - fits % filled) / filled
      end
      reset_after = 2 * length - 1 - (length - 1 - (length - 1) % newest) / newest - elapsed
    end
    next_after = next_after * clock - phase
    if reset_after > 0 then reset_after = reset_after * clock - phase end
    return state, expires, allowed, quota, remaining, retry_after, next_after, reset_after, 0, now
  end

  if counting then
    local function look(key, now, clock, length, quota, buckets, strict)
      local step = (now - now % clock) / clock
      local c, _, units, used = read(key, step, length, buckets, strict)
      return c, step, units, used
    end

    counting.sliding_window_counter = {
      capacity = function(_, _, quota) return quota end,
      room = function(cost, _, _, _, quota) return quota - cost end,
      used = function(key, now, ...)
        local _, _, _, used = look(key, now, ...)
        return used
      end,
      until_used = function(key, now, most, clock, length, quota, buckets, strict)
        local c, step, units = look(key, now, clock, length, quota, buckets, strict)
        local steps = wait(c, units, 0, step - c[1], most, length, buckets, strict)
        return steps > 0 and steps * clock - now % clock or 0
      end,
      holding = function(_, now, units, clock, length, quota, buckets)
        if units == 0 then return false end
        local c = { (now - now % clock) / clock, math.min(units, 2 * quota), [buckets + 2] = 0 }
        return (write(c, clock, length, buckets))
      end,
      continued = function(key, _, old, numbers, clock, length, _, buckets, strict)
        local same = numbers[1] == clock and numbers[2] == length and numbers[4] == buckets and numbers[5] == strict
        if old == "sliding_window_counter" and same then return get("GET", key) end
      end,
    }
  end

  if has_room then
    function has_room.sliding_window_counter(_, cost, _, _, quota, buckets)
      return function(text)
        if buckets > 1 or #text ~= 3 * WIDTH then return false end
        local _, newest, oldest = unpack_state("<ddd", text)
        return newest + oldest + cost <= quota -- at most all units count
      end
    end
  end

  if settle then
    function settle.sliding_window_counter(key, now, delta, at, clock, length, quota, buckets, strict)
      local floor, max, min = math.floor, math.max, math.min
      local step = floor(now / clock)
      local c, _, units, used = read(key, step, length, buckets, strict)
      local age = 0
      if delta > 0 then
        delta = max(0, min(delta, 2 * quota - used))
      else
        age = max(0, -floor((floor(at / clock) - c[1]) / length))
        if age > buckets then return nil end
        delta = max(delta, -(c[age + 2] or 0))
      end
      if delta == 0 then return nil end
      if units + delta == 0 then return false end
      c[age + 2] = (c[age + 2] or 0) + delta
      return write(c, clock, length, buckets)
    end
  end
end
