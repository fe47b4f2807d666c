-- Fair shares of slots: the Lua implementation of algorithms/fair_slots.py, with the same slots under the same names.
-- State: a sorted set. The member of a slot is its name and its holder, 16 digits each, and its score is its end (us). The
-- member of a note is the holder, and its score is negative.
-- Numbers of the limit: lifetime (us), quota (slots), retry (us), holder.

if decide.fair_slots then
  local max, min = math.max, math.min
  local TENTH, WAITS, SLOTS = 100000, 15, 32768 -- as in fair_slots.py
  local MOST = 10000 -- slots in one settlement

  local function named(number)
    return string.format("%016.0f", number)
  end

  -- Returns what the holder finds, as `_View` in fair_slots.py. `own`: its digits. `used` is 0 if the key contains
  -- anything but such a set; then `is_foreign`.
  local function read(key, now, own, quota)
    local view = { used = 0, last = 0, notes = {}, gone = {}, note = 0, waiting = 0 }
    local known, dropped, notes, scores = 0, 0, view.notes, nil
    view.waits_until = (now - now % TENTH) / TENTH + WAITS
    local first, ends = (view.waits_until - WAITS + 1) * SLOTS, (view.waits_until + 1) * SLOTS
    local found = redis.pcall("ZRANGE", key, -1, -1, "WITHSCORES")
    if found.err then
      if not string.find(found.err, "WRONGTYPE", 1, true) then error(found.err) end -- see `load`
      view.is_foreign = true
    elseif found[1] then
      view.last = tonumber(found[2])
      view.is_foreign = string.find(found[1], "%D") or #found[1] % 16 ~= 0 or view.last % 1 ~= 0
    end
    local exists = found[1] and not view.is_foreign

    local function note_of(holder)
      if notes[holder] then return notes[holder] end
      local score = exists and redis.call("ZSCORE", key, holder)
      return score and -tonumber(score) or 0
    end

    if exists then
      for _, range in ipairs({ { "-inf", -ends }, { 1 - first, -SLOTS } }) do
        scores = redis.call("ZRANGEBYSCORE", key, range[1], range[2], "WITHSCORES")
        for i = 1, #scores, 2 do notes[scores[i]] = -tonumber(scores[i + 1]) % SLOTS end
      end
      view.gone = redis.call("ZRANGEBYSCORE", key, 0, now)
      for _, slot in ipairs(view.gone) do
        local holder = string.sub(slot, 17)
        notes[holder] = note_of(holder) - 1
      end
      for _, note in pairs(notes) do
        if note == 0 then dropped = dropped + 1 end
      end
      view.used = redis.call("ZCOUNT", key, now + 1, "+inf")
      view.waiting = redis.call("ZCOUNT", key, 1 - ends, -first)
      known = redis.call("ZCOUNT", key, "-inf", -1) - dropped
    end
    view.note = note_of(own)
    view.held = view.note % SLOTS
    local active = known + (view.note == 0 and 1 or 0)
    view.share = (quota + -quota % active) / active
    view.others_wait = view.waiting > (first <= view.note and view.note < ends and 1 or 0)
    view.has_room = view.note > 0 or known < 2 * quota
    return view
  end

  -- Writes slots that are held or released, and the notes of a view.
  local function write(key, now, length, view, held, released)
    if view.is_foreign then redis.call("UNLINK", key) end
    for _, slot in ipairs(view.gone) do redis.call("ZREM", key, slot) end
    if view.last > now + length then
      for _, slot in ipairs(redis.call("ZRANGEBYSCORE", key, now + length + 1, "+inf")) do
        redis.call("ZADD", key, now + length, slot)
      end
    end
    for _, slot in ipairs(held) do redis.call("ZADD", key, now + length, slot) end
    for _, slot in ipairs(released) do redis.call("ZREM", key, slot) end
    for holder, note in pairs(view.notes) do
      if note == 0 then redis.call("ZREM", key, holder) else redis.call("ZADD", key, -note, holder) end
    end
  end

  function decide.fair_slots(key, now, cost, _, length, quota, retry, holder)
    local own = named(holder)
    local view = read(key, now, own, quota)
    local used, held, ahead = view.used, view.held, view.last > now + length
    local most = view.others_wait and view.share or quota
    local allowed, retry_after, at, shown, state = 1, 0, now, most, nil
    local function save_notes() write(key, now, length, view, {}, {}) end
    if cost > 0 and used + cost > quota then
      allowed, shown, retry_after = 0, quota, cost <= quota and retry or -1
      if cost <= quota and held < view.share and view.has_room then
        view.notes[own] = view.waits_until * SLOTS + held
      end
      if (view.notes[own] or view.note) ~= view.note or ahead then state = save_notes end
    elseif cost > 0 and held > 0 and held + cost > most then
      allowed, retry_after = 0, retry
      if ahead then state = save_notes end
    elseif cost > 0 then
      local i = 0
      while i < cost do
        local ends = used > 0 and redis.call("ZSCORE", key, named(at + i) .. own)
        i = i + 1
        if ends and tonumber(ends) > now then at, i = at + i, 0 end
      end
      used, held = used + cost, held + cost
      view.notes[own] = held
      state = function()
        local slots = {}
        for n = 1, cost do slots[n] = named(at + n - 1) .. own end
        write(key, now, length, view, slots, {})
      end
    end
    local remaining, reset_after = max(0, min(quota - used, most - held)), used > 0 and retry or 0
    return state, now + max(length, WAITS * TENTH), allowed, shown, remaining, retry_after, retry, reset_after, 0, at
  end

  if settle then
    function settle.fair_slots(key, now, delta, at, length, quota, _, holder)
      local own = named(holder)
      local view = read(key, now, own, quota)
      local room = delta > 0 and at <= MAX_EXACT / 2 and max(0, 2 * quota - view.used) or 0
      local current, lost = {}, {}
      for i = 1, min(math.abs(delta), MOST) do
        local slot = named(at + i - 1) .. own
        local ends = view.used > 0 and redis.call("ZSCORE", key, slot)
        if ends and tonumber(ends) > now then
          current[#current + 1] = slot
        elseif #lost < room then
          lost[#lost + 1] = slot
        end
      end
      if delta < 0 then
        if #current == 0 then return nil end
        if #current == view.used and view.waiting == 0 then return false end
        view.notes[own] = view.note - #current
        return function() write(key, now, length, view, {}, current) end, now + max(length, WAITS * TENTH)
      end
      if at > MAX_EXACT / 2 or #current + #lost == 0 then return nil end
      view.notes[own] = view.note + #lost
      for _, slot in ipairs(lost) do current[#current + 1] = slot end
      return function() write(key, now, length, view, current, {}) end, now + max(length, WAITS * TENTH)
    end
  end
end
