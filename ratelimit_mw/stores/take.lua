-- Takes or peeks groups of charges: each group all or nothing, all groups at one time.
-- KEYS: the bucket of each charge, group after group.
-- ARGV[1]: { told time, { parts }, 1 to take or 0 to peek, group, ... }; a group is its charges one after the other, ten
--   values each: algorithm, role, cost, max_delay in us, the numbers of its limit, which 1 makes up to six.
-- Returns per charge: allowed, limit, remaining, retry_after, next_after, reset_after, delay, at.
--   Times in us; a retry_after of -1 is never.

local group = args[4]
if #KEYS == 1 and group[2] == "limit" then -- the common case, without the bookkeeping of groups
  check(group, 3, 5)
  local state, expires, allowed, limit, remaining, retry_after, next_after, reset_after, delay, at =
    look[group[1]](KEYS[1], now, group[3], group[4], group[5], group[6], group[7], group[8], group[9], group[10])
  if state and args[3] == 1 then save(KEYS[1], state, expires, now) end
  return { allowed, limit, remaining, retry_after, next_after, reset_after, delay, at }
end

local out, keys = {}, 0

local function look_at(key, group, c, cost, o)
  local state, expires
  state, expires, out[o + 1], out[o + 2], out[o + 3], out[o + 4], out[o + 5], out[o + 6], out[o + 7], out[o + 8] =
    look[group[c + 1]](
      key, now, cost, group[c + 4], group[c + 5], group[c + 6], group[c + 7], group[c + 8], group[c + 9], group[c + 10])
  return state, expires
end

local function take_group(group)
  local states, expiries, refused = {}, {}, {}
  local base, charges = #out, #group / 10
  for i = 1, charges do
    local c, o = (i - 1) * 10, base + (i - 1) * 8
    states[i], expiries[i] = look_at(KEYS[keys + i], group, c, group[c + 3], o)
    if out[o + 1] == 0 then refused[group[c + 2]] = true end
  end
  local admitted = not (refused.limit or refused.penalty)
  local charged = { -- by role; a penalty is charged exactly when a limit refused and it did not
    limit = admitted,
    shadow = admitted and not refused.shadow,
    penalty = refused.limit and not refused.penalty,
  }
  for i = 1, charges do
    local c, o, key = (i - 1) * 10, base + (i - 1) * 8, KEYS[keys + i]
    if out[o + 1] == 1 and not charged[group[c + 2]] then
      look_at(key, group, c, 0, o) -- room, but not charged: as it stands
    elseif states[i] and args[3] == 1 then
      save(key, states[i], expiries[i], now)
    end
  end
  keys = keys + charges
end

for g = 4, #args do
  for c = 0, #args[g] - 1, 10 do check(args[g], c + 3, c + 5) end
end
for g = 4, #args do take_group(args[g]) end
return out
