-- How arguments and states are written on a server that has cmsgpack and struct: every stock Redis and Valkey. On
-- another one the first line fails, and the error names what is missing.

local decode, write_state, unpack_state = cmsgpack.unpack, struct.pack, struct.unpack

-- The numbers of a text that `write_state` wrote with a format of "<" and a "d" for each, from `least` to `most`.
local function read_state(text, least, most)
  local n = #text / 8
  if n % 1 == 0 and n >= least and n <= most then
    local values = { unpack_state(n == 2 and "<dd" or n == 3 and "<ddd" or "<" .. string.rep("d", n), text) }
    values[n + 1] = nil -- where the text ends
    return values
  end
end
