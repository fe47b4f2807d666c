-- How arguments and states are written where cmsgpack and struct are missing: fakeredis, in users' own tests.

local decode = cjson.decode

local function write_state(format, ...)
  return (string.gsub(string.format(string.rep("%.0f ", #format - 1), ...), " $", ""))
end

-- The numbers of a text that `write_state` wrote with a format of "<" and a "d" for each, from `least` to `most`.
local function read_state(text, least, most)
  local values = {}
  if type(text) ~= "string" then return nil end
  for digits in string.gmatch(text, "%d+") do values[#values + 1] = tonumber(digits) end
  if #values >= least and #values <= most and not string.find(text, "[^%d ]") then return values end
end
