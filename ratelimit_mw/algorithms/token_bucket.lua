-- Token bucket: computes what `TokenBucket._decide` in token_bucket.py computes, in whole numbers.
-- Its helper functions are in bucket.lua.
-- State: level (ticks that have not drained), updated (clock ticks); read and written in bucket.lua.
-- Numbers of the limit: clock (us in a clock tick), drain (ticks per clock tick), unit (ticks), burst (units),
-- quota (units).

if decide.token_bucket then
  function decide.token_bucket(key, now, cost, max_delay, clock, drain, unit, burst)
    local phase, full = now % clock, burst * unit
    local tick = (now - phase) / clock
    local level, updated = read_level(key, tick, drain)
    local allowed, retry_after, delay, state, expires = 1, 0, 0, nil, nil
    if cost > 0 then
      local taken = level + cost * unit
      if taken > full then
        allowed, retry_after, delay = refuse_or_delay(cost, taken - full, max_delay, phase, clock, drain, burst)
      end
      if allowed == 1 then level = taken end
      if allowed == 1 or updated > tick then state, expires = write_level(tick, level, clock, drain) end
    end
    return state, expires, bucket_decision(now, level, allowed, retry_after, delay, full, phase, clock, drain, unit, burst)
  end

  if settle then settle.token_bucket = settle_level end
end
