-- Calendar window: the Lua implementation of calendar_window.py, with the same steps on the same whole numbers.
-- State: count (units), start (us): the time of the first hit in the period.
-- Numbers of the limit: four edges of periods (us), and the quota (units) as the second number. The client's clock is
-- between the second and the third edge. The server's time is in this period, or in one of the two beside it. If the
-- clocks differ by more, periods before and after these are as long as the last one that is known.

if decide.calendar_window then
  local SMALL_STEP = 60000000 -- us that a clock may step back
  local SPREAD = 32 -- expired keys are removed over a part of a period, because all periods end at the same instant

  -- Returns begin and end of the period at `now`.
  local function period(now, before, begin, finish, following)
    if now >= following then
      local length = following - finish
      local start = now - (now - following) % length
      return start, start + length
    elseif now >= finish then
      return finish, following
    elseif now >= begin then
      return begin, finish
    elseif now >= before then
      return before, begin
    end
    local length = begin - before
    local start = before - (before - now + -(before - now) % length)
    return start, start + length
  end

  define_window("calendar_window", function(key, now, ...)
    local count, start = load(key)
    local later = start and start - now or 0
    local begin, finish = period(later > 0 and later <= SMALL_STEP and start or now, ...)
    if not start or start < begin then count, start = 0, nil end
    local kept = start and (now < begin or start <= now)
    local first = kept and start or now
    local part = (finish - begin + -(finish - begin) % SPREAD) / SPREAD
    return count, first, finish, finish + first % part, start and not kept, kept
  end, function(now, numbers, ...)
    local begin, finish = period(now, ...)
    local old_begin, old_finish = period(now, numbers[1], numbers[3], numbers[4], numbers[5])
    return begin == old_begin and finish == old_finish
  end)
end
