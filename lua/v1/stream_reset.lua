-- stream_reset
--
-- version: 1
-- promise: Begins a new generation of one stream: frames and terminal reference are gone, the generation is one more.
--   A stream without a generation gets the present time in ms as its first, so that none ever comes back after a
--   wipe. With keep, frames of a stream that has not ended stay, and its generation goes on. `stale`, and nothing is
--   changed, when somebody who read a later state of the workflow has reset or finished the stream already: a reset
--   that was held up on its way never wipes what a later claim has written. Repeated with the same reset_id it only
--   answers again.
-- KEYS: stream_frames stream_generation stream_state stream_terminal stream_watch
-- ARGV: terms wakeup_channel [now_ms]
--   terms is one text separated by blanks: created and revision of the workflow as the caller read it (created in ms;
--   they are compared in this order); reset_id (letters and digits); keep 0 or 1; kept_ttl_ms; wakeup_tag.
-- reply: the generation that frames may be appended to, or `stale`. Calls: 5, one more while somebody watches.
-- caller: kernel.coordination.streams.Streams.reset
--#include "include/now_ms.lua"
--#include "include/stream_state.lua"
local call = redis.call
local _, _, created, revision, reset_id, keep, kept_ttl, tag =
  string.find(ARGV[1] or '', '^(%d+) (%d+) (%w+) ([01]) (%d+) (%d+)$')
if not tag then return redis.error_reply('BADARG terms: five whole numbers and a reset_id, separated by blanks') end
created, revision, kept_ttl = tonumber(created), tonumber(revision), tonumber(kept_ttl)
if kept_ttl < 1 then return redis.error_reply('BADARG kept_ttl_ms: at least 1 ms') end
if not ARGV[2] then return redis.error_reply('BADARG wakeup_channel: missing') end
local now = now_ms(ARGV[3])
if not now then return redis.error_reply('BADARG now_ms: a number') end

local found = call('MGET', KEYS[2], KEYS[3], KEYS[4], KEYS[5])
local generation = found[1] and string.find(found[1], '^%d+$') and #found[1] < 16 and tonumber(found[1])
local by_created, by_revision, by_reset, next, bytes, writers = stream_state(found[2])
if by_created then
  if generation and by_reset == reset_id then return generation end
  if by_created > created or (by_created == created and by_revision > revision) then return 'stale' end
end
if keep == '1' and generation and by_created and not found[3] then
  call('SET', KEYS[3], stream_state_text(created, revision, reset_id, next, bytes, writers), 'PX', kept_ttl)
  call('PEXPIRE', KEYS[2], kept_ttl)
  return generation
end
generation = generation and generation + 1 or now
call('DEL', KEYS[1], KEYS[4])
call('SET', KEYS[2], string.format('%.0f', generation), 'PX', kept_ttl)
call('SET', KEYS[3], stream_state_text(created, revision, reset_id, 0, 0, ''), 'PX', kept_ttl)
if found[4] then call('PUBLISH', ARGV[2], tag) end
return generation
