-- Adds the reports of a process to the rings of the dashboard. `merged` in stores/live.py does the same.
-- KEYS: the hash of the processes, then one for each ring.
-- ARGV: the process, its text (empty if it ends), when it was seen, seconds that a process is kept, the most processes,
-- the time to live in ms, the number of rows; then for each row the number of its report, the number of its ring, the
-- slot, the instant, the most bytes, how many names follow; then for each name: name, admitted, refused, shadow.
-- Under asyncio, the client appends the number of the call, which this script does not return.

local processes, id = KEYS[1], ARGV[1]
local last = tonumber(string.match(redis.call("HGET", processes, id) or "", "^(%d+)") or 0)
local latest = last

local function add(key, slot, at, most, first, names)
  local order, counts = {}, {}
  local head, rest = string.match(redis.call("HGET", key, slot) or "", "^(%d+)\n(.*)$")
  if head and tonumber(head) > at then return end
  local function plus(name, a, r, s)
    local one = counts[name]
    if not one then
      order[#order + 1], one = name, { 0, 0, 0 }
      counts[name] = one
    end
    one[1], one[2], one[3] = one[1] + a, one[2] + r, one[3] + s
  end
  if head and tonumber(head) == at then
    for name, a, r, s in string.gmatch(rest, "([^\t\n]*)\t(%d+)\t(%d+)\t(%d+)\n") do plus(name, a, r, s) end
  end
  for i = first, first + 4 * names - 4, 4 do plus(ARGV[i], ARGV[i + 1], ARGV[i + 2], ARGV[i + 3]) end
  local function line(name)
    return name .. string.format("\t%.0f\t%.0f\t%.0f\n", unpack(counts[name]))
  end
  local lines, size = { string.format("%d\n", at) }, 0
  for _, name in ipairs(order) do
    if name ~= "other" then
      local text = line(name)
      size = size + #text
      if size > most then  -- counted again for each row, because the numbers grow
        plus("other", unpack(counts[name]))
      else
        lines[#lines + 1] = text
      end
    end
  end
  if counts.other then lines[#lines + 1] = line("other") end
  redis.call("HSET", key, slot, table.concat(lines))
end

local i = 8
for _ = 1, tonumber(ARGV[7]) do
  local number, names = tonumber(ARGV[i]), tonumber(ARGV[i + 5])
  if number > last then
    add(KEYS[1 + ARGV[i + 1]], ARGV[i + 2], tonumber(ARGV[i + 3]), tonumber(ARGV[i + 4]), i + 6, names)
    latest = math.max(latest, number)
  end
  i = i + 6 + 4 * names
end

local seen, all = tonumber(ARGV[3]), redis.call("HGETALL", processes)
local held = #all / 2
for n = 1, #all, 2 do
  if tonumber(string.match(all[n + 1], "^%d+ (%d+) ") or 0) < seen - ARGV[4] then
    redis.call("HDEL", processes, all[n])
    held = held - 1
  end
end
if ARGV[2] == "" then
  redis.call("HDEL", processes, id)
elseif held < tonumber(ARGV[5]) then
  redis.call("HSET", processes, id, string.format("%.0f %.0f ", latest, seen) .. ARGV[2])
end
for _, key in ipairs(KEYS) do redis.call("PEXPIRE", key, ARGV[6]) end
return 1
