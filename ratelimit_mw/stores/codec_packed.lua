-- How arguments and states are written on a server that has cmsgpack and struct: every stock Redis and Valkey.

if not (rawget(_G, "cmsgpack") and rawget(_G, "struct")) then return redis.error_reply("NOCODEC use the text codec") end

local decode = cmsgpack.unpack

local function format(n)
  return n == 2 and "<dd" or n == 3 and "<ddd" or "<" .. string.rep("d", n)
end

local function read_state(text, n)
  if #text == 8 * n then return { struct.unpack(format(n), text) } end
end

local function write_state(n, ...)
  return struct.pack(format(n), ...)
end
