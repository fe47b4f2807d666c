-- Takes or peeks groups of charges: each group all or nothing, all groups at one time.
-- KEYS: the bucket of each charge, group after group.
-- ARGV[1]: { told time, { parts }, 1 to take or 0 to peek, group, ... }; a group is { charge, ... }; a charge is
--   { algorithm, role, cost, max_delay in us, the numbers of its limit ... }.
-- Returns per charge: allowed, limit, remaining, retry_after, next_after, reset_after, delay, at.
--   Times in us; a retry_after of -1 is never.

local charge = args[4][1]
if #KEYS == 1 and charge[2] == "limit" then -- the common case, without the bookkeeping of groups
  check(charge, 3, 5)
  local state, expires, allowed, limit, remaining, retry_after, next_after, reset_after, delay, at =
    look[charge[1]](KEYS[1], now, charge[3], charge[4], charge[5], charge[6], charge[7], charge[8], charge[9], charge[10])
  if state and args[3] == 1 then save(KEYS[1], state, expires, now) end
  return { allowed, limit, remaining, retry_after, next_after, reset_after, delay, at }
end

local out, keys = {}, 0

local function look_at(key, charge, cost, o)
  local state, expires
  state, expires, out[o + 1], out[o + 2], out[o + 3], out[o + 4], out[o + 5], out[o + 6], out[o + 7], out[o + 8] =
    look[charge[1]](key, now, cost, charge[4], charge[5], charge[6], charge[7], charge[8], charge[9], charge[10])
  return state, expires
end

local function take_group(charges)
  local states, expiries, refused = {}, {}, {}
  local base = #out
  for i, charge in ipairs(charges) do
    local o = base + (i - 1) * 8
    states[i], expiries[i] = look_at(KEYS[keys + i], charge, charge[3], o)
    if out[o + 1] == 0 then refused[charge[2]] = true end
  end
  local admitted = not (refused.limit or refused.penalty)
  local charged = { -- by role; a penalty is charged exactly when a limit refused and it did not
    limit = admitted,
    shadow = admitted and not refused.shadow,
    penalty = refused.limit and not refused.penalty,
  }
  for i, charge in ipairs(charges) do
    local o, key = base + (i - 1) * 8, KEYS[keys + i]
    if out[o + 1] == 1 and not charged[charge[2]] then
      look_at(key, charge, 0, o) -- room, but not charged: as it stands
    elseif states[i] and args[3] == 1 then
      save(key, states[i], expiries[i], now)
    end
  end
  keys = keys + #charges
end

for group = 4, #args do
  for _, one in ipairs(args[group]) do check(one, 3, 5) end
end
for group = 4, #args do take_group(args[group]) end
return out
