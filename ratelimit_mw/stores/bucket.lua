-- What the bucket algorithms share, as ratelimit_mw/bucket.py is to their twins. A level is what was taken and has not
-- drained yet, in ticks.

local squeeze, answer, corrected
if wanted.bucket then
  local floor, ceil, max, min = math.floor, math.ceil, math.max, math.min

  -- allowed, retry_after and delay of a charge that goes `over` full, unless it is held back.
  function squeeze(now, cost, over, max_delay, clock, drain, burst)
    if cost > burst then return 0, -1, 0 end
    if over <= 0 then return 1, 0, 0 end
    local patience = floor(max_delay / clock) * drain
    if over <= patience then return 1, 0, ceil(over / drain) * clock - now % clock end
    return 0, ceil((over - patience) / drain) * clock - now % clock, 0
  end

  -- What a look returns from `allowed` on. At a level higher than `at_once` a charge that fits is held back.
  function answer(now, level, allowed, retry_after, delay, at_once, clock, drain, unit, burst)
    local full, phase = burst * unit, now % clock
    local remaining, reset_after = 0, 0
    if level < full and level <= at_once then remaining = floor((full - level) / unit) end
    local taken = level + remaining * unit
    local next_after = ceil(max(taken + unit - full, taken - at_once) / drain) * clock - phase
    if level > 0 then reset_after = ceil(level / drain) * clock - phase end
    return allowed, burst, remaining, retry_after, next_after, reset_after, delay, now + reset_after
  end

  -- The level after a correction.
  function corrected(level, tick, delta, at, clock, drain, unit, burst, quota)
    local full = burst * unit
    if delta > 0 then return max(level, min(level + min(delta, burst + quota) * unit, full + quota * unit)) end
    local undrained = (floor(at / clock) - tick) * drain
    local back = min(-delta * unit, undrained)
    if level > full then back = back - max(0, level - undrained) end
    return min(level, max(0, level - back))
  end
end
