-- dispatch_scan_hold
--
-- version: 1
-- promise: Gives the scan of one source to one asker for hold_ms, so that the others need not do the same work. It
--   only saves work: two scans at once are harmless, and a holder that died is forgotten when the time is over. A key
--   that lives for ever, which no kernel writes, is given hold_ms to live, so that nothing can stop the scan.
-- KEYS: dispatch_scan
-- ARGV: token hold_ms
-- reply: 0 when it is the asker's now, else how many ms it is still another's.
-- caller: kernel.coordination.dispatch_index.DispatchIndex.hold_scan
local call = redis.call
local token, hold_ms = ARGV[1], tonumber(ARGV[2])
if not token or token == '' then return redis.error_reply('BADARG token: a text') end
if not hold_ms or hold_ms % 1 ~= 0 or hold_ms < 1 then
  return redis.error_reply('BADARG hold_ms: a whole number, at least 1')
end
if call('SET', KEYS[1], token, 'NX', 'PX', hold_ms) then return 0 end
local left = call('PTTL', KEYS[1])
if left > hold_ms or left == -1 then
  call('PEXPIRE', KEYS[1], hold_ms)
  left = hold_ms
end
return left > 0 and left or 1
