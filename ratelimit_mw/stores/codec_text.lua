-- How arguments and states are written where cmsgpack and struct are missing: fakeredis, in users' own tests.

local decode = cjson.decode

local function read_state(text, least, most)
  local values = {}
  for digits in string.gmatch(text, "%d+") do values[#values + 1] = tonumber(digits) end
  if #values >= least and #values <= most and not string.find(text, "[^%d ]") then return values end
end

local function write_state(n, ...)
  return (string.gsub(string.format(string.rep("%.0f ", n), ...), " $", ""))
end
