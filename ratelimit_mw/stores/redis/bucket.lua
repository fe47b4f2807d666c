-- Functions that the bucket algorithms share. In Python, they are methods in algorithms/bucket.py: admission is
-- `_admission`, bucket_decider returns `decide`, bucket_settler returns `settle`, read_level is `_level`, and write_level
-- is `_state`.
--
-- head.lua defines `decide`: it has an entry for each algorithm that a charge uses. A call creates only the functions
-- that these algorithms need.
--
-- The level of a bucket is what was taken and has not drained yet. It is counted in ticks: a unit is `unit` ticks, and
-- `drain` ticks drain in a clock step. A clock step is `clock` us. `phase`: the elapsed part of the present clock step,
-- in us. n ticks drain in n / drain clock steps, rounded up, minus `phase`.

local has_level, admission = decide.token_bucket or decide.leaky_bucket, nil
if decide.gcra or has_level or decide.smooth then
  -- Returns allowed, retry_after and delay of a charge whose turn comes when `due` ticks have drained. `excess`: the
  -- ticks that must drain before a retry passes, with the longest delay; 0 or less if it passes now.
  function admission(due, excess, phase, clock, drain)
    if excess > 0 then return 0, (excess + -excess % drain) / drain * clock - phase, 0 end
    return 1, 0, due > 0 and (due + -due % drain) / drain * clock - phase or 0
  end
end

local bucket_decider, bucket_settler, bucket_counter
if decide.gcra or has_level then
  -- Returns the decision function of an algorithm. read(key, step, drain, full): returns the present level, and whether
  -- the state is later than `step`. write(step, level, clock, drain, full): returns the text of a state and its expiry.
  -- turn(level, over, max_delay_ticks): returns `due` and `excess` of a charge that does not pass at once, where `over`
  -- is the ticks by which it exceeds the capacity; nil for an algorithm that delays it until they have drained.
  function bucket_decider(read, write, turn)
    return function(key, now, cost, max_delay, clock, drain, unit, burst, _, at_once)
      local phase, full = now % clock, burst * unit
      local step = (now - phase) / clock
      local level, ahead = read(key, step, drain, full)
      local allowed, retry_after, delay, state, expires = 1, 0, 0, nil, nil
      at_once = at_once * unit -- the highest level in ticks at which a charge passes without delay
      if cost > 0 then
        local over = level + cost * unit - full
        if cost > burst then
          allowed, retry_after = 0, -1
        elseif over > 0 or level > at_once then
          local max_delay_ticks = (max_delay - max_delay % clock) / clock * drain
          local due, excess = over, over - max_delay_ticks
          if turn then due, excess = turn(level, over, max_delay_ticks, at_once) end
          allowed, retry_after, delay = admission(due, excess, phase, clock, drain)
        end
        if allowed == 1 then level = over + full end
        -- also if refused, when the clock stepped back: the old state would refuse until its time
        if allowed == 1 or ahead then state, expires = write(step, level, clock, drain, full) end
      end
      local free, remaining, reset_after = full - level, 0, 0
      if free > 0 and level <= at_once then remaining = (free - free % unit) / unit end
      local next_wait = (full - at_once > unit and full - at_once or unit) + remaining * unit - free
      next_wait = (next_wait + -next_wait % drain) / drain * clock - phase
      if level > 0 then reset_after = (level + -level % drain) / drain * clock - phase end
      return state, expires, allowed, burst, remaining, retry_after, next_wait, reset_after, delay, now + reset_after
    end
  end

  if settle then
    local floor, max, min = math.floor, math.max, math.min

    -- Returns the correction function of an algorithm. `read` and `write` are the same as above.
    function bucket_settler(read, write)
      return function(key, now, delta, at, clock, drain, unit, burst, quota)
        local step, full = (now - now % clock) / clock, burst * unit
        local level, new = read(key, step, drain, full), nil
        if delta > 0 then
          new = max(level, min(level + min(delta, burst + quota) * unit, full + quota * unit))
        else
          local undrained = (floor(at / clock) - step) * drain
          local refund = min(-delta * unit, undrained) -- drained units cannot be refunded
          if level > full then refund = refund - max(0, level - undrained) end -- keep the part of later delayed requests
          new = min(level, max(0, level - refund))
        end
        if new == level then return nil end
        if new == 0 then return false end
        return write(step, new, clock, drain, full)
      end
    end
  end
end

if counting then
  -- Returns what limits need that take over units. `read` and `write` are the same as above.
  function bucket_counter(read, write, queues)
    local function level_of(key, now, clock, drain, unit, burst)
      return (read(key, (now - now % clock) / clock, drain, burst * unit))
    end

    local function holding(now, level, clock, drain, unit, burst)
      return (write((now - now % clock) / clock, math.min(level, MAX_EXACT / 2), clock, drain, burst * unit))
    end

    return {
      level = level_of,
      capacity = function(_, _, _, burst) return burst end,
      room = function(cost, max_delay, clock, drain, unit, burst, _, at_once)
        local over = (max_delay - max_delay % clock) / clock * drain
        over = (over - over % unit) / unit
        return queues and math.min(burst - cost, at_once + over) or burst - cost + over
      end,
      used = function(key, now, clock, drain, unit, burst)
        local level = level_of(key, now, clock, drain, unit, burst)
        return (level + -level % unit) / unit
      end,
      until_used = function(key, now, most, clock, drain, unit, burst)
        local excess = level_of(key, now, clock, drain, unit, burst) - most * unit
        return excess > 0 and (excess + -excess % drain) / drain * clock - now % clock or 0
      end,
      holding = function(_, now, units, clock, drain, unit, burst)
        return holding(now, units * unit, clock, drain, unit, burst)
      end,
      continued = function(key, now, old, numbers, clock, drain, unit, burst)
        local old_level, old_unit = counting[old].level, numbers[3]
        if not old_level then return nil end
        local level = old_level(key, now, unpack(numbers))
        local part = level % old_unit
        local whole = (level - part) / old_unit
        if unit ~= old_unit then part = math.min(unit, scale_up(part, unit, old_unit)) end
        return holding(now, whole * unit + part, clock, drain, unit, burst)
      end,
    }
  end
end

-- Shared by the algorithms whose state is the level and the clock step of that level.
local read_level, write_level, level_up_to
if has_level then
  -- Nothing drains if the clock has stepped back.
  function read_level(key, step, drain)
    local level, updated = load(key)
    if not updated then return 0, false end
    if step > updated then level = level - (step - updated) * drain end
    return level > 0 and level or 0, updated > step
  end

  function write_level(step, level, clock, drain)
    return write_state("<dd", level, step), (step + (level + -level % drain) / drain) * clock
  end

  if has_room then
    -- Returns a function of the text of a state. It returns whether a charge passes now, without delay.
    function level_up_to(now, cost, clock, drain, unit, burst, _, at_once)
      local step, most = (now - now % clock) / clock, math.min(burst - cost, at_once) * unit
      return function(text)
        if #text ~= 2 * WIDTH then return false end
        local level, updated = unpack_state("<dd", text)
        return (step > updated and level - (step - updated) * drain or level) <= most
      end
    end
  end
end
