-- permit_stats
--
-- version: 1
-- promise: Tells one resource at one instant: places, starts, who waits. Changes nothing.
-- KEYS: permit_holders permit_starts permit_reserved permit_waiting permit_line
-- ARGV: holders_max pair [now_ms]
--   holders_max 0..1000; pair is workflow_id US step, or empty.
-- reply: now_ms, epoch (0 when nobody was here since the last wipe), places held, starts in the last 1000 ms, places
--   reserved, entries waiting, those of lane 0, 1, 2, 3; the pair's place in the line of its lane (0 when it does not
--   wait), that lane or -1, whether a place is reserved for it; then of up to holders_max holders, those first whose
--   lease ends first, owner and expiry in ms in turn.
-- caller: kernel.coordination.permits.Permits.stats
--#include "include/now_ms.lua"
--#include "include/permit_place.lua"
local call = redis.call
local holders_max = tonumber(ARGV[1])
if not holders_max or holders_max % 1 ~= 0 or holders_max < 0 or holders_max > 1000 then
  return redis.error_reply('BADARG holders_max: a whole number from 0 to 1000')
end
if not ARGV[2] then return redis.error_reply('BADARG pair: missing') end
local now = now_ms(ARGV[3])
if not now then return redis.error_reply('BADARG now_ms: a number') end
local LANE = 10000000000000
local epoch = permit_state(call('ZSCORE', KEYS[1], PERMIT_NOBODY))
local expired = string.format('(%.0f', now * 1024 + 1023)
local last = string.format('(%.0f', PERMIT_STATE)
local after_now = string.format('(%.0f', now)

-- Marks are in the order of their times, the newest first: the first one that is too old is searched by halves.
local low, high = 0, call('LLEN', KEYS[2])
while low < high do
  local middle = (low + high - (low + high) % 2) / 2
  if tonumber(call('LINDEX', KEYS[2], middle)) > now - 1000 then low = middle + 1 else high = middle end
end

local out = {now, epoch or 0, call('ZCOUNT', KEYS[1], expired, last), low, call('ZCOUNT', KEYS[3], after_now, '+inf'),
  call('ZCOUNT', KEYS[4], after_now, '+inf')}
for lane = 0, 3 do
  out[#out + 1] = call('ZCOUNT', KEYS[5], lane * LANE, string.format('(%.0f', (lane + 1) * LANE))
end
local stands = ARGV[2] ~= '' and call('ZSCORE', KEYS[5], ARGV[2])
if stands then
  local lane = (tonumber(stands) - tonumber(stands) % LANE) / LANE
  out[11], out[12] = call('ZCOUNT', KEYS[5], lane * LANE, stands), lane
else
  out[11], out[12] = 0, -1
end
out[13] = ARGV[2] ~= '' and call('ZSCORE', KEYS[3], ARGV[2]) and 1 or 0
if holders_max > 0 then
  local found = call('ZRANGEBYSCORE', KEYS[1], expired, last, 'WITHSCORES', 'LIMIT', 0, holders_max)
  for i = 1, #found, 2 do
    local score = tonumber(found[i + 1])
    out[#out + 1] = found[i]
    out[#out + 1] = (score - score % 1024) / 1024
  end
end
return out
