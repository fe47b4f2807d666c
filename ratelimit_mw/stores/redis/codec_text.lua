-- The codec "text": arguments are JSON, replies are RESP lists, states are decimal digits. For servers without cmsgpack
-- or struct, such as the fakeredis of users' tests.

local WIDTH = 16 -- digits of a number in a state

local function decode(text)
  return unpack(cjson.decode(text))
end

local function reply(list) -- as a RESP list
  return list
end

local function decision(...)
  return { ... }
end

local function write_state(format, ...)
  return string.format(string.rep("%0" .. WIDTH .. ".0f", #format - 1), ...)
end

local function unpack_state(format, text)
  local values = {}
  for i = 1, #format - 1 do
    local digits = string.sub(text, (i - 1) * WIDTH + 1, i * WIDTH)
    values[i] = string.find(digits, "%D") and -1 or tonumber(digits) -- negative: invalid
  end
  return unpack(values)
end
