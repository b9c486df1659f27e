-- lane_push
--
-- version: 2
-- promise: Puts one id into its lane with its due time. An id is in at most one lane and its priority only rises: an
--   id that a higher lane holds is ignored altogether, score included; one that a lower lane holds moves; in its own
--   lane it gets the new score. Publishes one wakeup, whose text is the due time, unless the push was ignored or the
--   channel is empty. The channel is no key: a cluster hands a message to every node.
-- KEYS: lane_0 lane_1 lane_2 lane_3
-- ARGV: wakeup_channel lane score_ms workflow_id
--   lane 0..3; score_ms a whole number from 0 to 2^53 - 1.
-- reply: 1 new or raised, 2 rescored, 0 ignored. Calls: 4 for a new id, one for each lane, and one to publish.
-- caller: kernel.coordination.lanes.Lanes.push
local call = redis.call
local channel, lane, score, id = ARGV[1], tonumber(ARGV[2]), ARGV[3], ARGV[4]
local key = lane and KEYS[lane + 1]
if not key then return redis.error_reply('BADARG lane: 0, 1, 2 or 3') end
if not (score and string.find(score, '^%d+$') and tonumber(score) <= 9007199254740991) then
  return redis.error_reply('BADARG score_ms: a whole number from 0 to 2^53 - 1')
end
if not id or id == '' then return redis.error_reply('BADARG workflow_id: must not be empty') end

for higher = 1, lane do
  if call('ZSCORE', KEYS[higher], id) then return 0 end
end
local outcome = 2
if call('ZADD', key, score, id) == 1 then
  outcome = 1
  -- New here means that another lane may still hold it, and at most one does.
  for lower = lane + 2, 4 do
    if call('ZREM', KEYS[lower], id) == 1 then break end
  end
end
if channel ~= '' then call('PUBLISH', channel, score) end
return outcome
