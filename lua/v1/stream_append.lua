-- stream_append
--
-- version: 1
-- promise: Appends records to the frames of one generation, as one step, and keeps the stream alive for another
--   frames_ttl_ms. A frame's offset is its place in the list, from 0. A request that is repeated by its writer, after
--   an answer got lost, appends nothing and is answered as before, whatever has happened since. Refused, without a
--   trace: `generation` when the stream was reset or is gone, `terminal` after its terminal frame, `full` when all
--   frames together would pass bytes_max, `request` when that writer has sent a later request. When the list is not
--   as long as it was left (it was deleted, or somebody else wrote to it), what is in it is dropped and these records
--   begin a new generation, so that no offset ever means two frames of one generation.
-- KEYS: stream_frames stream_generation stream_state stream_terminal stream_watch
-- ARGV: terms wakeup_channel (record)...
--   terms is one text separated by blanks: generation; writer (letters and digits) and request, its number of this
--   call, from 1 and rising; bytes_max; frames_ttl_ms; kept_ttl_ms, for everything but the frames; wakeup_tag, a
--   number that stands for the stream, published while somebody watches. 1 to 100 records of 1 to 65536 bytes.
-- reply: the offset of the first record; (0, generation) when a new one began; or why not, as a text. Calls: 4, one
--   for the request, one more while somebody watches.
-- caller: kernel.coordination.streams.Streams.append
--#include "include/stream_state.lua"
local call = redis.call
local _, _, generation, writer, request, bytes_max, frames_ttl, kept_ttl, tag =
  string.find(ARGV[1] or '', '^(%d+) (%w+) (%d+) (%d+) (%d+) (%d+) (%d+)$')
if not tag then return redis.error_reply('BADARG terms: six whole numbers and a writer, separated by blanks') end
request, bytes_max = tonumber(request), tonumber(bytes_max)
frames_ttl, kept_ttl = tonumber(frames_ttl), tonumber(kept_ttl)
if request < 1 or request > 9007199254740991 then return redis.error_reply('BADARG request: from 1 to 2^53 - 1') end
if frames_ttl < 1 or kept_ttl < 1 then return redis.error_reply('BADARG ttl: at least 1 ms') end
if not ARGV[2] then return redis.error_reply('BADARG wakeup_channel: missing') end
local count, size = #ARGV - 2, 0
if count < 1 or count > 100 then return redis.error_reply('BADARG record: 1 to 100 of them') end
for i = 3, #ARGV do
  if #ARGV[i] < 1 or #ARGV[i] > 65536 then return redis.error_reply('BADARG record: 1 to 65536 bytes') end
  size = size + #ARGV[i] + 64
end

local found = call('MGET', KEYS[2], KEYS[3], KEYS[4], KEYS[5])
local created, revision, reset, next, bytes, writers = stream_state(found[2])
if not created or found[1] ~= generation then return 'generation' end
local _, _, last, offset = string.find(writers, ' ' .. writer .. ' (%d+) (%d+)')
if last then
  if tonumber(last) == request then return tonumber(offset) end
  if tonumber(last) > request then return 'request' end
end
if found[3] then return 'terminal' end
if bytes + size > bytes_max then return 'full' end

local first = call('RPUSH', KEYS[1], unpack(ARGV, 3)) - count
local begun = first ~= next
if begun then
  call('DEL', KEYS[1])
  call('RPUSH', KEYS[1], unpack(ARGV, 3))
  generation = string.format('%.0f', tonumber(generation) + 1)
  call('SET', KEYS[2], generation)
  first, bytes, writers = 0, 0, ''
end
local others, kept = {}, 0
for name, number, at in string.gmatch(writers, ' (%w+) (%d+) (%d+)') do
  if name ~= writer then
    kept = kept + 1
    others[kept] = ' ' .. name .. ' ' .. number .. ' ' .. at
  end
end
local from = kept > 7 and kept - 6 or 1
local own = string.format(' %s %.0f %.0f', writer, request, first)
writers = table.concat(others, '', from, kept) .. own
local state = stream_state_text(created, revision, reset, first + count, bytes + size, writers)
call('SET', KEYS[3], state, 'PX', kept_ttl)
call('PEXPIRE', KEYS[1], frames_ttl)
call('PEXPIRE', KEYS[2], kept_ttl)
if found[4] then call('PUBLISH', ARGV[2], tag) end
if begun then return {0, tonumber(generation)} end
return first
