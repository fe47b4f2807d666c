-- The codec "msgpack": arguments and replies are msgpack, states are binary. It needs cmsgpack and struct, which every
-- stock Redis and Valkey has. On other servers the first statement fails, with an error that names what is missing.

local decode = cmsgpack.unpack -- returns all values of a sequence

-- Returns the reply of the script. The client decodes msgpack in a fraction of the time of a RESP list. The reply
-- begins with ARGV[2], if there is one: the number of the call, by which the client recognizes its reply.
local function reply(list)
  return (ARGV[2] or "") .. cmsgpack.pack(list)
end

local write_state, unpack_state = struct.pack, struct.unpack -- format: "<" and a "d" for each number
local WIDTH = 8 -- bytes of a number

-- Returns a decision as Python keeps it: durations in seconds, and `at` in microseconds.
local function decision(allowed, limit, remaining, retry_after, next_after, reset_after, delay, at)
  local wait = retry_after < 0 and math.huge or retry_after / 1000000
  return { allowed == 1, limit, remaining, wait, next_after / 1000000, reset_after / 1000000, delay / 1000000, at }
end
