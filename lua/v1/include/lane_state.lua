-- lane_state(key): what the lanes remember between two pops, as (state, cursor, burst left).
--
-- One decimal integer, so that a pop reads it with one GET and changes it with one INCRBY:
--   epoch * 10000 + burst left * 100 + cursor
-- The epoch is the time of the first pop after the key was last missing, in units of 10 ms: a wipe of Redis takes
-- the key away, and the next pop writes another epoch. Anything that no pop can have written counts as missing.
local function lane_state(key)
  local stored = redis.call('GET', key)
  local state = stored and string.find(stored, '^[1-9]%d*$') and tonumber(stored)
  if not state or state > 9007199254740991 then return false, 0, 0 end
  local cursor = state % 100
  return state, cursor, (state % 10000 - cursor) / 100
end
