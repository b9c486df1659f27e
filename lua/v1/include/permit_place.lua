-- Places of one resource: the sorted set of holders, owner -> expiry_ms * 1024 + request, and one member more, the
-- text of one US, whose score is the state of the resource:
--   PERMIT_STATE + epoch * 40 + (20 when somebody may be waiting) + cursor
-- So one ZMSCORE reads place and state, one ZADD writes them, and who loses the one has lost the other. The epoch is
-- the time in ms at which the state was first written after it had gone: another epoch tells a wipe. All scores stay
-- below 2^52, where each server prints whole numbers exactly; expiries reach PERMIT_STATE in the year 2106.
local PERMIT_STATE = 4300000000000000
local PERMIT_NOBODY = '\31'
-- No lease may be longer than one hour, so that a key which nobody touches any more is of no use when it goes.
local PERMIT_TTL_MS = 3660000

-- permit_state(score): (epoch or false, whether somebody may be waiting, cursor); false when the state is gone.
local function permit_state(score)
  local state = score and tonumber(score) - PERMIT_STATE
  if not state or state < 0 then return false, false, 0 end
  local rest = state % 40
  return (state - rest) / 40, rest >= 20, rest % 20
end

-- permit_state_score(epoch, lined, cursor): the score to write.
local function permit_state_score(epoch, lined, cursor)
  return PERMIT_STATE + epoch * 40 + (lined and 20 or 0) + cursor
end

