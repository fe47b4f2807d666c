-- Defines what algorithms and drivers share. A script is a codec (decode, decision and reply), this head, takeover.lua,
-- bucket.lua, closed.lua, the algorithms, fair_slots.lua, keep.lua and a driver. The driver is the entry script, take.lua,
-- settle.lua or refusing.lua: it calls the algorithms and returns the reply.
--
-- A decision is eight values, always in this order: allowed, limit, remaining, retry_after, next_after, reset_after,
-- delay, at. An algorithm returns them after a state and its expiry. They are whole numbers: `allowed` is 1 or 0, all
-- times are in us, and a retry_after of -1 means never. codec_text.lua replies with these numbers, and the client
-- converts them. codec_msgpack.lua converts them in its reply: `allowed` to a boolean, durations to seconds, and a
-- retry_after of -1 to infinity; `at` stays in us.
--
-- A script runs as a whole on every call, and creating a function takes as long as running a few lines. So a call
-- creates only the functions that it needs. Integers are divided with operators, not with calls of functions:
-- floor(a / b) is (a - a % b) / b, and ceil(a / b) is (a + -a % b) / b.

-- args[1]: injected time in us, or 0 for the server's time. args[2]: the mode: 0 or 1 in take.lua, to peek or to take;
-- 2 in settle.lua; 3 in refusing.lua. args[3]: how many values for the driver follow. After these, eleven values for
-- each charge: algorithm, role, number of charges in its group, two values that the driver defines, and six numbers of
-- its limit, padded with 1. The list is flat, because Lua creates one table at its full size, while nested tables would
-- grow value by value.
local args = { decode(ARGV[1]) }
local has_injected_time = args[1] ~= 0
local CHARGES = args[3] + 4 -- position of the first charge
-- Decision functions by name of the algorithm. First each algorithm that a charge uses is marked with `true`. Its file,
-- which follows below, replaces the mark with its function. The files of other algorithms define nothing.
local decide = {}
for c = CHARGES, #args, 11 do decide[args[c]] = true end
local keeping -- only with limits that keep units, see keep.lua: their names
for name in pairs(decide) do
  if string.find(name, "%+%d+$") then
    keeping = keeping or {}
    keeping[#keeping + 1] = name
  end
end
for _, name in ipairs(keeping or {}) do
  decide[name] = nil
  decide[string.match(name, "^(.*)%+")] = true
end
-- Only with limits that take over units, see takeover.lua: their names, and what each algorithm defines for them.
local takes_over, counting, scale_up
for name in pairs(decide) do
  if string.find(name, " ", 1, true) then
    takes_over = takes_over or {}
    takes_over[name] = true
  end
end
local settle = args[2] == 2 and {} -- by name of an algorithm: its correction function; false in take.lua
-- Only in refusing.lua. By name of an algorithm whose state is a text: a function that returns a test of such a text.
-- The test returns true only if the bucket admits a charge, and is faster than a decision.
local has_room = args[2] == 3 and {}

local MAX_EXACT = 9007199254740992 -- 2^53: doubles represent integers up to here exactly

-- Checks the numbers of a charge from position `first` on, before any write: they must be exact integers. The last six,
-- from position `numbers` on, are those of its limit; the first four of these must be above 0. The client has checked
-- them, too, but a wrong number would corrupt stored states. NaN fails every comparison; comparing text or nil raises.
local function check(first, numbers)
  for i = first, numbers + 5 do
    local x = args[i]
    if not (x > 0 and x <= MAX_EXACT and x % 1 == 0 or x == 0 and (i < numbers or i > numbers + 3)) then
      error("ratelimit_mw: argument " .. i .. " is not a whole number in its range")
    end
  end
end

local get = redis.pcall -- reads the text of a key

local load_six -- returns the numbers of a state that has six, from its text; nil if one is invalid
if decide.smooth or takes_over then
  function load_six(text)
    local a, b, c, d, e, f = unpack_state("<dddddd", text)
    for _, x in ipairs({ a, b, c, d, e, f }) do
      if not (x >= 0 and x <= MAX_EXACT and x % 1 == 0) then return nil end
    end
    return a, b, c, d, e, f
  end
end

-- Returns the numbers of a state: one to three, or six for `smooth`; nil if the key does not exist. A key of another
-- type or with invalid numbers counts as missing, and the next charge overwrites it. Raises any other error, because a
-- bucket that the script may not read must not count as unused.
local function load(key)
  local text = get("GET", key) -- a text, false, or an error table, whose `#` is 0
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
  if not (a >= 0 and a <= MAX_EXACT and a % 1 == 0) then return nil end
  if n == 1 then return a end
  if not (b >= 0 and b <= MAX_EXACT and b % 1 == 0) then return nil end
  if n == 2 then return a, b end
  if c >= 0 and c <= MAX_EXACT and c % 1 == 0 then return a, b, c end
end

-- Stores a state until `expires`, rounded up: the instant from which the state has no effect. `state`: its text, or a
-- function that writes it. `expires`: false keeps the expiry of the key, which saves the server more than half of the
-- write.
--
-- The server counts a time to live from its own reading of the clock, which may be older than `now`. So a text is SET
-- with an absolute time (PXAT). A state that a function writes gets a time to live (PEXPIRE), which is a millisecond
-- longer to allow for that. An injected time is unrelated to the server's clock and may step back, so such states live
-- an hour longer.
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
elseif not (now > 0 and now <= MAX_EXACT and now % 1 == 0) then
  error("ratelimit_mw: the injected time is not a whole number up to 2^53")
end
