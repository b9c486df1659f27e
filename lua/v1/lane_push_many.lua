-- lane_push_many
--
-- version: 3
-- promise: Puts up to 500 ids into their lanes, as lane_push would one by one, lane 0 first and within a lane in the
--   given order. Nothing is written when any argument is bad. Publishes one wakeup for all of them, whose text is
--   wakeup_ms, unless all were ignored or the channel is empty.
-- KEYS: lane_0 lane_1 lane_2 lane_3
-- ARGV: wakeup_channel wakeup_ms entries_0 entries_1 entries_2 entries_3
--   entries_N is what goes to lane N: one text of id, score_ms, id, score_ms ... separated by US (31); empty for none.
--   One text a lane instead of two arguments an id: packing them would cost the client more than the script costs.
-- reply: (new or raised, rescored, ignored), numbers of entries. Calls: at most 10 for all four lanes, 4 for one, and one
--   to publish.
-- caller: kernel.coordination.lanes.Lanes.push
local call = redis.call
local channel, wakeup_ms = ARGV[1], ARGV[2]
-- Ids and (score, id) pairs of all lanes lie one after the other; ends[lane] is the place of that lane's last one.
local ids, words, ends, total = {}, {}, {}, 0
for lane = 1, 4 do
  local text = ARGV[lane + 2]
  if not text then return redis.error_reply('BADARG entries: one text for each of the four lanes') end
  -- Each entry has to begin where the last one ended: a search would try every byte of a text that is none of ours, and
  -- look through the rest of it from each.
  local at, size = 1, text == '' and 0 or #text + 1
  text = text .. '\31'
  while at <= size do
    local _, last, id, score = string.find(text, '^([^\31]+)\31(%d+)\31', at)
    if not last then return redis.error_reply('BADARG entries: id and score_ms in turn, neither empty') end
    if #score > 16 then return redis.error_reply('BADARG score_ms: at most 16 digits') end
    total = total + 1
    ids[total] = id
    words[2 * total - 1], words[2 * total] = score, id
    at = last + 1
  end
  ends[lane] = total
end
if total < 1 or total > 500 then return redis.error_reply('BADARG entries: 1 to 500 of them') end

-- Lane by lane: what was new above leaves this lane, its own entries enter it, and those for lower lanes are looked for in
-- it, each by one call for all. What a higher lane holds is written nowhere, so none of these calls undoes another.
local raised, written, held, first = 0, 0, nil, 0
for lane = 1, 4 do
  local last = ends[lane]
  if raised > 0 then call('ZREM', KEYS[lane], unpack(ids, 1, first)) end
  if held then
    local kept, size = {}, 0
    for i = first + 1, last do
      if not held[i] then
        size = size + 1
        kept[2 * size - 1], kept[2 * size] = words[2 * i - 1], ids[i]
      end
    end
    if size > 0 then raised = raised + call('ZADD', KEYS[lane], unpack(kept)) end
    written = written + size
  elseif last > first then
    raised = raised + call('ZADD', KEYS[lane], unpack(words, 2 * first + 1, 2 * last))
    written = written + last - first
  end
  if last < total then
    local scores = call('ZMSCORE', KEYS[lane], unpack(ids, last + 1, total))
    for i = 1, total - last do
      if scores[i] then
        held = held or {}
        held[last + i] = true
      end
    end
  end
  first = last
end
if written > 0 and channel ~= '' then call('PUBLISH', channel, wakeup_ms) end
return {raised, written - raised, total - written}
