-- stream_append
--
-- version: 3
-- promise: Appends records to the frames of one generation, as one step, and keeps the stream alive for another
--   frames_ttl_ms (the generation with every 16th frame). A frame's offset is its place in the list, from 0. A
--   request that is repeated by its writer, after an answer got lost, appends nothing and is answered as before, also
--   after the terminal frame. Refused, without a trace: `generation` when the stream was reset or is gone, `terminal`
--   after its terminal frame, `full` when all frames together would pass bytes_max, `request` when that writer has
--   sent a later request. When the list is not as long as it was left (it was deleted, or somebody else wrote to it),
--   what is in it is dropped and these records begin a new generation, so that no offset ever means two frames of one
--   generation.
-- KEYS: stream_frames stream_generation stream_state stream_terminal stream_watch
-- ARGV: wakeup_channel wakeup_tag bytes_max frames_ttl_ms kept_ttl_ms terms (record)...
--   What never changes comes first, because a client packs it once: wakeup_tag is a number that stands for the stream,
--   published while somebody watches; kept_ttl_ms is for everything but the frames. terms is one text separated by
--   blanks: generation; writer (letters and digits) and request, its number of this call, from 1 and rising. 1 to 100
--   records of 1 to 65536 bytes.
-- reply: the offset of the first record; (0, generation) when a new one began; or why not, as a text. Calls: 4, with
--   what requests need; one more for every 16th frame, one more while somebody watches.
-- caller: kernel.coordination.streams.Streams.append
local call = redis.call
local bytes_max, frames_ttl, kept_ttl = tonumber(ARGV[3]), tonumber(ARGV[4]), tonumber(ARGV[5])
if not bytes_max then return redis.error_reply('BADARG bytes_max: a number') end
if not frames_ttl or frames_ttl % 1 ~= 0 or frames_ttl < 1 or not kept_ttl or kept_ttl % 1 ~= 0 or kept_ttl < 1 then
  return redis.error_reply('BADARG ttl: a whole number, at least 1 ms')
end
local _, _, generation, writer, request = string.find(ARGV[6] or '', '^(%d+) (%w+) (%d+)$')
if not request then return redis.error_reply('BADARG terms: generation, writer and request, separated by blanks') end
local number = tonumber(request)
if number < 1 or #request > 15 then return redis.error_reply('BADARG request: from 1 to 10^15 - 1') end
local count, size = #ARGV - 6, 0
if count < 1 or count > 100 then return redis.error_reply('BADARG record: 1 to 100 of them') end
for i = 7, #ARGV do
  local bytes = #ARGV[i]
  if bytes < 1 or bytes > 65536 then return redis.error_reply('BADARG record: 1 to 65536 bytes') end
  size = size + bytes + 64
end

local found = call('MGET', KEYS[2], KEYS[3], KEYS[4], KEYS[5])
if found[1] ~= generation or not found[2] then return 'generation' end
-- Mostly there is one writer, and one pattern reads it all; texts stay texts, because each number made of one is dear.
local _, _, by, next, bytes, name, last, offset =
  string.find(found[2], '^(%d+ %d+ %w+) (%d+) (%d+) (%w+) (%d+) (%d+)$')
local others
if name ~= writer then
  local writers
  _, _, by, next, bytes, writers = string.find(found[2], '^(%d+ %d+ %w+) (%d+) (%d+)(.*)$')
  if not writers then return 'generation' end
  last, others = nil, {}
  for other, sent, at in string.gmatch(writers, '(%w+) (%d+) (%d+)') do
    if other == writer then
      last, offset = sent, at
    else
      others[#others + 1] = ' ' .. other .. ' ' .. sent .. ' ' .. at
    end
  end
end
if last then
  last = tonumber(last)
  if last == number then return tonumber(offset) end
  if last > number then return 'request' end
end
if found[3] then return 'terminal' end
if bytes + size > bytes_max then return 'full' end

local first = call('RPUSH', KEYS[1], unpack(ARGV, 7)) - count
local begun = first ~= tonumber(next)
if begun then
  call('DEL', KEYS[1])
  call('RPUSH', KEYS[1], unpack(ARGV, 7))
  generation = tonumber(generation) + 1
  call('SET', KEYS[2], string.format('%.0f', generation))
  first, bytes, others = 0, 0, nil
end
local before = others and table.concat(others, '', #others > 7 and #others - 6 or 1) or ''
local state = string.format('%s %d %d%s %s %s %d', by, first + count, bytes + size, before, writer, request, first)
call('SET', KEYS[3], state, 'PX', kept_ttl)
call('PEXPIRE', KEYS[1], frames_ttl)
if -first % 16 < count then call('PEXPIRE', KEYS[2], kept_ttl) end
if found[4] then call('PUBLISH', ARGV[1], ARGV[2]) end
if begun then return {0, generation} end
return first
