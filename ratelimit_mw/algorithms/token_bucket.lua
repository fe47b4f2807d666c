-- Token bucket: computes what `TokenBucket.decide` in token_bucket.py computes, in whole numbers.
-- Its helper functions are in bucket.lua.
-- State: level (ticks that have not drained), updated (clock steps); read and written in bucket.lua.
-- Numbers of the limit: clock (us in a clock step), drain (ticks per clock step), unit (ticks), burst (units),
-- quota (units).

if decide.token_bucket then
  function decide.token_bucket(key, now, cost, max_delay, clock, drain, unit, burst)
    local phase, full = now % clock, burst * unit
    local step = (now - phase) / clock
    local level, updated = read_level(key, step, drain)
    local allowed, retry_after, delay, state, expires = 1, 0, 0, nil, nil
    if cost > 0 then
      local taken = level + cost * unit
      if taken > full then
        allowed, retry_after, delay = refuse_or_delay(cost, taken - full, max_delay, phase, clock, drain, burst)
      end
      if allowed == 1 then level = taken end
      if allowed == 1 or updated > step then state, expires = write_level(step, level, clock, drain) end
    end
    return state, expires, bucket_decision(now, level, allowed, retry_after, delay, full, phase, clock, drain, unit, burst)
  end

  if has_room then
    function has_room.token_bucket(now, cost, clock, drain, unit, burst)
      return level_up_to((burst - cost) * unit, now, clock, drain)
    end
  end

  if settle then settle.token_bucket = settle_level end
end
