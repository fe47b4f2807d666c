-- Generic cell rate algorithm: computes what gcra.py computes, in whole numbers.
-- bucket_decider and bucket_settler are in bucket.lua, load in head.lua, write_state in the codec.
-- State: the TAT in clock steps, rounded down; its remainder in ticks, if not 0; the time of the update (clock steps),
-- if the level was above full. Python stores the first two as one number, which would not fit a double.
-- Numbers of the limit: clock (us in a clock step), drain (ticks per clock step), unit (ticks), burst (units),
-- quota (units), at_once (units; here the same as burst).

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

  local function write(step, level, clock, drain, full)
    local rest = level % drain
    local tat = step + (level - rest) / drain
    local expires = (rest > 0 and tat + 1 or tat) * clock
    if level > full then return write_state("<ddd", tat, rest, step), expires end
    if rest > 0 then return write_state("<dd", tat, rest), expires end
    return write_state("<d", tat), expires
  end

  decide.gcra = bucket_decider(read, write)

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

  if counting then counting.gcra = bucket_counter(read, write) end
  if settle then settle.gcra = bucket_settler(read, write) end
end
