-- Token bucket. Twin of token_bucket.py: the same steps on the same whole numbers.
-- State: level (ticks that have not drained), updated (clock ticks).
-- Numbers of the limit: clock (us in a clock tick), drain (ticks per clock tick), unit (ticks), burst (units),
-- quota (units).

if wanted.token_bucket then
  local floor, ceil, max, min = math.floor, math.ceil, math.max, math.min

  local function read(key, now, clock, drain)
    local tick = floor(now / clock)
    local state = load(key, 2)
    if not state then return tick, 0, nil end
    local level, updated = state[1], state[2]
    if tick > updated then level = max(0, level - (tick - updated) * drain) end
    return tick, level, updated
  end

  local function write(tick, level, clock, drain)
    return write_state(2, level, tick), (tick + ceil(level / drain)) * clock
  end

  look.token_bucket = function(key, now, cost, max_delay, clock, drain, unit, burst)
    local tick, level, updated = read(key, now, clock, drain)
    local full, phase = burst * unit, now % clock
    local allowed, retry_after, delay, state, expires = 1, 0, 0, nil, nil
    if cost > 0 then
      local over = 1
      if cost > burst then
        allowed, retry_after = 0, -1
      else
        over = level + cost * unit - full
        local patience = floor(max_delay / clock) * drain
        if over > patience then
          allowed, retry_after = 0, ceil((over - patience) / drain) * clock - phase
        elseif over > 0 then
          delay = ceil(over / drain) * clock - phase
        end
      end
      if allowed == 1 then level = level + cost * unit end
      if allowed == 1 or (updated and updated > tick) then state, expires = write(tick, level, clock, drain) end
    end
    local room = full - level
    local remaining = max(0, floor(room / unit))
    local next_after = ceil((unit + remaining * unit - room) / drain) * clock - phase
    local reset_after = level > 0 and ceil(level / drain) * clock - phase or 0
    return state, expires, allowed, burst, remaining, retry_after, next_after, reset_after, delay, now + reset_after
  end

  settle.token_bucket = function(key, now, delta, at, clock, drain, unit, burst, quota)
    local tick, level = read(key, now, clock, drain)
    local full = burst * unit
    if delta > 0 then
      return write(tick, max(level, min(level + min(delta, burst + quota) * unit, full + quota * unit)), clock, drain)
    end
    local undrained = (floor(at / clock) - tick) * drain
    local back = min(-delta * unit, undrained)
    if level > full then back = back - max(0, level - undrained) end
    if back <= 0 then return nil end
    if back >= level then return false end
    return write(tick, level - back, clock, drain)
  end
end
