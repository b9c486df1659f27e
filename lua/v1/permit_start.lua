-- permit_start
--
-- version: 2
-- promise: The call for which a place was granted begins now: its start is counted now, and no longer at the moment of
--   the grant, because between the two lies the commit of the attempt, and the downstream counts what it sees. Within
--   1000 ms of the grant this is always so and changes no count. Later, or when the place was renewed meanwhile, the
--   start of the grant has left the window: then it begins only when the window has room, else nothing changes and the
--   caller waits.
-- KEYS: permit_holders permit_starts
-- ARGV: owner terms [now_ms]
--   owner is workflow_id US step US claim_token; terms is one text of two numbers, lease_ms and max_starts (above 0).
-- reply: 0 when the call may begin, else the ms until it is worth asking again. Calls: 5.
-- caller: kernel.coordination.permits.Permits.start
--#include "include/now_ms.lua"
local call = redis.call
if not string.find(ARGV[1] or '', '^[^\31]+\31[^\31]+\31[^\31]+$') then
  return redis.error_reply('BADARG owner: workflow_id, step and claim_token, separated by US')
end
local _, _, lease, max_starts = string.find(ARGV[2] or '', '^(%d+) (%d+)$')
lease, max_starts = tonumber(lease), tonumber(max_starts)
if not lease or lease < 1 or lease > 3600000 then return redis.error_reply('BADARG lease_ms: from 1 to 3600000') end
if max_starts < 1 or max_starts > 1000000 then return redis.error_reply('BADARG max_starts: from 1 to 1000000') end
local now = now_ms(ARGV[3])
if not now then return redis.error_reply('BADARG now_ms: a number') end

local score = tonumber(call('ZSCORE', KEYS[1], ARGV[1]) or 0)
local granted = (score - score % 1024) / 1024 - lease
local moved = 0
if granted > now - 1000 and granted <= now then moved = call('LREM', KEYS[2], 1, granted) end
if moved == 0 then
  local mark = tonumber(call('LINDEX', KEYS[2], max_starts - 1) or 0)
  -- A mark that lies further in the future was made before the server's clock was set back, and says nothing now.
  if mark + 1000 > now and mark <= now + 1000 then return mark + 1000 - now end
end
local keep = max_starts > 512 and max_starts or 512
if call('LPUSH', KEYS[2], now) > 2 * keep then call('LTRIM', KEYS[2], 0, keep - 1) end
call('PEXPIRE', KEYS[2], 60000)
return 0
