-- Leaky bucket: computes what leaky_bucket.py computes, in whole numbers. Its helper functions are in bucket.lua.
-- State: level (ticks that have not leaked), updated (clock steps); read and written in bucket.lua.
-- Numbers of the limit: clock (us in a clock step), drain (ticks per clock step), unit (ticks), burst (units),
-- quota (units), at_once (units that do not queue).

if decide.leaky_bucket then
  function decide.leaky_bucket(key, now, cost, max_delay, clock, drain, unit, burst, _, at_once)
    local phase = now % clock
    local step = (now - phase) / clock
    local level, updated = read_level(key, step, drain)
    local allowed, retry_after, delay, state, expires = 1, 0, 0, nil, nil
    at_once = at_once * unit
    if cost > 0 then
      local over = level + (cost - burst) * unit
      local ticks_before = level - at_once -- ticks that must leak before its turn
      local max_delay_ticks = (max_delay - max_delay % clock) / clock * drain
      if cost > burst then
        allowed, retry_after = 0, -1
      elseif over > 0 or ticks_before > max_delay_ticks then
        if ticks_before - max_delay_ticks > over then over = ticks_before - max_delay_ticks end
        allowed, retry_after = 0, (over + -over % drain) / drain * clock - phase
      else
        if ticks_before > 0 then delay = (ticks_before + -ticks_before % drain) / drain * clock - phase end
        level = level + cost * unit
      end
      if allowed == 1 or updated > step then state, expires = write_level(step, level, clock, drain) end
    end
    return state, expires, bucket_decision(now, level, allowed, retry_after, delay, at_once, phase, clock, drain, unit, burst)
  end

  if has_room then
    function has_room.leaky_bucket(now, cost, clock, drain, unit, burst, _, at_once)
      return level_up_to(math.min(burst - cost, at_once) * unit, now, clock, drain) -- such a charge is not delayed
    end
  end

  if settle then settle.leaky_bucket = settle_level end
end
