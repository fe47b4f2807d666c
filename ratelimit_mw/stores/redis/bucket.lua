-- Functions that the bucket algorithms share. In Python, they are methods in algorithms/bucket.py: bucket_decision is
-- `decision`, settled_level is `settled_level`, read_level is `level`, and settle_level is `settle`. Python has no
-- function for refuse_or_delay: `TokenBucket.decide` and `GCRA.decide` contain its steps. For speed, these two methods
-- also contain the steps of the method `decision`, so only `LeakyBucket.decide` calls it.
--
-- head.lua defines `decide`: it has an entry for each algorithm that a charge uses. A call creates only the functions
-- that these algorithms need.
--
-- The level of a bucket is what was taken and has not drained yet. It is counted in ticks: a unit is `unit` ticks, and
-- `drain` ticks drain in a clock step. A clock step is `clock` us. `phase`: the elapsed part of the present clock step,
-- in us.

local refuse_or_delay
if decide.gcra or decide.token_bucket then
  -- Decides a charge that does not fit: the bucket would exceed its capacity by `over` ticks, more than 0. Returns
  -- allowed, retry_after and delay. The charge is delayed until `over` ticks have drained, if this delay is at most
  -- max_delay. Otherwise the charge is refused, with the time after which a retry is delayed by max_delay at most. n
  -- ticks drain in n / drain clock steps, rounded up, minus `phase`. leaky_bucket.lua does not use this function,
  -- because there a charge that fits may be delayed, too.
  function refuse_or_delay(cost, over, max_delay, phase, clock, drain, burst)
    if cost > burst then return 0, -1, 0 end
    local max_delay_ticks = (max_delay - max_delay % clock) / clock * drain
    if over <= max_delay_ticks then return 1, 0, (over + -over % drain) / drain * clock - phase end
    over = over - max_delay_ticks
    return 0, (over + -over % drain) / drain * clock - phase, 0
  end
end

local bucket_decision, settled_level
if decide.gcra or decide.token_bucket or decide.leaky_bucket then
  -- Returns the eight values of a decision. `at_once`: the highest level at which a charge passes without delay.
  function bucket_decision(now, level, allowed, retry_after, delay, at_once, phase, clock, drain, unit, burst)
    local free, remaining, reset_after = burst * unit - level, 0, 0
    if free > 0 and level <= at_once then remaining = (free - free % unit) / unit end
    local next_wait = unit + remaining * unit - free
    if level + remaining * unit - at_once > next_wait then next_wait = level + remaining * unit - at_once end
    next_wait = (next_wait + -next_wait % drain) / drain * clock - phase
    if level > 0 then reset_after = (level + -level % drain) / drain * clock - phase end
    return allowed, burst, remaining, retry_after, next_wait, reset_after, delay, now + reset_after
  end

  if settle then
    local floor, max, min = math.floor, math.max, math.min

    -- Returns the level after a settlement.
    function settled_level(level, step, delta, at, clock, drain, unit, burst, quota)
      local full = burst * unit
      if delta > 0 then
        return max(level, min(level + min(delta, burst + quota) * unit, full + quota * unit))
      end
      local undrained = (floor(at / clock) - step) * drain
      local refund = min(-delta * unit, undrained) -- drained units cannot be refunded
      if level > full then refund = refund - max(0, level - undrained) end -- keep the part of later delayed requests
      return min(level, max(0, level - refund))
    end
  end
end

-- Shared by the algorithms whose state is the level and the clock step of that level.
local read_level, write_level, settle_level, level_up_to
if decide.token_bucket or decide.leaky_bucket then
  -- Returns the present level, and the clock step of the state. Nothing drains if the clock has stepped back.
  function read_level(key, step, drain)
    local level, updated = load(key)
    if not updated then return 0, step end
    if step > updated then level = level - (step - updated) * drain end
    return level > 0 and level or 0, updated
  end

  function write_level(step, level, clock, drain)
    return write_state("<dd", level, step), (step + (level + -level % drain) / drain) * clock
  end

  if has_room then
    -- Returns a function of the text of a state. It returns whether the present level is at most `most` ticks.
    function level_up_to(most, now, clock, drain)
      local step = (now - now % clock) / clock
      return function(text)
        if #text ~= 2 * WIDTH then return false end
        local level, updated = unpack_state("<dd", text)
        return (step > updated and level - (step - updated) * drain or level) <= most
      end
    end
  end

  if settle then
    function settle_level(key, now, delta, at, clock, drain, unit, burst, quota)
      local step = (now - now % clock) / clock
      local level = read_level(key, step, drain)
      local new = settled_level(level, step, delta, at, clock, drain, unit, burst, quota)
      if new == level then return nil end
      if new == 0 then return false end
      return write_level(step, new, clock, drain)
    end
  end
end
