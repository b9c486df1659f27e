-- lane_stats
--
-- version: 1
-- promise: Counts the lanes at one instant and tells what the next pop would start from. Changes nothing.
-- KEYS: lane_0 lane_1 lane_2 lane_3 lane_state
-- ARGV: [now_ms]
-- reply: now_ms, epoch (0 when no pop has run since the last wipe), cursor, burst left; then for each lane: members,
--   members due, members in the future, and for how many ms the one due longest has been waiting (0 when none is).
-- caller: kernel.coordination.lanes.Lanes.report
--#include "include/now_ms.lua"
--#include "include/lane_state.lua"
local call = redis.call
local now = now_ms(ARGV[1])
if not now then return redis.error_reply('BADARG now_ms: a number') end
local state, cursor, burst = lane_state(KEYS[5])
local epoch = state and (state - state % 10000) / 10000 or 0
local out = {now, epoch, cursor, burst}
for lane = 1, 4 do
  local depth = call('ZCARD', KEYS[lane])
  local ready = call('ZCOUNT', KEYS[lane], '-inf', now)
  local waiting = 0
  if ready > 0 then
    local score = tonumber(call('ZRANGE', KEYS[lane], 0, 0, 'WITHSCORES')[2])
    -- A score below 0 can only come from outside; no wait is longer than time itself.
    waiting = now - (score > 0 and score or 0)
  end
  local at = 4 * lane
  out[at + 1], out[at + 2], out[at + 3], out[at + 4] = depth, ready, depth - ready, waiting
end
return out
