-- How arguments, replies and states are written on a server that has cmsgpack and struct: every stock Redis and Valkey.
-- On another one the first line fails, and the error names what is missing.

local decode = cmsgpack.unpack -- all the values that stand one after the other
local reply = cmsgpack.pack -- of a list: the client reads it in a fraction of the time that the protocol's own takes
local write_state, unpack_state = struct.pack, struct.unpack -- by a format of "<" and a "d" for each number
local WIDTH = 8 -- bytes of each

-- One decision, as the client's own: its times in seconds.
local function decision(allowed, limit, remaining, retry_after, next_after, reset_after, delay, at)
  local wait = retry_after < 0 and math.huge or retry_after / 1000000
  return { allowed == 1, limit, remaining, wait, next_after / 1000000, reset_after / 1000000, delay / 1000000, at }
end
