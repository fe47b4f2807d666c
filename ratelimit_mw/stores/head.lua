-- What algorithms and drivers find in scope. A script is: a codec, this head, the algorithms, a driver.

-- args[1]: a told time in us, or 0 for the server's own; args[2]: { names of the algorithms used }; the rest is the driver's.
local args = decode(ARGV[1])
local look, settle, wanted = {}, {}, {}
for i = 1, #args[2] do wanted[args[2][i]] = true end -- closures of algorithms that are not used are not made

local HOUR = 3600000 -- ms

-- Whether x is a whole number that a double counts exactly. NaN fails every comparison.
local function whole(x)
  return type(x) == "number" and x >= 0 and x <= 9007199254740992 and x % 1 == 0
end

-- All numbers of a charge from position `first` on, those of its limit from `numbers` on, of which the first four are
-- above 0. The client checked them, and so does whoever holds the data; before anything is written.
local function check(charge, first, numbers)
  for i = first, #charge do
    local least = i >= numbers and i < numbers + 4 and 1 or 0
    if not whole(charge[i]) or charge[i] < least then
      error("ratelimit_mw: argument " .. i .. " of a charge is no whole number from " .. least .. " to 2^53")
    end
  end
end

-- The numbers of a state, from `least` to `most` of them, or nil if there is none. Another type, or numbers that no
-- state can hold, count as none: such a key is overwritten by the next charge.
local function load(key, least, most)
  local text = redis.pcall("GET", key)
  if type(text) ~= "string" then return nil end
  local values = read_state(text, least, most)
  if not values then return nil end
  for i = 1, #values do
    if not whole(values[i]) then return nil end
  end
  return values
end

local function now_us()
  if args[1] ~= 0 then
    if not whole(args[1]) then error("ratelimit_mw: the told time is no whole number up to 2^53") end
    return args[1]
  end
  local time = redis.call("TIME")
  return time[1] * 1000000 + time[2]
end

-- Keeps a state until the instant from which it means nothing: rounded up, and a millisecond more, because the server
-- expires keys on a clock read before the script's. A told clock may step back, so its states live an hour longer.
-- A state is the text to keep, or a function that writes it.
local function save(key, state, expires, now)
  local px = math.ceil((expires - now) / 1000) + 1
  if args[1] > 0 then px = px + HOUR end
  if type(state) == "string" then
    redis.call("SET", key, state, "PX", px)
  else
    state()
    redis.call("PEXPIRE", key, px)
  end
end
