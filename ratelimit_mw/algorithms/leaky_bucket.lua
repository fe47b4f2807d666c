-- Leaky bucket: computes what leaky_bucket.py computes, in whole numbers. Its other functions are in bucket.lua.
-- State: level (ticks that have not leaked), updated (clock steps); read and written in bucket.lua.
-- Numbers of the limit: clock (us in a clock step), drain (ticks per clock step), unit (ticks), burst (units),
-- quota (units), at_once (units that do not queue).

if decide.leaky_bucket then
  local function turn(level, over, max_delay_ticks, at_once)
    local ticks_before = level - at_once -- ticks that must leak before its turn
    if ticks_before - max_delay_ticks > over then over = ticks_before - max_delay_ticks end
    return ticks_before, over
  end

  decide.leaky_bucket = bucket_decider(read_level, write_level, turn)
  if has_room then has_room.leaky_bucket = level_up_to end -- such a charge is not delayed
  if counting then counting.leaky_bucket = bucket_counter(read_level, write_level, true) end
  if settle then settle.leaky_bucket = bucket_settler(read_level, write_level) end
end
