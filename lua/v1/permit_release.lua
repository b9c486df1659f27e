-- permit_release
--
-- version: 3
-- promise: Frees the places of up to 100 owners of one resource, and those whose lease ran out; nobody else's. Hands
--   every free place to the next live entry of the line: reserves it for that pair for 2 s, pushes the id into its
--   ready lane with the time at which it may start, and publishes one wakeup, all in this step. A reservation that
--   nobody used passes on; its entry goes to the end of its line. Paused resources hand nothing over. Without owners it
--   only does the rest: the net beneath a hand-over that got lost. Pairs among the owners wait no longer: they leave the
--   line, with what is reserved for them, which nobody would use for 2 s, and again until their entries expire.
-- KEYS: permit_holders permit_starts permit_reserved permit_waiting permit_line lane_0 lane_1 lane_2 lane_3
-- ARGV: wakeup_channel max_concurrency max_starts paused owners [now_ms]
--   max_concurrency, max_starts and paused as for permit_acquire; owners is one text of up to 100 owners and pairs
--   (workflow_id US step), separated by RS (30), empty for none.
-- reply: owners that held a place * 100 + hand-overs. At most 16 hand-overs; when it is 16 there may be more to do.
--   Calls: 2 when nobody waits.
-- caller: kernel.coordination.permits.Permits.release
--#include "include/now_ms.lua"
--#include "include/permit_place.lua"
--#include "include/permit_limits.lua"
local call = redis.call
local max_concurrency, max_starts, paused, problem = permit_limits(ARGV[2], ARGV[3], ARGV[4])
if problem then return problem end
local owners, gone = {ARGV[5]}, {}
-- Mostly it is one.
if not string.find(ARGV[5] or '', '^[^\30\31]+\31[^\30\31]+\31[^\30\31]+$') then
  owners = {}
  for owner in string.gmatch(ARGV[5] or '', '[^\30]+') do
    if string.find(owner, '^[^\31]+\31[^\31]+$') then
      gone[#gone + 1] = owner
    elseif string.find(owner, '^[^\31]+\31[^\31]+\31') then
      owners[#owners + 1] = owner
    else
      return redis.error_reply('BADARG owners: workflow_id, step and claim_token, separated by US')
    end
  end
  if #owners + #gone > 100 then return redis.error_reply('BADARG owners: at most 100') end
end

local freed = 0
if owners[1] then freed = call('ZREM', KEYS[1], unpack(owners)) end
local epoch, lined, cursor = permit_state(call('ZSCORE', KEYS[1], PERMIT_NOBODY))
if not lined then return freed * 100 end
local now = now_ms(ARGV[6])
if not now then return redis.error_reply('BADARG now_ms: a number') end
call('ZREMRANGEBYSCORE', KEYS[1], '-inf', now * 1024 + 1023)
-- Reservations that nobody used end; so do those that a clock set back would make last.
call('ZREMRANGEBYSCORE', KEYS[3], '-inf', now)
call('ZREMRANGEBYSCORE', KEYS[3], now + 6000, '+inf')
--#include "include/permit_line.lua"
if gone[1] then
  permit_forget(gone)
  call('ZREM', KEYS[3], unpack(gone))
end
if paused then return freed * 100 end
local held = call('ZCARD', KEYS[1]) - 1
local handed, after, waits = permit_hand_over(now, held, max_concurrency, max_starts, cursor, ARGV[1])
if after ~= cursor or not waits then call('ZADD', KEYS[1], permit_state_score(epoch, waits, after), PERMIT_NOBODY) end
return freed * 100 + handed
