-- How arguments and states are written on a server that has cmsgpack and struct: every stock Redis and Valkey. On
-- another one the first line fails, and the error names what is missing.

local decode = cmsgpack.unpack -- all the values that stand one after the other
local write_state, unpack_state = struct.pack, struct.unpack

-- How many numbers a text holds that `write_state` wrote with a format of "<" and a "d" for each, and these; nothing if
-- it holds none, or more than `most`. What follows them means nothing.
local function read_state(text, most)
  local n = #text / 8
  if n % 1 == 0 and n > 0 and n <= most then
    return n, unpack_state(n == 1 and "<d" or n == 2 and "<dd" or n == 3 and "<ddd" or "<" .. string.rep("d", n), text)
  end
end
