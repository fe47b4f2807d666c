-- How arguments, replies and states are written where cmsgpack and struct are missing: fakeredis, in users' own tests.

local WIDTH = 16 -- digits of each number in a state

local function decode(text)
  return unpack(cjson.decode(text))
end

local reply, decision -- which codec_plain makes

local function write_state(format, ...)
  return string.format(string.rep("%0" .. WIDTH .. ".0f", #format - 1), ...)
end

local function unpack_state(format, text)
  local values = {}
  for i = 1, #format - 1 do
    local digits = string.sub(text, (i - 1) * WIDTH + 1, i * WIDTH)
    values[i] = string.find(digits, "%D") and -1 or tonumber(digits) -- below 0 is no number of a state
  end
  return unpack(values)
end
