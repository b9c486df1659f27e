-- permit_acquire
--
-- version: 2
-- promise: Grants or refuses one place of a resource, as one step. In this order: expired places are freed; both
--   limits 0 and not paused grants without recording anything; an owner that holds a place by this very request only
--   renews it, and no second start is counted (by another request of the same owner, whose release got lost, it is
--   given up first); `paused`; `concurrency`: as many places are held or reserved as the limit allows; `rate`: as many
--   starts lie in the last 1000 ms as the limit allows, so that no window of 1000 ms ever holds more; `line`: others
--   wait and the caller does not. A grant uses up the place that is reserved for the caller's pair; a caller that stands
--   in line may also take one whose pair has not come for it within 500 ms. Who is refused stands in the line of its
--   lane from then on, keeps the place it had there, and drops out 10 s after the time at which it was told to ask
--   again. Every call hands free places to those who wait. The place is written last: a key of a wrong type grants
--   nothing.
-- KEYS: permit_holders permit_starts permit_reserved permit_waiting permit_line lane_0 lane_1 lane_2 lane_3
-- ARGV: wakeup_channel lease_ms max_concurrency max_starts paused owner terms [now_ms]
--   What seldom changes comes first, because a client packs it once: lease_ms 1..3600000; max_concurrency and max_starts
--   0..1000000 (0: off); paused 0 or 1. owner is workflow_id US step US claim_token (US is byte 31). terms is one text of
--   three whole numbers separated by blanks: request 0..1023, which numbers the claim's invocations; lane 0..3; wait_ms
--   1..600000, what somebody refused for concurrency or pause waits at least.
-- reply: granted: one number, epoch * 8 + kind, kind 1 new, 2 renewed, 3 by a reservation, 4 without limits (epoch 0);
--   refused: (reason, ask_again_ms, place in line from 1). Calls: 6 for a grant, 3 more with a start rate, 1 where a
--   place is given up first; what is needed beyond that serves those who wait.
-- caller: kernel.coordination.permits.Permits.acquire
--#include "include/now_ms.lua"
--#include "include/permit_place.lua"
--#include "include/permit_limits.lua"
local call = redis.call
local channel, owner = ARGV[1], ARGV[6]
local _, _, pair = string.find(owner or '', '^([^\31]+\31[^\31]+)\31[^\31]+$')
if not pair then return redis.error_reply('BADARG owner: workflow_id, step and claim_token, separated by US') end
local _, _, request, lane, wait = string.find(ARGV[7] or '', '^(%d+) (%d+) (%d+)$')
if not wait then return redis.error_reply('BADARG terms: three whole numbers, separated by blanks') end
request, lane, wait = tonumber(request), tonumber(lane), tonumber(wait)
if request > 1023 then return redis.error_reply('BADARG request: at most 1023') end
if lane > 3 then return redis.error_reply('BADARG lane: 0, 1, 2 or 3') end
local max_concurrency, max_starts, paused, problem = permit_limits(ARGV[3], ARGV[4], ARGV[5])
if problem then return problem end
local lease = tonumber(ARGV[2])
if not lease or lease % 1 ~= 0 or lease < 1 or lease > 3600000 then
  return redis.error_reply('BADARG lease_ms: a whole number from 1 to 3600000')
end
if wait < 1 or wait > 600000 then return redis.error_reply('BADARG wait_ms: from 1 to 600000') end
if max_concurrency == 0 and max_starts == 0 and not paused then return 4 end
local now = now_ms(ARGV[8])
if not now then return redis.error_reply('BADARG now_ms: a number') end

local place = (now + lease) * 1024 + request
call('ZREMRANGEBYSCORE', KEYS[1], '-inf', now * 1024 + 1023)
local found = call('ZMSCORE', KEYS[1], owner, PERMIT_NOBODY)
local epoch, lined, cursor = permit_state(found[2])
if found[1] then
  if tonumber(found[1]) % 1024 == request then
    call('ZADD', KEYS[1], place, owner)
    call('PEXPIRE', KEYS[1], PERMIT_TTL_MS)
    return (epoch or 0) * 8 + 2
  end
  call('ZREM', KEYS[1], owner)
end
local held = call('ZCARD', KEYS[1]) - (found[2] and 1 or 0)
if not epoch then epoch = now end

local reserved, mine, entered, ahead, late = 0, false, false, 0, nil
if lined then
  -- Reservations that nobody used end; so do those that a clock set back would make last.
  call('ZREMRANGEBYSCORE', KEYS[3], '-inf', now)
  call('ZREMRANGEBYSCORE', KEYS[3], now + 6000, '+inf')
  reserved = call('ZCARD', KEYS[3])
  mine = call('ZSCORE', KEYS[3], pair)
  local expiry = call('ZSCORE', KEYS[4], pair)
  entered = expiry and tonumber(expiry) > now
  ahead = call('ZCOUNT', KEYS[4], string.format('(%.0f', now), '+inf') - reserved
  if entered and not mine then ahead = ahead - 1 end
  if mine then reserved = reserved - 1 end
end

local reason
if paused then
  reason = 'paused'
elseif max_concurrency > 0 and held + reserved >= max_concurrency then
  reason = 'concurrency'
  if entered and held < max_concurrency then
    -- A place is free but reserved. Where workers are busy for longer than reservations last, nobody would ever come in
    -- time; so who stands in line and is here takes the place of one who has not come within 500 ms.
    local oldest = call('ZRANGE', KEYS[3], 0, 1, 'WITHSCORES')
    local first = oldest[1] == pair and 3 or 1
    if oldest[first] and tonumber(oldest[first + 1]) <= now + 1500 then
      late = oldest[first]
      reason = nil
    end
  end
end
if not reason and max_starts > 0 then
  local mark = call('LINDEX', KEYS[2], max_starts - 1)
  -- A mark that lies further in the future was made before the server's clock was set back, and says nothing now.
  if mark and tonumber(mark) + 1000 > now and tonumber(mark) <= now + 1000 then reason = 'rate' end
end
if not reason and ahead > 0 and not entered then reason = 'line' end

if not reason and max_starts > 0 then
  -- More marks than the limit are kept, so that a limit raised within the second still sees them.
  local keep = max_starts > 512 and max_starts or 512
  if call('LPUSH', KEYS[2], now) > 2 * keep then call('LTRIM', KEYS[2], 0, keep - 1) end
  call('PEXPIRE', KEYS[2], 60000)
end
if not reason and not lined then
  call('ZADD', KEYS[1], place, owner, permit_state_score(epoch, false, cursor), PERMIT_NOBODY)
  call('PEXPIRE', KEYS[1], PERMIT_TTL_MS)
  return epoch * 8 + 1
end

--#include "include/permit_line.lua"
if not reason then
  permit_forget({pair})
  if mine or late then call('ZREM', KEYS[3], pair, late or pair) end
  local _, after, waits = permit_hand_over(now, held + 1, max_concurrency, max_starts, cursor, channel)
  call('ZADD', KEYS[1], place, owner, permit_state_score(epoch, waits, after), PERMIT_NOBODY)
  call('PEXPIRE', KEYS[1], PERMIT_TTL_MS)
  return epoch * 8 + (mine and 3 or 1)
end

-- Refused: into the line of its lane, or where it stands already.
local stands = entered and tonumber(call('ZSCORE', KEYS[5], pair) or -1)
if not stands or stands < lane * PERMIT_LANE or stands >= (lane + 1) * PERMIT_LANE then
  stands = permit_line_end(lane)
  call('ZADD', KEYS[5], stands, pair)
end
call('PEXPIRE', KEYS[5], PERMIT_TTL_MS)
-- Its turn, if nobody else comes: those before it in its own line, and of each other line what 8:6:4:2 lets pass when
-- a round begins now.
local own = call('ZCOUNT', KEYS[5], lane * PERMIT_LANE, stands)
local weights, turn = {8, 6, 4, 2}, own
local rounds = math.ceil(own / weights[lane + 1]) - 1
for other = 0, 3 do
  local passing = weights[other + 1] * (other < lane and rounds + 1 or rounds)
  if other ~= lane and passing > 0 then
    local size = call('ZCOUNT', KEYS[5], other * PERMIT_LANE, string.format('(%.0f', (other + 1) * PERMIT_LANE))
    turn = turn + (size < passing and size or passing)
  end
end
if mine then turn = 1 end
local ask
if max_starts > 0 and (reason == 'rate' or reason == 'line') then
  local seconds = (turn - 1 - (turn - 1) % max_starts) / max_starts
  local mark = call('LINDEX', KEYS[2], max_starts - 1 - (turn - 1) % max_starts)
  ask = seconds * 1000
  if mark and tonumber(mark) + 1000 > now and tonumber(mark) <= now + 1000 then
    ask = ask + tonumber(mark) + 1000 - now
  end
  if ask < 1 then ask = 1 end
else
  ask = wait * math.ceil(turn / (max_concurrency > 0 and max_concurrency or 1))
end
if ask > 600000 then ask = 600000 end
call('ZADD', KEYS[4], now + ask + PERMIT_LATE_MS, pair)
call('PEXPIRE', KEYS[4], PERMIT_TTL_MS)
if paused and mine then call('ZREM', KEYS[3], pair) end
if not paused then
  local _
  _, cursor = permit_hand_over(now, held, max_concurrency, max_starts, cursor, channel)
end
call('ZADD', KEYS[1], permit_state_score(epoch, true, cursor), PERMIT_NOBODY)
call('PEXPIRE', KEYS[1], PERMIT_TTL_MS)
return {reason, ask, turn}
