-- dispatch_scan_free
--
-- version: 1
-- promise: Gives the scan back before its time is over, when it is still held under this token. Another's hold, that
--   began after this one had run out, is left alone.
-- KEYS: dispatch_scan
-- ARGV: token
-- reply: 1 when it was held under the token, else 0.
-- caller: kernel.coordination.dispatch_index.DispatchIndex.free_scan
local call = redis.call
if not ARGV[1] or ARGV[1] == '' then return redis.error_reply('BADARG token: a text') end
if call('GET', KEYS[1]) ~= ARGV[1] then return 0 end
return call('DEL', KEYS[1])
