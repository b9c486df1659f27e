-- permit_renew
--
-- version: 3
-- promise: Extends the places that owners of one resource still hold. An owner without a place gets it back only if
--   the epoch is not the one of its grant: then Redis was wiped, and the call that the place stands for still runs
--   (at most the limit once more, until every owner has renewed). An owner whose lease just ran out is told so and
--   not put back above the limit. A place of another request of the same owner is not this one.
-- KEYS: permit_holders
-- ARGV: lease_ms owners [now_ms]
--   owners is 1 to 500 times owner, request, epoch in one text, each followed by RS (30); lease_ms 1..3600000.
-- reply: one text, a digit for each owner in order, 0 lost, 1 renewed, 2 restored; then the epoch, if any was restored.
--   Calls: 4, however many owners.
-- caller: kernel.coordination.permits.Permits.renew
--#include "include/now_ms.lua"
--#include "include/permit_place.lua"
local call = redis.call
local lease = tonumber(ARGV[1])
if not lease or lease % 1 ~= 0 or lease < 1 or lease > 3600000 then
  return redis.error_reply('BADARG lease_ms: a whole number from 1 to 3600000')
end
local owners, requests, epochs, text, at = {}, {}, {}, ARGV[2] or '', 1
-- Each owner has to begin where the last one ended: a search would try every byte of a text that is none of ours.
while at <= #text do
  local _, last, owner, request, epoch = string.find(text, '^([^\30]+)\30(%d+)\30(%d+)\30', at)
  if not last then return redis.error_reply('BADARG owners: 1 to 500 of owner, request and epoch') end
  if #request > 4 or tonumber(request) > 1023 or #epoch > 15 then
    return redis.error_reply('BADARG owners: a request from 0 to 1023 and an epoch')
  end
  owners[#owners + 1], requests[#requests + 1], epochs[#epochs + 1] = owner, tonumber(request), tonumber(epoch)
  at = last + 1
end
if #owners < 1 or #owners > 500 then
  return redis.error_reply('BADARG owners: 1 to 500 of owner, request and epoch')
end
local now = now_ms(ARGV[3])
if not now then return redis.error_reply('BADARG now_ms: a number') end

owners[#owners + 1] = PERMIT_NOBODY
local scores = call('ZMSCORE', KEYS[1], unpack(owners))
local epoch, lined, cursor = permit_state(scores[#owners])
-- Mostly it is one place, and still there: its score is all that changes.
local only = #owners == 2 and epoch and scores[1] and tonumber(scores[1])
if only and only % 1024 == requests[1] and only > now * 1024 + 1023 then
  call('ZADD', KEYS[1], (now + lease) * 1024 + requests[1], owners[1])
  call('PEXPIRE', KEYS[1], PERMIT_TTL_MS)
  return '1'
end

local words, outcomes = {}, {}
if not epoch then
  epoch = now
  words[1], words[2] = permit_state_score(epoch, lined, cursor), PERMIT_NOBODY
end
for i = 1, #owners - 1 do
  local score = scores[i] and tonumber(scores[i])
  local outcome = '0'
  if score and score % 1024 == requests[i] and score > now * 1024 + 1023 then
    outcome = '1'
  elseif epochs[i] ~= epoch and not score then
    outcome = '2'
  end
  if outcome ~= '0' then
    words[#words + 1], words[#words + 2] = (now + lease) * 1024 + requests[i], owners[i]
  end
  outcomes[i] = outcome
end
if words[1] then
  call('ZADD', KEYS[1], unpack(words))
  call('PEXPIRE', KEYS[1], PERMIT_TTL_MS)
end
local digits = table.concat(outcomes)
return string.find(digits, '2') and digits .. string.format('%.0f', epoch) or digits
