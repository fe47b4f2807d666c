-- Limits that keep units for other charges of their bucket: `decide_keeping` of core/keeping.py. Such a limit has the name
-- of its algorithm, a plus, and the units: "gcra+40". A charge is decided as if it cost so much more, and takes its cost.

for _, name in ipairs(keeping or {}) do
  local algorithm, keep = string.match(name, "^(.*)%+(%d+)$")
  local inner = decide[algorithm]
  keep = tonumber(keep)
  decide[name] = function(key, now, cost, ...)
    if cost > 0 then
      local found = { inner(key, now, cost + keep, ...) }
      if found[3] ~= 1 then return unpack(found, 1, 10) end
    end
    return inner(key, now, cost, ...)
  end
end
