-- lane_push_many
--
-- version: 1
-- promise: Puts up to 500 ids into their lanes, as lane_push would one by one, lane 0 first and within a lane in the
--   given order. Nothing is written when any argument is bad. Publishes one wakeup for all of them, whose text is
--   wakeup_ms, unless all were ignored or the channel is empty.
-- KEYS: lane_0 lane_1 lane_2 lane_3
-- ARGV: wakeup_channel wakeup_ms entries_0 entries_1 entries_2 entries_3
--   entries_N is what goes to lane N: one text of id, score_ms, id, score_ms ... separated by US (31); empty for none.
--   One text a lane instead of two arguments an id: packing them would cost the client more than the script costs.
-- reply: (new or raised, rescored, ignored), numbers of entries.
-- caller: kernel.coordination.lanes.Lanes.push
local call = redis.call
local channel, wakeup_ms = ARGV[1], ARGV[2]
local batches, total = {}, 0
for lane = 1, 4 do
  local text = ARGV[lane + 2]
  if not text then return redis.error_reply('BADARG entries: one text for each of the four lanes') end
  local ids, words, size, read = {}, {}, 0, 0
  for id, score in string.gmatch(text .. '\31', '([^\31]+)\31(%d+)\31') do
    if #score > 16 then return redis.error_reply('BADARG score_ms: at most 16 digits') end
    size = size + 1
    ids[size] = id
    words[2 * size - 1], words[2 * size] = score, id
    read = read + #id + #score + 2
  end
  -- Whatever the pattern had to skip is no entry.
  if read ~= #text + 1 and text ~= '' then
    return redis.error_reply('BADARG entries: id and score_ms in turn, neither empty')
  end
  total = total + size
  batches[lane] = {ids, words, size}
end
if total < 1 or total > 500 then return redis.error_reply('BADARG entries: 1 to 500 of them') end

local raised, written = 0, 0
for lane = 1, 4 do
  local ids, words, size = unpack(batches[lane])
  if size > 0 then
    local held
    for higher = 1, lane - 1 do
      local scores = call('ZMSCORE', KEYS[higher], unpack(ids))
      for i = 1, size do
        if scores[i] then
          held = held or {}
          held[i] = true
        end
      end
    end
    if held then
      local kept, kept_words = {}, {}
      for i = 1, size do
        if not held[i] then
          kept[#kept + 1] = ids[i]
          kept_words[#kept_words + 1] = words[2 * i - 1]
          kept_words[#kept_words + 1] = ids[i]
        end
      end
      ids, words = kept, kept_words
    end
    if #ids > 0 then
      local added = call('ZADD', KEYS[lane], unpack(words))
      if added > 0 then
        for lower = lane + 1, 4 do call('ZREM', KEYS[lower], unpack(ids)) end
      end
      raised = raised + added
      written = written + #ids
    end
  end
end
if written > 0 and channel ~= '' then call('PUBLISH', channel, wakeup_ms) end
return {raised, written - raised, total - written}
