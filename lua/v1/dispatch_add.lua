-- dispatch_add
--
-- version: 2
-- promise: Notes when objects with an open intent become due. Of an id that is noted already the earlier time stays:
--   a time that is too early costs one vain look, after which the true one is noted again, while one that is too late
--   would hide a new round behind the delay of an old one. At most `most` ids are kept, those due first; what is
--   dropped is found by the scan. The key expires ttl_ms after the last call. When an id becomes due earlier than all
--   that were there, its time is published, unless the channel is empty: others have planned to look by then anyway.
-- KEYS: dispatch
-- ARGV: most ttl_ms wakeup_channel entries
--   most, ttl_ms >= 1; entries is one text of id, due_ms, id, due_ms ... separated by US (31), 1 to 500 of them.
-- reply: how many ids were new.
-- caller: kernel.coordination.dispatch_index.DispatchIndex.add
local call = redis.call
local most, ttl_ms = tonumber(ARGV[1]), tonumber(ARGV[2])
if not most or most % 1 ~= 0 or most < 1 then return redis.error_reply('BADARG most: a whole number, at least 1') end
if not ttl_ms or ttl_ms % 1 ~= 0 or ttl_ms < 1 then
  return redis.error_reply('BADARG ttl_ms: a whole number, at least 1')
end
local text = (ARGV[4] or '') .. '\31'
local words, size, place, earliest = {}, 0, 1, nil
-- Each entry has to begin where the last one ended: a search would try every byte of a text that is none of ours.
while place <= #text do
  local _, last, id, due = string.find(text, '^([^\31]+)\31(%d+)\31', place)
  if not last then return redis.error_reply('BADARG entries: id and due_ms in turn, neither empty') end
  if #due > 16 then return redis.error_reply('BADARG due_ms: at most 16 digits') end
  size = size + 1
  words[2 * size - 1], words[2 * size] = due, id
  place = last + 1
  local at = tonumber(due)
  if not earliest or at < earliest then earliest = at end
end
if size > 500 then return redis.error_reply('BADARG entries: 1 to 500 of them') end

local head = call('ZRANGE', KEYS[1], 0, 0, 'WITHSCORES')
local added = call('ZADD', KEYS[1], 'LT', unpack(words))
if added > 0 and call('ZCARD', KEYS[1]) > most then call('ZREMRANGEBYRANK', KEYS[1], most, -1) end
call('PEXPIRE', KEYS[1], ttl_ms)
if ARGV[3] ~= '' and (not head[2] or earliest < tonumber(head[2])) then
  call('PUBLISH', ARGV[3], string.format('%.0f', earliest))
end
return added
