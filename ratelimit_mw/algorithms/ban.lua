-- Ban: the Lua implementation of ban.py, with the same steps on the same whole numbers.
-- State: count (refusals), start (us); during a ban also until (us).
-- Numbers of the limit: length (us), quota (refusals), ban (us).

if decide.ban then
  -- Returns count, start, the end of the ban (nil without one), and the end that is stored.
  local function read(key, now, length, quota, ban)
    local count, start, written = load(key)
    if not start then return 0, now end
    local first = start < now and start or now
    if written then
      if written <= now then return 0, now end
      return quota, first, math.min(written, now + ban), written
    end
    if now - start >= length then return 0, now end
    return count, first
  end

  local function write(count, start, ends, length)
    if ends then return write_state("<ddd", count, start, ends), ends end
    return write_state("<dd", count, start), start + length
  end

  function decide.ban(key, now, cost, _, length, quota, ban)
    local count, start, ends, written = read(key, now, length, quota, ban)
    local rest, retry_after, reset_after, state, expires = ban, 0, 0, nil, nil
    if ends then
      rest = ends - now
      if cost > 0 then
        retry_after = rest
        if written ~= ends then state, expires = write(count, start, ends, length) end
      end
    elseif cost > 0 then
      count = math.min(count + cost, quota)
      if count == quota then ends = now + ban end
      state, expires = write(count, start, ends, length)
    end
    if ends then reset_after = ends - now elseif count > 0 then reset_after = start + length - now end
    return state, expires, retry_after == 0 and 1 or 0, quota, quota - count, retry_after, rest, reset_after, 0, now
  end

  if settle then
    function settle.ban(key, now, delta, at, length, quota, ban)
      local count, start, ends = read(key, now, length, quota, ban)
      if delta > 0 and not ends then
        count = math.min(count + delta, quota)
        return write(count, start, count == quota and now + ban or nil, length)
      end
      if delta >= 0 or at < (ends and ends - ban or start) then return nil end
      count = count + delta
      if count <= 0 or now - start >= length then return false end
      return write(count, start, nil, length)
    end
  end
end
