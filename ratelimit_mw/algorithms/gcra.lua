-- Generic cell rate algorithm: computes what `GCRA.decide` in gcra.py computes, in whole numbers.
-- refuse_or_delay, bucket_decision and settled_level are in bucket.lua, load in head.lua, write_state in the codec.
-- State: the TAT in clock steps, rounded down; its remainder in ticks, if not 0; the time of the update (clock steps),
-- if the level was above full. Python stores the first two as one number, which would not fit a double.
-- Numbers of the limit: clock (us in a clock step), drain (ticks per clock step), unit (ticks), burst (units),
-- quota (units).

if decide.gcra then
  -- Returns the ticks that have not drained by `step`, and whether the state is later than `step`.
  local function read(key, step, drain, full)
    local tat, rest, updated = load(key)
    if not tat then return 0, false end
    local ahead = updated and updated > step
    local level = (tat - (ahead and updated or step)) * drain + (rest or 0)
    if level > full and not updated then return full, true end
    return level > 0 and level or 0, ahead
  end

  local function write(step, level, full, clock, drain)
    local rest = level % drain
    local tat = step + (level - rest) / drain
    local expires = (rest > 0 and tat + 1 or tat) * clock
    if level > full then return write_state("<ddd", tat, rest, step), expires end
    if rest > 0 then return write_state("<dd", tat, rest), expires end
    return write_state("<d", tat), expires
  end

  function decide.gcra(key, now, cost, max_delay, clock, drain, unit, burst)
    local phase, full = now % clock, burst * unit
    local step = (now - phase) / clock
    local level, ahead = read(key, step, drain, full)
    local allowed, retry_after, delay, state, expires = 1, 0, 0, nil, nil
    if cost > 0 then
      local taken = level + cost * unit
      if taken > full then
        allowed, retry_after, delay = refuse_or_delay(cost, taken - full, max_delay, phase, clock, drain, burst)
      end
      if allowed == 1 then level = taken end
      if allowed == 1 or ahead then state, expires = write(step, level, full, clock, drain) end
    end
    return state, expires, bucket_decision(now, level, allowed, retry_after, delay, full, phase, clock, drain, unit, burst)
  end

  if has_room then
    function has_room.gcra(now, cost, clock, drain, unit, burst)
      local step, most = (now - now % clock) / clock, (burst - cost) * unit
      return function(text)
        local n = #text / WIDTH
        if n == 1 then return (unpack_state("<d", text) - step) * drain <= most end
        if n ~= 2 then return false end
        local tat, rest = unpack_state("<dd", text)
        return (tat - step) * drain + rest <= most
      end
    end
  end

  if settle then
    function settle.gcra(key, now, delta, at, clock, drain, unit, burst, quota)
      local step, full = (now - now % clock) / clock, burst * unit
      local level = read(key, step, drain, full)
      local new = settled_level(level, step, delta, at, clock, drain, unit, burst, quota)
      if new == level then return nil end
      if new == 0 then return false end
      return write(step, new, full, clock, drain)
    end
  end
end
