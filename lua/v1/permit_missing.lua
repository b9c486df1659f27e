-- permit_missing
--
-- version: 1
-- promise: Tells which pairs are not in the line of a resource, whatever lane they would stand in. Changes nothing.
-- KEYS: permit_waiting
-- ARGV: pairs
--   pairs is 1 to 500 times workflow_id US step in one text, separated by RS (30).
-- reply: one text, a digit for each pair in order, 1 missing, 0 in line. Calls: 1, however many pairs.
-- caller: kernel.coordination.permits.Permits.missing
local pairs_text, asked = ARGV[1] or '', {}
for pair in string.gmatch(pairs_text, '[^\30]+') do
  if not string.find(pair, '^[^\31]+\31[^\31]+$') then
    return redis.error_reply('BADARG pairs: workflow_id and step, separated by US')
  end
  asked[#asked + 1] = pair
  if #asked > 500 then break end
end
if #asked < 1 or #asked > 500 then return redis.error_reply('BADARG pairs: 1 to 500') end
local found = redis.call('ZMSCORE', KEYS[1], unpack(asked))
local digits = {}
for i = 1, #asked do digits[i] = found[i] and '0' or '1' end
return table.concat(digits)
