-- What algorithms and drivers find in scope. A script is: a codec, this head, the algorithms, a driver.
--
-- A decision is allowed (1 or 0), limit, remaining, retry_after, next_after, reset_after, delay, at: times in us; a
-- retry_after of -1 is never. How the client is told of it is a matter of the codec.
--
-- All of it runs on every call, and a function that is made costs as much as a few lines that run. So what a call does
-- not need is not made, and whole numbers are divided by operators: floor(a / b) is (a - a % b) / b, and ceil(a / b) is
-- (a + -a % b) / b.

-- args[1]: a told time in us, or 0 for the server's own; args[2]: 0 to peek, 1 to take, 2 to settle; args[3]: how many
-- values follow that the driver names. Behind them eleven values for each charge: algorithm, role, how many charges its
-- group has, the two that the driver names, the numbers of its limit, which 1 makes up to six. All in one flat list: one
-- table is made at its full size at once, several would grow value by value.
local args = { decode(ARGV[1]) }
local has_injected_time = args[1] ~= 0
local CHARGES = args[3] + 4 -- where they begin
local look = {} -- algorithm = its function, at first true: it is needed
for c = CHARGES, #args, 11 do look[args[c]] = true end
local settle = args[2] == 2 and {}
local forgiven = 0 -- units of a correction beyond the debt that a limit bears

local EXACT = 9007199254740992 -- 2^53: whole numbers up to here are doubles

-- The numbers of a charge, from position `first` on, must be whole and exact: at last the six of its limit, from
-- `numbers` on, of which the first four are above 0. The client checked them, and so does whoever holds the data;
-- before anything is written. NaN fails every comparison; text, and what is missing, cannot be compared.
local function check(first, numbers)
  for i = first, numbers + 5 do
    local x = args[i]
    if not (x > 0 and x <= EXACT and x % 1 == 0 or x == 0 and (i < numbers or i > numbers + 3)) then
      error("ratelimit_mw: argument " .. i .. " is no whole number that is allowed there")
    end
  end
end

local load_six -- the numbers of a state that has six, from its text
if look.smooth then
  function load_six(text)
    local a, b, c, d, e, f = unpack_state("<dddddd", text)
    for _, x in ipairs({ a, b, c, d, e, f }) do
      if not (x >= 0 and x <= EXACT and x % 1 == 0) then return nil end
    end
    return a, b, c, d, e, f
  end
end

-- The numbers of a state, one to three of them (of `smooth` six), or nothing if there is none. Another type, or numbers
-- that no state can hold, count as none: such a key is overwritten by the next charge. Any other error is raised: what
-- the server does not let us read must not pass for a bucket that nobody has used.
local function load(key)
  local text = redis.pcall("GET", key) -- or false, or an error, which has no length
  if not text then return nil end
  local n, a, b, c = #text / WIDTH, -1, nil, nil
  if n == 1 then
    a = unpack_state("<d", text)
  elseif n == 2 then
    a, b = unpack_state("<dd", text)
  elseif n == 3 then
    a, b, c = unpack_state("<ddd", text)
  elseif n == 6 and load_six then
    return load_six(text)
  elseif text.err and not string.find(text.err, "WRONGTYPE", 1, true) then
    error(text.err)
  end
  if not (a >= 0 and a <= EXACT and a % 1 == 0) then return nil end
  if n == 1 then return a end
  if not (b >= 0 and b <= EXACT and b % 1 == 0) then return nil end
  if n == 2 then return a, b end
  if c >= 0 and c <= EXACT and c % 1 == 0 then return a, b, c end
end

-- Keeps a state until the instant from which it means nothing, rounded up. The server counts a time to live from a clock
-- read before the script's, however long before, so an instant is said; or a millisecond more where each write renews it.
-- By a told clock nobody knows which instant that is, and it may step back: its states live an hour longer.
-- A state is the text to keep, or a function that writes it. `expires` false: the key expires then already, which saves
-- the server more than half of the write.
local function save(key, state, expires, now)
  if not expires then
    redis.call("SET", key, state, "KEEPTTL")
  elseif type(state) == "string" and not has_injected_time then
    redis.call("SET", key, state, "PXAT", (expires + -expires % 1000) / 1000)
  else
    local px = (expires - now + -(expires - now) % 1000) / 1000 + 1
    if has_injected_time then px = px + 3600000 end
    if type(state) == "string" then
      redis.call("SET", key, state, "PX", px)
    else
      state()
      redis.call("PEXPIRE", key, px)
    end
  end
end

local now = args[1]
if not has_injected_time then
  local time = redis.call("TIME")
  now = time[1] * 1000000 + time[2]
elseif not (now > 0 and now <= EXACT and now % 1 == 0) then
  error("ratelimit_mw: the told time is no whole number up to 2^53")
end
