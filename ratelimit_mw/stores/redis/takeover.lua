-- Limits that take over what another limit with the same name has counted: computes what algorithms/takeover.py
-- computes. The algorithm of such a charge is "used" or "share", a space and a name, such as "used gcra".
--
-- State: the head, which is the limit that wrote it (number of the algorithm, six numbers of the limit), followed by the
-- state of that limit. In a sorted set, the head is a member with the score -inf.

local held -- units by key: the present state of a sliding_window_log that does not exist yet
if takes_over then
  local WRITERS = { -- the head contains the positions, so new algorithms come last
    "fixed_window",
    "sliding_window_counter",
    "sliding_window_log",
    "token_bucket",
    "gcra",
    "leaky_bucket",
    "smooth",
    "ban",
    "calendar_window",
  }
  local HEAD, HEAD_WIDTH = "<ddddddd", 7 * WIDTH
  local floor, ceil, max, sub = math.floor, math.ceil, math.max, string.sub
  local position_of = {}
  for position, name in ipairs(WRITERS) do
    position_of[name] = position
    if has_room then decide[name] = decide[name] or true end -- the keys of a page may have states of any limit
  end

  local texts = {} -- by key, the state without its head, as algorithms have to see it; false for no state
  function get(command, key)
    if texts[key] ~= nil then return texts[key] end
    return redis.pcall(command, key)
  end

  -- Returns the text of a key and false, or the head in its sorted set and true; nil without either.
  local function read(key)
    local text = redis.pcall("GET", key)
    if type(text) == "string" then return text, false end
    if not text then return nil, false end
    if not string.find(tostring(text.err), "WRONGTYPE", 1, true) then error(text.err) end -- see `load`
    return redis.pcall("ZRANGE", key, 0, 0)[1], true
  end

  -- Only the functions of algorithms are created that charge or that wrote a state. In most calls all limits find states
  -- of their own: then nothing has to be converted. With several keys, one may repeat with another limit.
  for name in pairs(takes_over) do
    name = string.match(name, " (.*)")
    decide[name] = decide[name] or true
  end
  local looks = {} -- by key: what `read` returned, until its first use
  local own_head -- of a single charge
  if #KEYS == 1 then
    local name = string.match(args[CHARGES], " (.*)")
    own_head = write_state(HEAD, position_of[name], unpack(args, CHARGES + 5, CHARGES + 10))
  end
  local converts = has_room or #KEYS > 1
  for _, key in ipairs(KEYS) do
    local text, is_set = read(key)
    looks[key] = { text, is_set }
    if text and #text >= HEAD_WIDTH then
      local name = WRITERS[unpack_state("<d", text)]
      if name then decide[name] = decide[name] or true end
      converts = converts or sub(text, 1, HEAD_WIDTH) ~= own_head
    end
  end
  if converts then
    counting, held, settle = {}, {}, settle or {}
  end

  -- Reads a key. Returns the name of the algorithm that wrote it, the numbers of its limit, and the head; nil without a
  -- valid state.
  local function open(key)
    local look = looks[key] or { read(key) }
    local text, is_set = look[1], look[2]
    looks[key], texts[key] = nil, false
    if not text or #text < HEAD_WIDTH then return nil end
    local head = sub(text, 1, HEAD_WIDTH)
    local numbers = { unpack_state(HEAD, head) }
    for i = 1, 7 do
      local x = numbers[i]
      if not (x >= 0 and x <= MAX_EXACT and x % 1 == 0 and (x > 0 or i > 5)) then return nil end
    end
    local name = WRITERS[table.remove(numbers, 1)]
    if not name or (name == "sliding_window_log") ~= is_set then return nil end
    numbers[7] = nil -- where struct.unpack ended
    if not is_set then texts[key] = sub(text, HEAD_WIDTH + 1) end
    return name, numbers, head
  end

  -- Returns the state with this head. A sorted set has lost that of another limit by then, among expired units.
  local function with_head(key, head, state)
    if type(state) == "string" then return head .. state end
    if not state then return state end
    return function()
      state()
      redis.call("ZADD", key, "-inf", head)
    end
  end

  local decide_over, decide_over_ban
  if counting then
    function scale_up(units, by, of)
      local product = units * by
      if product < MAX_EXACT then return (product + -product % of) / of end
      return ceil(units / of * by) + 1
    end

    local function scale_down(units, by, of)
      local product = units * by
      if product < MAX_EXACT then return (product - product % of) / of end
      return max(0, floor(units / of * by) - 1)
    end

    -- Decides on the state of another limit. See `_decide_over` in takeover.py.
    function decide_over(is_share, key, now, cost, max_delay, name, numbers, head, old, old_numbers, old_head)
      local mine, theirs = counting[name], counting[old]
      local my_capacity, their_capacity = mine.capacity(unpack(numbers)), theirs.capacity(unpack(old_numbers))
      local old_text, taken = texts[key], nil
      if not is_share or my_capacity == their_capacity then
        taken = mine.continued(key, now, old, old_numbers, unpack(numbers))
      end
      if taken == nil then
        local units = theirs.used(key, now, unpack(old_numbers))
        if is_share then units = scale_up(units, my_capacity, their_capacity) end
        texts[key] = false
        taken = mine.holding(key, now, units, unpack(numbers))
      end
      local injected = has_injected_time
      texts[key], has_injected_time = taken or false, true -- so that the expiry is computed, because the key has another one
      local state, expires, allowed, limit, remaining, retry_after, next_after, reset_after, delay, at =
        decide[name](key, now, cost, max_delay, unpack(numbers))
      texts[key], held[key], has_injected_time = old_text, nil, injected
      if allowed == 1 and cost > 0 then
        state = with_head(key, head, state)
        return state, expires, allowed, limit, remaining, retry_after, next_after, reset_after, delay, at
      end

      local function time_until(room)
        if is_share then room = scale_down(room, their_capacity, my_capacity) end
        return max(1, theirs.until_used(key, now, room, unpack(old_numbers)))
      end
      if allowed == 0 and retry_after >= 0 then retry_after = time_until(mine.room(cost, max_delay, unpack(numbers))) end
      if remaining == 0 then next_after = time_until(mine.room(1, 0, unpack(numbers))) end
      reset_after = theirs.until_used(key, now, 0, unpack(old_numbers))
      state, expires = nil, nil
      if cost > 0 then -- a state later than `now` is moved back
        state, expires = decide[old](key, now, MAX_EXACT - 1, 0, unpack(old_numbers))
        state = with_head(key, old_head, state)
      end
      return state, expires, allowed, limit, remaining, retry_after, next_after, reset_after, delay, at
    end

    -- Decides on the refusals that another limit counted. See `_TakingOverBan` in takeover.py.
    function decide_over_ban(key, now, cost, numbers, head, old_numbers, old_head)
      local text, running = counting.ban.continued(key, now, numbers[2], unpack(old_numbers))
      local quota = numbers[2]
      if running then
        local state, expires, allowed, _, _, retry_after, next_after, reset_after, delay, at =
          decide.ban(key, now, cost, 0, unpack(old_numbers))
        state = with_head(key, old_head, state)
        return state, expires, allowed, quota, 0, retry_after, next_after, reset_after, delay, at
      end
      texts[key] = text or false
      local state, expires, allowed, limit, remaining, retry_after, next_after, reset_after, delay, at =
        decide.ban(key, now, cost, 0, unpack(numbers))
      state = with_head(key, head, state)
      return state, expires, allowed, limit, remaining, retry_after, next_after, reset_after, delay, at
    end
  end

  local function define(charged)
    local mode, name = string.match(charged, "^(%l+) ([%l_]+)$")
    local position = position_of[name]
    decide[charged] = function(key, now, cost, max_delay, ...)
      local old, old_numbers, old_head = open(key)
      local numbers, head = { ... }, write_state(HEAD, position, ...)
      if not old or old_head == head then
        local state, expires, allowed, limit, remaining, retry_after, next_after, reset_after, delay, at =
          decide[name](key, now, cost, max_delay, ...)
        state = with_head(key, head, state)
        return state, expires, allowed, limit, remaining, retry_after, next_after, reset_after, delay, at
      end
      if name == "ban" or old == "ban" then return decide_over_ban(key, now, cost, numbers, head, old_numbers, old_head) end
      return decide_over(
        mode == "share", key, now, cost, max_delay, name, numbers, head, old, old_numbers, old_head
      )
    end
    -- The state of another limit is settled by that limit, and remains its own. See `settle` in takeover.py.
    if not settle then return end
    settle[charged] = function(key, now, delta, at, ...)
      local old, old_numbers, old_head = open(key)
      local own_head, is_idle = write_state(HEAD, position, ...), false
      if old and old_head ~= own_head and counting[old].used(key, now, unpack(old_numbers)) == 0 then
        old, texts[key], held[key], is_idle = nil, false, 0, true
      end
      if not old then old, old_numbers, old_head = name, { ... }, own_head end
      local state, expires = settle[old](key, now, delta, at, unpack(old_numbers))
      if held then held[key] = nil end
      if is_idle and not state then return nil end -- the state that no longer counts stays
      return with_head(key, old_head, state), expires
    end
  end
  for charged in pairs(takes_over) do define(charged) end
end
