-- Sliding window counter. Twin of sliding_window_counter.py: the same steps on the same whole numbers.
-- State: start of the newest sub-window (clock ticks), then the units of each sub-window, newest first.
-- Numbers of the limit: clock (us in a clock tick), length (clock ticks in a sub-window), quota (units), buckets,
-- strict (0 or 1).

if wanted.sliding_window_counter then
  local floor, max, min = math.floor, math.max, math.min

  -- The state as it is at `tick`: c[1] is the start, c[2] the newest count, c[buckets + 2] the oldest.
  local function read(key, tick, length, buckets)
    local c = load(key, buckets + 2, buckets + 2)
    local stored = c and c[1]
    if c then
      local gone = floor((tick - stored) / length)
      local units = 0
      if gone < 0 then
        c[1] = tick
      elseif gone > buckets then
        return { tick }, stored, 0
      elseif gone > 0 then
        for i = buckets + 2, 2, -1 do c[i] = i - gone >= 2 and c[i - gone] or 0 end
        c[1] = stored + gone * length
      end
      for i = 2, buckets + 2 do units = units + c[i] end
      if units > 0 then return c, stored, units end
    end
    return { tick }, stored, 0
  end

  local function write(c, clock, length, buckets)
    for i = 2, buckets + 2 do c[i] = c[i] or 0 end
    return write_state(buckets + 2, unpack(c, 1, buckets + 2)), (c[1] + (buckets + 1) * length) * clock
  end

  local function used(c, units, tick, length, buckets, strict)
    local oldest = c[buckets + 2] or 0
    if strict == 1 or oldest == 0 then return units end
    return units - oldest + floor(oldest * (length - (tick - c[1]) - 1) / length)
  end

  -- Clock ticks until at most `room` units count; `extra` are on top of the newest count.
  local function wait(c, units, extra, tick, room, length, buckets, strict)
    local elapsed = tick - c[1]
    local inside, oldest = units + extra, 0
    if strict == 0 then
      oldest = c[buckets + 2] or 0
      inside = inside - oldest
    end
    local i = buckets + 2 - (1 - strict)
    while inside > room and i >= 2 do
      oldest = (c[i] or 0) + (i == 2 and extra or 0)
      inside = inside - oldest
      if strict == 1 then oldest = 0 end
      elapsed = elapsed - length
      i = i - 1
    end
    local overlap = length
    if oldest > 0 then overlap = floor(((room - inside + 1) * length - 1) / oldest) end
    return max(0, overlap < length and length - 1 - overlap - elapsed or -elapsed)
  end

  look.sliding_window_counter = function(key, now, cost, _, clock, length, quota, buckets, strict)
    local tick, phase = floor(now / clock), now % clock
    local c, stored, units = read(key, tick, length, buckets)
    local room = quota - used(c, units, tick, length, buckets, strict)
    local allowed, retry_after, state, expires = 1, 0, nil, nil
    if cost > 0 then
      if cost <= room then
        room, units = room - cost, units + cost
        c[2] = (c[2] or 0) + cost
      else
        allowed, retry_after = 0, -1
        if cost <= quota then
          retry_after = wait(c, units, 0, tick, quota - cost, length, buckets, strict) * clock - phase
        end
      end
      if allowed == 1 or (stored and stored > tick) then state, expires = write(c, clock, length, buckets) end
    end
    local remaining = max(0, room)
    local next_after = wait(c, units, remaining, tick, quota - 1, length, buckets, strict) * clock - phase
    local reset_after = wait(c, units, 0, tick, 0, length, buckets, strict)
    if reset_after > 0 then reset_after = reset_after * clock - phase end
    return state, expires, allowed, quota, remaining, retry_after, next_after, reset_after, 0, now
  end

  settle.sliding_window_counter = function(key, now, delta, at, clock, length, quota, buckets, strict)
    local tick = floor(now / clock)
    local c, _, units = read(key, tick, length, buckets)
    local age = 0
    if delta > 0 then
      delta = max(0, min(delta, 2 * quota - used(c, units, tick, length, buckets, strict)))
    else
      age = max(0, -floor((floor(at / clock) - c[1]) / length))
      if age > buckets then return nil end
      delta = max(delta, -(c[age + 2] or 0))
    end
    if delta == 0 then return nil end
    if units + delta == 0 then return false end
    for i = 2, buckets + 2 do c[i] = c[i] or 0 end
    c[age + 2] = c[age + 2] + delta
    return write(c, clock, length, buckets)
  end
end
