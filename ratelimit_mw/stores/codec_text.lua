-- How arguments and states are written where cmsgpack and struct are missing: fakeredis, in users' own tests.

local function decode(text)
  return unpack(cjson.decode(text))
end

local function write_state(format, ...)
  return (string.gsub(string.format(string.rep("%.0f ", #format - 1), ...), " $", ""))
end

-- How many numbers a text holds that `write_state` wrote with a format of "<" and a "d" for each, and these; nothing if
-- it holds none, or more than `most`.
local function read_state(text, most)
  local values = {}
  if type(text) ~= "string" or string.find(text, "[^%d ]") then return nil end
  for digits in string.gmatch(text, "%d+") do values[#values + 1] = tonumber(digits) end
  if #values > 0 and #values <= most then return #values, unpack(values) end
end
