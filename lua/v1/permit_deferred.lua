-- permit_deferred
--
-- version: 2
-- promise: Tells that the deferral of a refused pair is committed in the durable store. A place may have been handed to
--   the pair between its refusal and that commit; then its id was pushed while its claim was still held, and whoever
--   took it could do nothing. So the id is pushed once more, due now, the reservation lasts 2 s from now, and a wakeup
--   is published. The same push is made for a pair that must be in the line and is not: Redis was emptied before that
--   commit, and whoever filled the lanes again could not see that it waits; nobody would hand it anything.
-- KEYS: permit_holders permit_starts permit_reserved permit_waiting permit_line lane_0 lane_1 lane_2 lane_3
-- ARGV: pair lane wakeup_channel in_line [now_ms]
--   in_line is 1 when the pair must be in the line, else 0.
-- reply: 1 when the id was pushed, else 0. Calls: 1 when no place was reserved, 1 more when in_line.
-- caller: kernel.coordination.permits.Permits.deferred
--#include "include/now_ms.lua"
local call = redis.call
local lane = tonumber(ARGV[2])
local _, _, id = string.find(ARGV[1] or '', '^([^\31]+)\31[^\31]+$')
if not id then return redis.error_reply('BADARG pair: workflow_id and step, separated by US') end
if not lane or lane % 1 ~= 0 or lane < 0 or lane > 3 then
  return redis.error_reply('BADARG lane: 0, 1, 2 or 3')
end
if not ARGV[3] then return redis.error_reply('BADARG wakeup_channel: missing') end
if ARGV[4] ~= '0' and ARGV[4] ~= '1' then return redis.error_reply('BADARG in_line: 0 or 1') end
local until_ms = tonumber(call('ZSCORE', KEYS[3], ARGV[1]) or nil)
local forgotten = not until_ms and ARGV[4] == '1' and not call('ZSCORE', KEYS[4], ARGV[1])
if not until_ms and not forgotten then return 0 end
local now = now_ms(ARGV[5])
if not now then return redis.error_reply('BADARG now_ms: a number') end
if until_ms and until_ms <= now then return 0 end
--#include "include/permit_line.lua"
local due = until_ms and until_ms - PERMIT_RESERVED_MS or now
if due < now then due = now end
permit_enqueue(id, lane, due)
if until_ms then call('ZADD', KEYS[3], due + PERMIT_RESERVED_MS, ARGV[1]) end
if ARGV[3] ~= '' then call('PUBLISH', ARGV[3], string.format('%.0f', due)) end
return 1
