-- Token bucket. Twin of token_bucket.py: the same steps on the same whole numbers.
-- State: level (ticks that have not drained), updated (clock ticks).
-- Numbers of the limit: clock (us in a clock tick), drain (ticks per clock tick), unit (ticks), burst (units),
-- quota (units).

if look.token_bucket then
  local function read(key, tick, drain)
    local level, updated = load(key)
    if not updated then return 0, tick end
    if tick > updated then level = level - (tick - updated) * drain end
    return level > 0 and level or 0, updated
  end

  local function write(tick, level, clock, drain)
    return write_state("<dd", level, tick), (tick + (level + -level % drain) / drain) * clock
  end

  function look.token_bucket(key, now, cost, max_delay, clock, drain, unit, burst)
    local phase, full = now % clock, burst * unit
    local tick = (now - phase) / clock
    local level, updated = read(key, tick, drain)
    local allowed, retry_after, delay, state, expires = 1, 0, 0, nil, nil
    if cost > 0 then
      local taken = level + cost * unit
      if taken > full then
        allowed, retry_after, delay = squeeze(cost, taken - full, max_delay, phase, clock, drain, burst)
      end
      if allowed == 1 then level = taken end
      if allowed == 1 or updated > tick then state, expires = write(tick, level, clock, drain) end
    end
    return state, expires, answer(now, level, allowed, retry_after, delay, full, phase, clock, drain, unit, burst)
  end

  if settle then
    function settle.token_bucket(key, now, delta, at, clock, drain, unit, burst, quota)
      local tick = (now - now % clock) / clock
      local level = read(key, tick, drain)
      local new = corrected(level, tick, delta, at, clock, drain, unit, burst, quota)
      if new == level then return nil end
      if new == 0 then return false end
      return write(tick, new, clock, drain)
    end
  end
end
