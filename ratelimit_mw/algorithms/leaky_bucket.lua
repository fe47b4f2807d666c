-- Leaky bucket. Twin of leaky_bucket.py: the same steps on the same whole numbers.
-- State: level (ticks that have not leaked), updated (clock ticks); read and written in bucket.lua.
-- Numbers of the limit: clock (us in a clock tick), drain (ticks per clock tick), unit (ticks), burst (units),
-- quota (units), at_once (units that do not queue).

if look.leaky_bucket then
  -- allowed, retry_after and delay of a charge that finds the bucket at this level.
  local function queue(level, cost, max_delay, phase, clock, drain, unit, burst, at_once)
    if cost > burst then return 0, -1, 0 end
    local over = level + (cost - burst) * unit
    local before = level - at_once * unit -- ticks that have to leak before its turn
    local patience = (max_delay - max_delay % clock) / clock * drain
    if over > 0 or before > patience then
      if before - patience > over then over = before - patience end
      return 0, (over + -over % drain) / drain * clock - phase, 0
    end
    return 1, 0, before > 0 and (before + -before % drain) / drain * clock - phase or 0
  end

  function look.leaky_bucket(key, now, cost, max_delay, clock, drain, unit, burst, _, at_once)
    local phase = now % clock
    local tick = (now - phase) / clock
    local level, updated = read_level(key, tick, drain)
    local allowed, retry_after, delay, state, expires = 1, 0, 0, nil, nil
    if cost > 0 then
      allowed, retry_after, delay = queue(level, cost, max_delay, phase, clock, drain, unit, burst, at_once)
      if allowed == 1 then level = level + cost * unit end
      if allowed == 1 or updated > tick then state, expires = write_level(tick, level, clock, drain) end
    end
    at_once = at_once * unit
    return state, expires, answer(now, level, allowed, retry_after, delay, at_once, phase, clock, drain, unit, burst)
  end

  if settle then settle.leaky_bucket = settle_level end
end
