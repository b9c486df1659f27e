-- dispatch_take
--
-- version: 1
-- promise: Takes up to `count` ids that are due at until_ms, those due first first, and tells when the next one is.
--   What is taken is gone: when its taker dies, the scan of the source finds the object again. The taker names the
--   time, because due times are those of the source's clock, and no other clock decides about them.
-- KEYS: dispatch
-- ARGV: count until_ms
--   count 1..500.
-- reply: (next_due_ms or -1, id ...), where next_due_ms is that of the first id left; it may be due, too.
-- caller: kernel.coordination.dispatch_index.DispatchIndex.take
local call = redis.call
local count, limit = tonumber(ARGV[1]), tonumber(ARGV[2])
if not count or count % 1 ~= 0 or count < 1 or count > 500 then
  return redis.error_reply('BADARG count: a whole number from 1 to 500')
end
if not limit then return redis.error_reply('BADARG until_ms: a number') end

-- One more than asked for: the next one.
local found = call('ZRANGE', KEYS[1], 0, count, 'WITHSCORES')
local reply, got = {-1}, 0
while got < count and found[2 * got + 2] and tonumber(found[2 * got + 2]) <= limit do
  got = got + 1
  reply[got + 1] = found[2 * got - 1]
end
if got > 0 then call('ZREMRANGEBYRANK', KEYS[1], 0, got - 1) end
local head = tonumber(found[2 * got + 2])
if head and head <= 9007199254740991 then reply[1] = math.ceil(head) end
return reply
