-- lane_pop
--
-- version: 2
-- promise: Takes up to `count` due ids off the lanes, as `count` single pops would in a row, ending with the first
--   that finds nothing due in any lane. The rotation gives each lane its weight of pops in lane order; a lane with
--   nothing due is skipped at once and forfeits the rest of its block. A pop that finds nothing due in any lane
--   opens a burst window: the next `burst` pops look at lane 0 first, until one of them finds it dry. A window
--   neither moves nor spends the cursor of the rotation, and an idle pop leaves the cursor where it was. Every
--   read comes before the first write, so a key of a wrong type costs no id; the first write is a removal, so a
--   pop works on a full server. An idle pop writes nothing once the window is open.
-- KEYS: lane_0 lane_1 lane_2 lane_3 lane_state
-- ARGV: count [burst weight_0 weight_1 weight_2 weight_3] [now_ms]
--   count 1..500; burst 0..99 (8 when not given); each weight >= 1, together <= 100 (8, 6, 4, 2 when not given).
-- reply: `taken` when `count` ids were found; else (now_ms, epoch, next_due_ms or -1, taken if any), where the
--   epoch changes only when Redis was wiped. `taken` is one text: runs separated by RS (30), each of them the lane
--   and then id, score, id, score ... separated by US (31).
--   Calls: 5 for a hit in one lane, 2 more for each further one; idle 6, and one more to open the window.
-- caller: kernel.coordination.lanes.Lanes.pop
--#include "include/now_ms.lua"
--#include "include/lane_state.lua"
local call = redis.call
local count = tonumber(ARGV[1])
if not count or count % 1 ~= 0 or count < 1 or count > 500 then
  return redis.error_reply('BADARG count: a whole number from 1 to 500')
end
-- The defaults stand here because five more arguments cost as much as one more redis.call.
local size, end_0, end_1, end_2, total = 8, 8, 14, 18, 20
if ARGV[2] then
  size = tonumber(ARGV[2])
  if not size or size % 1 ~= 0 or size < 0 or size > 99 then
    return redis.error_reply('BADARG burst: a whole number from 0 to 99')
  end
  local ends = {}
  total = 0
  for lane = 1, 4 do
    local weight = tonumber(ARGV[lane + 2])
    if not weight or weight % 1 ~= 0 or weight < 1 then
      return redis.error_reply('BADARG weight: a whole number, at least 1')
    end
    total = total + weight
    ends[lane] = total
  end
  if total > 100 then return redis.error_reply('BADARG weight: at most 100 together') end
  end_0, end_1, end_2 = ends[1], ends[2], ends[3]
end
local now = now_ms(ARGV[7])
if not now then return redis.error_reply('BADARG now_ms: a number') end

local state, cursor, burst = lane_state(KEYS[5])
local before = burst * 100 + cursor
-- Another release may have left a cursor or a window that this one's weights do not know.
if cursor >= total then cursor = 0 end
if burst > size then burst = size end

-- Mostly one id is wanted, and the lane that is looked at first has it: that needs none of the bookkeeping below.
local looked
if count == 1 and state then
  local lane, run = 1, '0\31'
  if burst == 0 and cursor >= end_0 then
    if cursor < end_1 then lane, run = 2, '1\31' elseif cursor < end_2 then lane, run = 3, '2\31' else lane, run = 4, '3\31' end
  end
  looked = call('ZRANGE', KEYS[lane], 0, 0, 'WITHSCORES')
  local score = looked[2]
  if score and tonumber(score) <= now then
    local after = burst * 100 + cursor + 1
    if burst > 0 then after = after - 101 elseif after == total then after = 0 end
    call('ZREMRANGEBYRANK', KEYS[lane], 0, 0)
    call('INCRBY', KEYS[5], after - before)
    return run .. looked[1] .. '\31' .. score
  end
end

local left, live = count, 4
local taken, dry = {0, 0, 0, 0}, {}
local runs, next_due
local search = cursor
while left > 0 and live > 0 do
  local lane, first, last, want, run
  if burst > 0 then
    lane, first, last, run = 1, 0, end_0, '0\31'
    want = burst < left and burst or left
  else
    if search < end_0 then lane, first, last, run = 1, 0, end_0, '0\31'
    elseif search < end_1 then lane, first, last, run = 2, end_0, end_1, '1\31'
    elseif search < end_2 then lane, first, last, run = 3, end_1, end_2, '2\31'
    else lane, first, last, run = 4, end_2, total, '3\31' end
    -- The only lane left takes all that is wanted, however many rounds that spans.
    want = left
    if live > 1 and last - search < want then want = last - search end
  end
  if dry[lane] then
    search = last == total and 0 or last
  else
    local from = taken[lane]
    local found = looked or call('ZRANGE', KEYS[lane], from, from + want - 1, 'WITHSCORES')
    looked = nil
    local got = #found / 2
    while got > 0 and tonumber(found[2 * got]) > now do got = got - 1 end
    if got > 0 then
      run = run .. table.concat(found, '\31', 1, 2 * got)
      runs = runs and runs .. '\30' .. run or run
      taken[lane] = from + got
      left = left - got
      if burst > 0 then
        burst = burst - got
      else
        cursor = first + (search - first + got - 1) % (last - first) + 1
        if cursor == total then cursor = 0 end
        search = cursor
      end
    end
    if got < want then
      dry[lane] = true
      live = live - 1
      local head = tonumber(found[2 * got + 2])
      if head and head <= 9007199254740991 and (not next_due or head < next_due) then next_due = head end
      -- Lane 0 dry inside the window: the window ends, and this very pop goes on with the rotation.
      if burst > 0 then burst = 0 else search = last == total and 0 or last end
    end
  end
end
if left > 0 then burst = size end

for lane = 1, 4 do
  if taken[lane] > 0 then call('ZREMRANGEBYRANK', KEYS[lane], 0, taken[lane] - 1) end
end
local after = burst * 100 + cursor
if not state then
  state = (now - now % 10) * 1000
  call('SET', KEYS[5], string.format('%.0f', state + after))
elseif after ~= before then
  call('INCRBY', KEYS[5], after - before)
end
if left == 0 then return runs end
return {now, (state - state % 10000) / 10000, next_due and math.ceil(next_due) or -1, runs}
