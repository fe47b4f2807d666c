-- Generic cell rate algorithm. Twin of gcra.py: the same steps on the same whole numbers.
-- State: the TAT in clock ticks, rounded down; the rest of it in ticks, where there is one; and when that was so (clock
-- ticks), if the level was above full then. Python keeps the first two as one number, for which a double has no room.
-- Numbers of the limit: clock (us in a clock tick), drain (ticks per clock tick), unit (ticks), burst (units),
-- quota (units).

if wanted.gcra then
  local floor, ceil, max = math.floor, math.ceil, math.max

  -- Ticks that have not drained by `tick`, and whether the state is from a time ahead of it.
  local function read(key, tick, drain, full)
    local state = load(key, 1, 3)
    if not state then return 0, false end
    local tat, rest, updated = state[1], state[2] or 0, state[3]
    if updated then return max(0, (tat - max(tick, updated)) * drain + rest), updated > tick end
    local level = (tat - tick) * drain + rest
    if level > full then return full, true end
    return max(0, level), false
  end

  local function write(tick, level, full, clock, drain)
    local tat, rest = tick + floor(level / drain), level % drain
    local expires = (tick + ceil(level / drain)) * clock
    if level > full then return write_state(3, tat, rest, tick), expires end
    if rest > 0 then return write_state(2, tat, rest), expires end
    return write_state(1, tat), expires
  end

  look.gcra = function(key, now, cost, max_delay, clock, drain, unit, burst)
    local tick, full = floor(now / clock), burst * unit
    local level, ahead = read(key, tick, drain, full)
    local allowed, retry_after, delay, state, expires = 1, 0, 0, nil, nil
    if cost > 0 then
      local taken = level + cost * unit
      allowed, retry_after, delay = squeeze(now, cost, taken - full, max_delay, clock, drain, burst)
      if allowed == 1 then level = taken end
      if allowed == 1 or ahead then state, expires = write(tick, level, full, clock, drain) end
    end
    return state, expires, answer(now, level, allowed, retry_after, delay, full, clock, drain, unit, burst)
  end

  settle.gcra = function(key, now, delta, at, clock, drain, unit, burst, quota)
    local tick, full = floor(now / clock), burst * unit
    local level = read(key, tick, drain, full)
    local new = corrected(level, tick, delta, at, clock, drain, unit, burst, quota)
    if new == level then return nil end
    if new == 0 then return false end
    return write(tick, new, full, clock, drain)
  end
end
