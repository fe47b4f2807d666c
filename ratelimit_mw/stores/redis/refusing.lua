-- Reads a page of keys, and finds the buckets that would refuse a charge of one unit. Each is decided alone, and none is
-- changed. ARGV[2] to ARGV[4]: cursor, pattern and count of SCAN. Then the end of a key, `rule:limit-id`, for each
-- charge. The two values of a charge that depend on the script: cost, max_delay in us.
-- Returns the next cursor, the keys of the buckets that would refuse, and the keys that the client has to look at: those
-- with another end, and those that this server may not read, as their slot is moving to another one.

local positions = {} -- of the charges in `args`, by the end of the key
for i = 5, #ARGV do
  local c = CHARGES + (i - 5) * 11
  check(c + 3, c + 5)
  positions[ARGV[i]] = c
end
function write_state() end -- nothing is saved, so no algorithm needs to write a state

local page = redis.call("SCAN", ARGV[2], "MATCH", ARGV[3], "COUNT", ARGV[4])
local keys, refusing, others, match, n = page[2], {}, {}, string.match, 0

local function read_on()
  while n < #keys do
    n = n + 1
    local key = keys[n]
    local c = positions[match(key, "}:([^}]*)$")]
    if not c then
      others[#others + 1] = key
    else
      local admits = has_room[args[c]]
      if not (admits and admits(key, args[c + 3], unpack(args, c + 5, c + 10))) then
        local _, _, allowed = decide[args[c]](key, now, args[c + 3], unpack(args, c + 4, c + 10))
        if allowed ~= 1 then refusing[#refusing + 1] = key end
      end
    end
  end
end

while not pcall(read_on) do others[#others + 1] = keys[n] end
return { page[1], refusing, others }
