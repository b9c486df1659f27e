-- stream_finish
--
-- version: 1
-- promise: Ends one stream, as one step: the terminal record is its last frame, the terminal reference is stored,
--   frames stay for read_ttl_ms and everything else for kept_ttl_ms, and who watches is told. Nothing can be appended
--   from then on. Repeated for the same state of the workflow it changes nothing. A stream that an earlier round
--   ended, and nobody reset since, begins a new generation with this record, so that its reference never tells the
--   old end. `stale`, and nothing is changed, when the stream was reset or finished for a later state; `absent` when
--   there is none: then there is nothing to end, and who watches is told to look at the workflow.
-- KEYS: stream_frames stream_generation stream_state stream_terminal stream_watch
-- ARGV: terms record wakeup_channel
--   terms is one text separated by blanks: created and revision of the workflow (as for stream_reset); read_ttl_ms;
--   kept_ttl_ms; wakeup_tag. record has 1 to 65536 bytes.
-- reply: the offset of the terminal frame, or why not, as a text. Calls: 6, one more while somebody watches.
-- caller: kernel.coordination.streams.Streams.finish
--#include "include/stream_state.lua"
local call = redis.call
local _, _, created, revision, read_ttl, kept_ttl, tag =
  string.find(ARGV[1] or '', '^(%d+) (%d+) (%d+) (%d+) (%d+)$')
if not tag then return redis.error_reply('BADARG terms: five whole numbers, separated by blanks') end
created, revision, read_ttl, kept_ttl = tonumber(created), tonumber(revision), tonumber(read_ttl), tonumber(kept_ttl)
if read_ttl < 1 or kept_ttl < 1 then return redis.error_reply('BADARG ttl: at least 1 ms') end
local record = ARGV[2]
if not record or #record < 1 or #record > 65536 then return redis.error_reply('BADARG record: 1 to 65536 bytes') end
if not ARGV[3] then return redis.error_reply('BADARG wakeup_channel: missing') end

local found = call('MGET', KEYS[2], KEYS[3], KEYS[4], KEYS[5])
local generation = found[1] and string.find(found[1], '^%d+$') and #found[1] < 16 and tonumber(found[1])
local by_created, by_revision, reset, next, bytes, writers = stream_state(found[2])
if not generation or not by_created then
  if found[4] then call('PUBLISH', ARGV[3], tag) end
  return 'absent'
end
if by_created > created or (by_created == created and by_revision > revision) then return 'stale' end
if found[3] and by_created == created and by_revision == revision then
  local _, _, _, offset = string.find(found[3], '^(%d+) (%d+) ')
  if offset then return tonumber(offset) end
end
local offset = call('RPUSH', KEYS[1], record) - 1
if found[3] or offset ~= next then
  call('DEL', KEYS[1])
  call('RPUSH', KEYS[1], record)
  generation, offset, bytes, writers = generation + 1, 0, 0, ''
end
local place = string.format('%.0f %.0f ', generation, offset)
local state = stream_state_text(created, revision, reset, offset + 1, bytes + #record + 64, writers)
call('SET', KEYS[4], place .. record, 'PX', kept_ttl)
call('SET', KEYS[2], string.format('%.0f', generation), 'PX', kept_ttl)
call('SET', KEYS[3], state, 'PX', kept_ttl)
call('PEXPIRE', KEYS[1], read_ttl)
if found[4] then call('PUBLISH', ARGV[3], tag) end
return offset
