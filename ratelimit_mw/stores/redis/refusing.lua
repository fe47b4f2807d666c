-- Returns the positions, from 0, of the buckets of one limit that would refuse a charge. Each is decided alone, and none
-- is changed. KEYS: the buckets. Before the charge: one value, which is not used. The two values of the charge that
-- depend on the script: cost, max_delay in us.

check(8, 10)
local found, peek, cost, max_delay = {}, decide[args[5]], args[8], args[9]
local a, b, c, d, e, f = unpack(args, 10, 15)
for i, key in ipairs(KEYS) do
  local _, _, allowed = peek(key, now, cost, max_delay, a, b, c, d, e, f)
  if allowed ~= 1 then found[#found + 1] = i - 1 end
end
return found
