-- Token bucket: computes what token_bucket.py computes, in whole numbers. Its functions are in bucket.lua.
-- State: level (ticks that have not drained), updated (clock steps); read and written in bucket.lua.
-- Numbers of the limit: clock (us in a clock step), drain (ticks per clock step), unit (ticks), burst (units),
-- quota (units), at_once (units; here the same as burst).

if decide.token_bucket then
  decide.token_bucket = bucket_decider(read_level, write_level)
  if has_room then has_room.token_bucket = level_up_to end
  if counting then counting.token_bucket = bucket_counter(read_level, write_level) end
  if settle then settle.token_bucket = bucket_settler(read_level, write_level) end
end
