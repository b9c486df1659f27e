-- The line of one resource, for scripts whose KEYS are
--   1 holders, 2 starts, 3 reserved, 4 waiting, 5 line, 6 to 9 the ready lanes 0 to 3.
--
-- `waiting` maps a pair (workflow_id US step) to the time at which its entry expires, `line` to lane * 10^13 + number,
-- where numbers rise towards the end of each lane's line; `reserved` maps the pairs to which a place was handed to
-- the time at which the reservation ends. A pair with a reservation stays in the line, at the end of it.
local PERMIT_LANE = 10000000000000
local PERMIT_RESERVED_MS = 2000
-- An entry outlives the time at which its owner asks again, so that the one who asks in time keeps the place.
local PERMIT_LATE_MS = 10000
local PERMIT_HANDED_MAX = 16

-- permit_line_end(lane): the score behind the last entry of that lane's line.
local function permit_line_end(lane)
  local behind = string.format('(%.0f', (lane + 1) * PERMIT_LANE)
  local last = redis.call('ZREVRANGEBYSCORE', KEYS[5], behind, lane * PERMIT_LANE, 'WITHSCORES', 'LIMIT', 0, 1)
  return last[2] and tonumber(last[2]) + 1 or lane * PERMIT_LANE + 1
end

-- permit_enqueue(id, lane, due_ms): the id into its ready lane, due then at the latest, in one lane only.
local function permit_enqueue(id, lane, due_ms)
  for higher = 6, lane + 5 do
    local score = redis.call('ZSCORE', KEYS[higher], id)
    if score then
      if tonumber(score) > due_ms then redis.call('ZADD', KEYS[higher], due_ms, id) end
      return
    end
  end
  if redis.call('ZADD', KEYS[lane + 6], 'LT', due_ms, id) == 1 then
    for lower = lane + 7, 9 do
      if redis.call('ZREM', KEYS[lower], id) == 1 then break end
    end
  end
end

-- permit_forget(pairs): entries that wait no longer.
local function permit_forget(gone)
  redis.call('ZREM', KEYS[5], unpack(gone))
  redis.call('ZREM', KEYS[4], unpack(gone))
end

-- permit_next(cursor): (lane, cursor after it) of the line that is next by 8:6:4:2 and holds entries, and its head.
local function permit_next(cursor)
  for _ = 1, 4 do
    local lane, last = 3, 20
    if cursor < 8 then lane, last = 0, 8
    elseif cursor < 14 then lane, last = 1, 14
    elseif cursor < 18 then lane, last = 2, 18 end
    local behind = string.format('(%.0f', (lane + 1) * PERMIT_LANE)
    local head = redis.call('ZRANGEBYSCORE', KEYS[5], lane * PERMIT_LANE, behind, 'LIMIT', 0, 1)
    if head[1] then return lane, (cursor + 1) % 20, head[1] end
    -- A lane without entries forfeits the rest of its block.
    cursor = last % 20
  end
end

-- permit_hand_over(now, held, max_concurrency, max_starts, cursor, channel): hands free places to the next live
-- entries, each as a reservation, with its id pushed into the ready lane for the moment at which it may start; then
-- publishes one wakeup with the earliest of these moments. `held` counts places in use. At most 16 hand-overs, and
-- twice as many entries are looked at; the next call goes on. Without any limit an entry just leaves the line.
-- Returns (how many were handed, cursor, whether somebody still waits).
local function permit_hand_over(now, held, max_concurrency, max_starts, cursor, channel)
  local dead = redis.call('ZRANGEBYSCORE', KEYS[4], '-inf', now, 'LIMIT', 0, 64)
  if dead[1] then permit_forget(dead) end
  local live = redis.call('ZCOUNT', KEYS[4], string.format('(%.0f', now), '+inf')
  local reserved = redis.call('ZCARD', KEYS[3])
  local unlimited = max_concurrency == 0 and max_starts == 0
  local handed, earliest = 0, nil
  for _ = 1, 2 * PERMIT_HANDED_MAX do
    if live <= reserved or handed == PERMIT_HANDED_MAX then break end
    if max_concurrency > 0 and held + reserved >= max_concurrency then break end
    if max_starts > 0 and reserved >= max_starts then break end
    local lane, after, pair = permit_next(cursor)
    if not lane then break end
    local expiry = tonumber(redis.call('ZSCORE', KEYS[4], pair) or now)
    local due = now
    if max_starts > 0 then
      -- The starts that are promised already come first; each takes the place of the oldest one in the window.
      local mark = tonumber(redis.call('LINDEX', KEYS[2], max_starts - 1 - reserved) or 0)
      if mark + 1000 > now and mark <= now + 1000 then due = mark + 1000 end
    end
    if redis.call('ZSCORE', KEYS[3], pair) then
      redis.call('ZADD', KEYS[5], permit_line_end(lane), pair)
    elseif expiry <= due then
      -- Nobody will come, or not before asking again. `live` counted the entry if it has not expired yet.
      permit_forget({pair})
      if expiry > now then live = live - 1 end
    else
      local _, _, id = string.find(pair, '^([^\31]+)')
      permit_enqueue(id or pair, lane, due)
      if unlimited then
        permit_forget({pair})
        live = live - 1
      else
        -- Never longer than its entry lives: each reservation is one of those that `live` counts.
        local kept = due + PERMIT_RESERVED_MS
        redis.call('ZADD', KEYS[3], kept < expiry and kept or expiry, pair)
        redis.call('ZADD', KEYS[5], permit_line_end(lane), pair)
        reserved = reserved + 1
      end
      cursor = after
      handed = handed + 1
      if not earliest or due < earliest then earliest = due end
    end
  end
  if handed > 0 then
    if reserved > 0 then redis.call('PEXPIRE', KEYS[3], 60000) end
    if channel ~= '' then redis.call('PUBLISH', channel, string.format('%.0f', earliest)) end
  end
  return handed, cursor, live > 0 or reserved > 0
end
