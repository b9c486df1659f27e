-- lane_remove
--
-- version: 1
-- promise: Takes up to 500 ids out of whatever lane holds them.
-- KEYS: lane_0 lane_1 lane_2 lane_3
-- ARGV: (workflow_id)...
-- reply: how many were in a lane.
-- caller: kernel.coordination.lanes.Lanes.remove
local call = redis.call
if #ARGV < 1 or #ARGV > 500 then return redis.error_reply('BADARG workflow_id: 1 to 500 of them') end
local removed = 0
for lane = 1, 4 do removed = removed + call('ZREM', KEYS[lane], unpack(ARGV)) end
return removed
