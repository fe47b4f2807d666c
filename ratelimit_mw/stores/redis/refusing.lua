-- Reads a page of keys, and finds the buckets that would refuse a charge of one unit. Each is decided alone, and none is
-- changed.
-- args[4]: 1 if one command can read several keys. The two values of a charge that depend on the script: cost, max_delay
-- in us.
-- ARGV[2] to ARGV[4]: cursor, pattern and count of SCAN. Then the end of a key, `rule:bucket-id`, for each charge.
-- Returns the next cursor, the keys of the buckets that would refuse, and the keys that the client has to examine: those
-- with another end, and those that this server may not read, because their slot is moving to another server.
--
-- Most buckets have room, so a fast test for room comes first: one command reads all states of a page, and the tests
-- from `has_room` compare each with a number. In a cluster each state is read alone, because the keys of a page have
-- several slots.

local positions = {} -- of the charges in `args`, by the end of the key
for i = 5, #ARGV do
  local c = CHARGES + (i - 5) * 11
  check(c + 3, c + 5)
  positions["}:" .. ARGV[i]] = c
end
if not takes_over then
  function write_state() end -- nothing is saved, so no algorithm needs to write a state
end

local page = redis.call("SCAN", ARGV[2], "MATCH", ARGV[3], "COUNT", ARGV[4])
local keys, refusing, others, find, match, sub, n = page[2], {}, {}, string.find, string.match, string.sub, 0
local states = args[4] == 1 and #keys > 0 and #keys < 7000 and redis.pcall("MGET", unpack(keys)) -- unpacks up to 8,000
if states and states.err then states = nil end -- the user may read single keys only
local tests = {} -- from `has_room`, by position of the charge

-- Returns whether the test of the algorithm finds room in the bucket at `key`.
local function admits(c, key)
  local test = tests[c]
  if test == nil then
    local make = has_room[args[c]]
    test = make and make(now, args[c + 3], unpack(args, c + 5, c + 10)) or false
    tests[c] = test
  end
  if not test then return false end
  local text
  if states then text = states[n] else text = redis.pcall("GET", key) end
  return type(text) == "string" and test(text)
end

local function read_on()
  while n < #keys do
    n = n + 1
    local key = keys[n]
    local c = positions[sub(key, find(key, "}:", 1, true) or 1)] or positions[match(key, "}:[^}]*$")]
    if not c then
      others[#others + 1] = key
    elseif not admits(c, key) then
      local _, _, allowed = decide[args[c]](key, now, args[c + 3], unpack(args, c + 4, c + 10))
      if allowed ~= 1 then refusing[#refusing + 1] = key end
    end
  end
end

while not pcall(read_on) do others[#others + 1] = keys[n] end
return { page[1], refusing, others }
