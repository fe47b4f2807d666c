-- How arguments and states are written on a server that has cmsgpack and struct: every stock Redis and Valkey.

if not (rawget(_G, "cmsgpack") and rawget(_G, "struct")) then return redis.error_reply("NOCODEC use the text codec") end

local decode = cmsgpack.unpack

local function format(n)
  return n == 1 and "<d" or n == 2 and "<dd" or n == 3 and "<ddd" or "<" .. string.rep("d", n)
end

local function read_state(text, least, most)
  local n = #text / 8
  if n % 1 == 0 and n >= least and n <= most then
    local values = { struct.unpack(format(n), text) }
    values[n + 1] = nil -- where the text ends
    return values
  end
end

local function write_state(n, ...)
  return struct.pack(format(n), ...)
end
