-- Takes or peeks groups of charges: each group all or nothing, all groups at one time.
-- KEYS: the bucket of each charge. The two values that this driver names: cost, max_delay in us.
-- Returns per charge: allowed, limit, remaining, retry_after, next_after, reset_after, delay, at.
--   Times in us; a retry_after of -1 is never.

if #KEYS == 1 and args[4] == "limit" then -- the common case, without the bookkeeping of groups
  check(6, 8)
  local key = KEYS[1]
  local state, expires, allowed, limit, remaining, retry_after, next_after, reset_after, delay, at =
    look[args[3]](key, now, args[6], args[7], args[8], args[9], args[10], args[11], args[12], args[13])
  if state and args[2] == 1 then save(key, state, expires, now) end
  return { allowed, limit, remaining, retry_after, next_after, reset_after, delay, at }
end

local out = {}

-- Fills the answer of a charge, at this cost.
local function look_at(i, cost)
  local c, o = i * 11 - 9, i * 8 - 8
  local state, expires
  state, expires, out[o + 1], out[o + 2], out[o + 3], out[o + 4], out[o + 5], out[o + 6], out[o + 7], out[o + 8] =
    look[args[c + 1]](KEYS[i], now, cost, unpack(args, c + 5, c + 11))
  return state, expires
end

-- Whose a key is: what its last braces hold, as in group.py.
local function identity(key)
  return string.match(key, "{([^{}]*)}[^{}]*$") or ""
end

-- The charges from `first` to `last` are a group.
local function take_group(first, last)
  local states, expiries, refused, by = {}, {}, {}, {}
  for i = first, last do
    local c, o = i * 11 - 9, i * 8 - 8
    states[i], expiries[i] = look_at(i, args[c + 4])
    if out[o + 1] == 0 then
      refused[args[c + 2]] = true
      if args[c + 2] == "limit" then by[#by + 1] = KEYS[i] end
    end
  end
  local admitted = not (refused.limit or refused.penalty)
  local charged = { limit = admitted, shadow = admitted and not refused.shadow } -- by role
  for i = first, last do
    local c, o = i * 11 - 9, i * 8 - 8
    local counts = charged[args[c + 2]]
    if args[c + 2] == "penalty" and not refused.penalty then -- when a limit of its own identity refused
      for _, key in ipairs(by) do counts = counts or identity(key) == identity(KEYS[i]) end
    end
    if out[o + 1] == 1 and not counts then
      look_at(i, 0) -- room, but not charged: as it stands
    elseif states[i] and args[2] == 1 then
      save(KEYS[i], states[i], expiries[i], now)
    end
  end
end

local left = 0 -- charges that the group has from here on
for i = 1, #KEYS do
  local c = i * 11 - 9
  check(c + 3, c + 6)
  if left == 0 then left = args[c + 3] end
  left = left - 1
end
if left ~= 0 then error("ratelimit_mw: the last group has another number of charges than it says") end
local first = 1
while first <= #KEYS do
  local last = first + args[first * 11 - 6] - 1
  take_group(first, last)
  first = last + 1
end
return out
