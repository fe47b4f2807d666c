-- Encodes arguments, replies and states on servers with cmsgpack and struct: every stock Redis and Valkey.
-- On other servers the first statement fails, with an error that names what is missing.

local decode = cmsgpack.unpack -- returns all values of a sequence
local reply = cmsgpack.pack -- the client decodes such a list in a fraction of the time of a RESP list
local write_state, unpack_state = struct.pack, struct.unpack -- format: "<" and a "d" for each number
local WIDTH = 8 -- bytes of a number

-- Returns a decision as Python keeps it: durations in seconds, and `at` in microseconds.
local function decision(allowed, limit, remaining, retry_after, next_after, reset_after, delay, at)
  local wait = retry_after < 0 and math.huge or retry_after / 1000000
  return { allowed == 1, limit, remaining, wait, next_after / 1000000, reset_after / 1000000, delay / 1000000, at }
end
