-- Takes or peeks groups of charges: each group all or nothing, all groups at one time.
-- KEYS: the bucket of each charge of each group.
-- args: equal groups are sent once, as one distinct group. The distinct groups are numbered from 1. The values for the
-- driver are, for each group, the number of its distinct group. Then come the charges of each distinct group, in order.
-- The two values of a charge that depend on the script: cost, max_delay in us. Example: the clients a and b each request
-- 1 unit of 100 in a fixed window of 60 s. Both groups are the distinct group 1, which has one charge. KEYS: the buckets
-- of a and b. args: 0 (the server's time), 1 (take), 2 (values for the driver follow), 1, 1 (their distinct groups),
-- "fixed_window", "limit", 1 (charge in the group), 1 (cost), 0 (max_delay), 60000000, 100, 1, 1, 1, 1 (the limit)
-- Returns the decision on each key. The codec's file defines decision() and reply().

if #KEYS == 1 and args[6] == "limit" then -- fast path for a single limit, without the bookkeeping of groups
  check(8, 10)
  local key = KEYS[1]
  local state, expires, allowed, limit, remaining, retry_after, next_after, reset_after, delay, at =
    decide[args[5]](key, now, args[8], args[9], args[10], args[11], args[12], args[13], args[14], args[15])
  if state and args[2] == 1 then save(key, state, expires, now) end
  return reply({ decision(allowed, limit, remaining, retry_after, next_after, reset_after, delay, at) })
end

local out, passes, states, expiries = {}, {}, {}, {} -- of each key

-- Decides the charge at position `c` for key `i` at this cost, and records the results.
local function decide_charge(i, c, cost)
  local state, expires, allowed, limit, remaining, retry_after, next_after, reset_after, delay, at =
    decide[args[c]](KEYS[i], now, cost, unpack(args, c + 4, c + 10))
  states[i], expiries[i], passes[i] = state, expires, allowed == 1
  out[i] = decision(allowed, limit, remaining, retry_after, next_after, reset_after, delay, at)
end

-- Returns the text in the last braces of a key, as in group.py.
local function hash_tag(key)
  return string.match(key, "{([^{}]*)}[^{}]*$") or ""
end

local NONE = {}

-- Takes or peeks one group. Its keys follow the first `before` keys, and its charges begin at position `first`.
local function take_group(before, first)
  local refused, refusing_keys = NONE, NONE -- roles that refuse; keys of the limits that refuse
  local count = args[first + 2]
  for n = 1, count do
    local i, c = before + n, first + n * 11 - 11
    -- see cost_to_decide in group.py
    decide_charge(i, c, args[c + 1] == "penalty" and math.max(1, args[c + 3]) or args[c + 3])
    if not passes[i] then
      if refused == NONE then refused, refusing_keys = {}, {} end
      refused[args[c + 1]] = true
      if args[c + 1] == "limit" then refusing_keys[#refusing_keys + 1] = KEYS[i] end
    end
  end
  local admitted = not (refused.limit or refused.penalty)
  for n = 1, count do
    local i, c = before + n, first + n * 11 - 11
    local role = args[c + 1]
    local counts = admitted and (role == "limit" or role == "shadow" and not refused.shadow)
    if role == "penalty" and not refused.penalty and args[c + 3] > 0 then -- if a limit of its identity refused
      for _, key in ipairs(refusing_keys) do counts = counts or hash_tag(key) == hash_tag(KEYS[i]) end
    end
    if passes[i] and not counts then
      decide_charge(i, c, 0) -- not charged: report the bucket as it is
    elseif states[i] and args[2] == 1 then
      save(KEYS[i], states[i], expiries[i], now)
    end
  end
end

local distinct_groups, c = {}, CHARGES -- position of the first charge of each
while c <= #args do
  distinct_groups[#distinct_groups + 1] = c
  local count = args[c + 2]
  repeat
    check(c + 2, c + 5)
    c, count = c + 11, count - 1
  until count <= 0
end
local keys = 0
for g = 4, CHARGES - 1 do
  local first = distinct_groups[args[g]]
  keys = keys + (first and args[first + 2] or 0 / 0) -- NaN: the comparison below fails
end
if keys ~= #KEYS then error("ratelimit_mw: the groups have more or fewer charges than there are keys") end
local before = 0
for g = 4, CHARGES - 1 do
  take_group(before, distinct_groups[args[g]])
  before = before + args[distinct_groups[args[g]] + 2]
end
return reply(out)
