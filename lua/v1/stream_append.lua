-- stream_append
--
-- version: 2
-- promise: Appends records to the frames of one generation, as one step, and keeps the stream alive for another
--   frames_ttl_ms (the generation with every 16th frame). A frame's offset is its place in the list, from 0. A
--   request that is repeated by its writer, after an answer got lost, appends nothing and is answered as before, also
--   after the terminal frame. Refused, without a trace: `generation` when the stream was reset or is gone, `terminal`
--   after its terminal frame, `full` when all frames together would pass bytes_max, `request` when that writer has
--   sent a later request. When the list is not as long as it was left (it was deleted, or somebody else wrote to it),
--   what is in it is dropped and these records begin a new generation, so that no offset ever means two frames of one
--   generation.
-- KEYS: stream_frames stream_generation stream_state stream_terminal stream_watch
-- ARGV: terms wakeup_channel (record)...
--   terms is one text separated by blanks: generation; writer (letters and digits) and request, its number of this
--   call, from 1 and rising; bytes_max; frames_ttl_ms; kept_ttl_ms, for everything but the frames; wakeup_tag, a
--   number that stands for the stream, published while somebody watches. 1 to 100 records of 1 to 65536 bytes.
-- reply: the offset of the first record; (0, generation) when a new one began; or why not, as a text. Calls: 4, with
--   what requests need; one more for every 16th frame, one more while somebody watches.
-- caller: kernel.coordination.streams.Streams.append
local call = redis.call
local _, _, generation, writer, request, bytes_max, frames_ttl, kept_ttl, tag =
  string.find(ARGV[1] or '', '^(%d+) (%w+) (%d+) (%d+) ([1-9]%d*) ([1-9]%d*) (%d+)$')
if not tag then return redis.error_reply('BADARG terms: six whole numbers and a writer, separated by blanks') end
if not string.find(request, '^[1-9]') or #request > 15 then return redis.error_reply('BADARG request: from 1 to 10^15 - 1') end
if not ARGV[2] then return redis.error_reply('BADARG wakeup_channel: missing') end
local count, size = #ARGV - 2, 0
if count < 1 or count > 100 then return redis.error_reply('BADARG record: 1 to 100 of them') end
for i = 3, #ARGV do
  if #ARGV[i] < 1 or #ARGV[i] > 65536 then return redis.error_reply('BADARG record: 1 to 65536 bytes') end
  size = size + #ARGV[i] + 64
end

local found = call('MGET', KEYS[2], KEYS[3], KEYS[4], KEYS[5])
if found[1] ~= generation or not found[2] then return 'generation' end
-- Mostly there is one writer, and one pattern reads it all; texts stay texts, because each number made of one is dear.
local _, _, by, next, bytes, name, last, offset =
  string.find(found[2], '^(%d+ %d+ %w+) (%d+) (%d+) (%w+) (%d+) (%d+)$')
local others = {}
if name ~= writer then
  local writers
  _, _, by, next, bytes, writers = string.find(found[2], '^(%d+ %d+ %w+) (%d+) (%d+)(.*)$')
  if not writers then return 'generation' end
  last = nil
  for other, number, at in string.gmatch(writers, '(%w+) (%d+) (%d+)') do
    if other == writer then
      last, offset = number, at
    else
      others[#others + 1] = other .. ' ' .. number .. ' ' .. at
    end
  end
end
next, bytes = tonumber(next), tonumber(bytes)
if last then
  if last == request then return tonumber(offset) end
  if tonumber(last) > tonumber(request) then return 'request' end
end
if found[3] then return 'terminal' end
if bytes + size > tonumber(bytes_max) then return 'full' end

local first = call('RPUSH', KEYS[1], unpack(ARGV, 3)) - count
local begun = first ~= next
if begun then
  call('DEL', KEYS[1])
  call('RPUSH', KEYS[1], unpack(ARGV, 3))
  generation = tonumber(generation) + 1
  call('SET', KEYS[2], string.format('%.0f', generation))
  first, bytes, others = 0, 0, {}
end
local state = {by, first + count, bytes + size}
for i = #others > 7 and #others - 6 or 1, #others do state[#state + 1] = others[i] end
state[#state + 1] = writer
state[#state + 1] = request
state[#state + 1] = first
call('SET', KEYS[3], table.concat(state, ' '), 'PX', kept_ttl)
call('PEXPIRE', KEYS[1], frames_ttl)
if -first % 16 < count then call('PEXPIRE', KEYS[2], kept_ttl) end
if found[4] then call('PUBLISH', ARGV[2], tag) end
if begun then return {0, generation} end
return first
