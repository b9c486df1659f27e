-- stream_read
--
-- version: 1
-- promise: Reads frames from an offset on, at most bytes_max and count_max of them but always one if there is one,
--   and in the same step the generation that they are of and the terminal reference: no answer ever mixes two
--   generations. Removes nothing. An offset that the present generation does not have, or that is meant for another
--   one, reads from 0. With watch_ms, changes of the stream are published for that long.
-- KEYS: stream_frames stream_generation stream_terminal stream_watch
-- ARGV: terms
--   terms is one text of whole numbers separated by blanks: generation (0: none); offset; bytes_max; count_max
--   1..1000; watch_ms (0: do not watch).
-- reply: (generation or 0, offset of the first record, how many frames there are, terminal reference or an empty
--   text, record ...). Calls: 2 and one for every 16 frames, one more to watch.
-- caller: kernel.coordination.streams.Streams.read
local call = redis.call
local _, _, given, offset, bytes_max, count_max, watch =
  string.find(ARGV[1] or '', '^(%d+) (%d+) (%d+) (%d+) (%d+)$')
if not watch then return redis.error_reply('BADARG terms: five whole numbers, separated by blanks') end
offset, bytes_max, count_max = tonumber(offset), tonumber(bytes_max), tonumber(count_max)
if count_max < 1 or count_max > 1000 then return redis.error_reply('BADARG count_max: from 1 to 1000') end

if watch ~= '0' then call('SET', KEYS[4], '1', 'PX', watch) end
local found = call('MGET', KEYS[2], KEYS[3])
local generation = found[1] and string.find(found[1], '^%d+$') and #found[1] < 16 and found[1] or '0'
local length = call('LLEN', KEYS[1])
if given ~= generation or offset > length then offset = 0 end
local reply, bytes, taken, at = {tonumber(generation), offset, length, found[2] or ''}, 0, 0, offset
while generation ~= '0' and at < length and taken < count_max do
  local records = call('LRANGE', KEYS[1], at, at + 15)
  for i = 1, #records do
    local record = records[i]
    bytes = bytes + #record
    if taken == count_max or (taken > 0 and bytes > bytes_max) then return reply end
    taken = taken + 1
    reply[4 + taken] = record
  end
  at = at + 16
end
return reply
