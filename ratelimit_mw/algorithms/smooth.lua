-- Guava's RateLimiter: the Lua implementation of smooth.py, with the same steps on the same whole numbers.
-- State: wait (ticks until the next free ticket), stored (ticks), delayed_ticks (ticks of the wait that are the price
-- of delayed charges), updated (clock steps), drain (ticks per clock step), clock (us per clock step).
-- A negative `stored`, for charges that took more ticks than were stored, is written as full - stored.
-- Numbers of the limit: clock (us per clock step), drain and unit (ticks, before the scale of a warm-up), quota
-- (units), idle (us that can be stored), cold (factor; 0 without a warm-up).

if decide.smooth then
  local max, min = math.max, math.min
  -- Numbers of the current limit: see ticks.py.
  local scaled_drain, unit_time, unit_storage, full, edge, numerator, denominator, scale, storage_scale

  -- Returns the ticks of storage in total, with `clock` us and `drain` ticks per clock step.
  local function storage(idle, cold, clock, drain)
    return (cold > 0 and idle + -idle % clock or idle - idle % clock) / clock * drain
  end

  local function measure(clock, drain, unit, _, idle, cold)
    if cold == 0 then
      scaled_drain, unit_time, unit_storage, edge, scale, storage_scale = drain, unit, unit, nil, 1, 1
    else
      local function without_common_twos(a, b) -- divides both by their common powers of two
        while a % 2 == 0 and b % 2 == 0 do
          a, b = a / 2, b / 2
        end
        return a, b
      end
      local part = (cold + 1) % 4 == 0 and 4 or (cold + 1) % 2 == 0 and 2 or 1
      local time = storage(idle, cold, clock, drain)
      scale, storage_scale = (cold + 5) / part, 2 * (cold + 1) / part
      scaled_drain, unit_time, unit_storage = drain * scale, unit * scale, unit * storage_scale
      edge, numerator, denominator = time * storage_scale / 2, scale * (cold - 1) * part * part, 16 * (cold + 1)
      scale, storage_scale = without_common_twos(scale, storage_scale)
      numerator, denominator = without_common_twos(numerator, denominator)
      denominator = denominator * time
    end
    full = storage(idle, cold, clock, scaled_drain)
  end

  -- Returns by how many ticks all stored units cost more than as many new ones.
  local function surcharge(stored)
    if not edge then return stored > 0 and -stored or 0 end
    if stored <= edge then return 0 end
    local y = stored - edge
    local x = y * numerator
    if x * y <= MAX_EXACT then return (x * y - x * y % denominator) / denominator end
    -- exact long division: eight bits of y at a time, or one if eight do not fit
    local base, digit, quotient, rest = 256, 281474976710656, 0, 0 -- 2^48
    if (x + denominator) * base > MAX_EXACT then base, digit = 2, 1125899906842624 end -- 2^50
    while digit >= 1 do
      local d = (y - y % digit) / digit
      y = y - d * digit
      rest = rest * base + x * d
      quotient = quotient * base + (rest - rest % denominator) / denominator
      rest = rest % denominator
      digit = digit / base
    end
    return quotient
  end

  -- Returns the least possible `stored` for a wait of `wait` ticks.
  local function min_stored(wait)
    return -((wait + -wait % scale) / scale * storage_scale)
  end

  -- Returns wait, stored and delayed_ticks in the ticks of this limit, and whether the state is later than `now`.
  local function current(key, now, clock, idle, cold)
    local wait, stored, delayed_ticks, updated, drain, its_clock = load(key)
    if not its_clock or drain < 1 or its_clock < 1 then return 0, full, 0, false end
    local most, step = storage(idle, cold, its_clock, drain), (now - now % its_clock) / its_clock
    if stored > most then stored = most - stored end
    local ahead = updated > step
    if not ahead then wait = wait - (step - updated) * drain end
    if wait <= 0 then -- the time since the ticket was due is stored
      wait, stored = 0, min(most, max(0, stored) - wait)
      if stored == most then return 0, full, 0, ahead end
    end
    if drain ~= scaled_drain or its_clock ~= clock then -- the rate changed: convert to its ticks
      local ratio = (scaled_drain / drain) * (its_clock / clock)
      wait = min(MAX_EXACT / 2, math.ceil(wait * ratio))
      stored = min(full, math.floor(stored * ratio))
      delayed_ticks = math.ceil(delayed_ticks * ratio)
    end
    if stored < 0 then stored = max(stored, min_stored(wait)) end
    return wait, stored, min(delayed_ticks, wait), ahead
  end

  -- Returns wait and stored after `cost` units: first stored ones, at their price, then new ones.
  local function after_charge(wait, stored, cost)
    local stored_after = stored - cost * unit_storage
    return wait + cost * unit_time + surcharge(stored) - surcharge(stored_after), stored_after
  end

  local function write(now, wait, stored, delayed_ticks, clock)
    local step, ticks = (now - now % clock) / clock, wait + full - max(0, stored)
    local expires = (step + (ticks + -ticks % scaled_drain) / scaled_drain) * clock
    local written = stored < 0 and full - stored or stored
    return write_state("<dddddd", wait, written, delayed_ticks, step, scaled_drain, clock), expires
  end

  function decide.smooth(key, now, cost, max_delay, clock, drain, unit, quota, idle, cold)
    measure(clock, drain, unit, quota, idle, cold)
    local phase = now % clock
    local wait, stored, delayed_ticks, ahead = current(key, now, clock, idle, cold)
    local allowed, retry_after, delay, state, expires = 1, 0, 0, nil, nil
    if cost > 0 then
      if cost > quota then
        allowed, retry_after = 0, -1
      else
        local excess = wait - (max_delay - max_delay % clock) / clock * scaled_drain
        allowed, retry_after, delay = admission(wait, excess, phase, clock, scaled_drain)
      end
      if allowed == 1 then
        local before = wait
        wait, stored = after_charge(wait, stored, cost)
        delayed_ticks = before > 0 and delayed_ticks + wait - before or 0
      end
      if allowed == 1 or ahead then state, expires = write(now, wait, stored, delayed_ticks, clock) end
    end

    if stored < 0 then stored = 0 end
    local limit, free, next_wait, missing = 1, 1, wait, 0
    if not edge then
      limit, free = (full - full % unit_storage) / unit_storage + 1, (stored - stored % unit_storage) / unit_storage + 1
      if wait == 0 then next_wait = free * unit_storage - stored end
      missing = max(0, (limit - 1) * unit_storage - stored)
    elseif wait == 0 then -- the first unit makes the next one wait
      next_wait = after_charge(0, stored, 1)
    end
    if wait > 0 then free = 0 end
    next_wait = (next_wait + -next_wait % scaled_drain) / scaled_drain * clock - phase
    missing = wait + missing
    if missing > 0 then missing = (missing + -missing % scaled_drain) / scaled_drain * clock - phase end
    return state, expires, allowed, limit, free, retry_after, next_wait, missing, delay, now + missing
  end

  if counting then
    local function capacity(...)
      measure(...)
      return edge and 1 or (full - full % unit_storage) / unit_storage + 1
    end

    local function look(key, now, clock, drain, unit, quota, idle, cold)
      local all = capacity(clock, drain, unit, quota, idle, cold)
      return all, current(key, now, clock, idle, cold)
    end

    counting.smooth = {
      capacity = capacity,
      room = function(_, max_delay, clock, ...)
        local all = capacity(clock, ...)
        local over = (max_delay - max_delay % clock) / clock * scaled_drain
        if edge then over = max(0, over - surcharge(full)) end
        return all - 1 + (over - over % unit_time) / unit_time
      end,
      used = function(key, now, ...)
        local all, wait, stored = look(key, now, ...)
        if wait > 0 then return all - 1 + (wait + -wait % unit_time) / unit_time end
        return edge and 0 or all - 1 - (stored - stored % unit_storage) / unit_storage
      end,
      until_used = function(key, now, most, clock, ...)
        local all, wait, stored = look(key, now, clock, ...)
        local free, ticks = all - 1 - most, 0 -- stored units
        if free < 0 then ticks = wait + free * unit_time else ticks = wait + max(0, free * unit_storage - max(0, stored)) end
        return ticks > 0 and (ticks + -ticks % scaled_drain) / scaled_drain * clock - now % clock or 0
      end,
      holding = function(key, now, units, ...) return units > 0 and (settle.smooth(key, now, units, now, ...)) end,
      continued = function() return nil end,
    }
  end

  if settle then
    -- Returns wait, stored and delayed_ticks after a refund of units that count for `left_ticks` more ticks. Later
    -- requests that are delayed keep their instants.
    local function after_refund(wait, stored, delayed_ticks, units, left_ticks)
      if not edge then
        left_ticks = left_ticks + full % unit_storage -- `at` is when all whole units are stored again
        local later_wait = max(0, wait + full - max(0, stored) - left_ticks)
        local refund = max(0, min(units * unit_storage, left_ticks) - min(delayed_ticks, later_wait))
        stored = min(full, (wait > 0 and -wait or stored) + refund)
        return max(0, -stored), stored, later_wait > 0 and delayed_ticks or max(0, delayed_ticks - refund)
      end
      local before = min(full, stored + units * unit_storage)
      local price = units * unit_time + surcharge(before) - surcharge(stored)
      local later_wait = max(0, wait - left_ticks)
      local refund = max(0, min(price, left_ticks) - min(delayed_ticks, later_wait))
      return max(0, wait - refund), before, later_wait > 0 and delayed_ticks or max(0, delayed_ticks - refund)
    end

    function settle.smooth(key, now, delta, at, clock, drain, unit, quota, idle, cold)
      measure(clock, drain, unit, quota, idle, cold)
      local wait, stored, delayed_ticks = current(key, now, clock, idle, cold)
      local wait_before, stored_before = wait, stored
      local units = min(delta > 0 and delta or -delta, 2 * quota + (full - full % unit_storage) / unit_storage + 1)
      local debt = after_charge(0, edge and full or 0, quota) + quota * unit_time
      local left_ticks = (math.floor(at / clock) - (now - now % clock) / clock) * scaled_drain
      if delta > 0 and wait < debt then
        wait, stored = after_charge(wait, stored, units)
        wait = min(wait, debt)
        stored = max(stored, min_stored(wait))
      elseif delta < 0 and left_ticks > 0 then
        wait, stored, delayed_ticks = after_refund(wait, stored, delayed_ticks, units, left_ticks)
      end
      if wait == wait_before and stored == stored_before then return nil end
      if wait == 0 and stored == full then return false end
      return write(now, wait, stored, min(delayed_ticks, wait), clock)
    end
  end
end
