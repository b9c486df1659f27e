-- stream_state(text): the bookkeeping of one stream, taken apart; nothing when it is absent or no kernel wrote it.
--
-- `created revision reset next bytes` and then ` writer request offset` for each of the last eight writers, latest
-- last. created and revision say whose word counts: those of the workflow record of the last reset or finish. next is
-- the offset of the next frame, so that a lost list is noticed; bytes counts every frame with 64 for its place.
local function stream_state(text)
  local _, _, created, revision, reset, next, bytes, writers =
    string.find(text or '', '^(%d+) (%d+) (%w+) (%d+) (%d+)(.*)$')
  if not writers then return nil end
  return tonumber(created), tonumber(revision), reset, tonumber(next), tonumber(bytes), writers
end

local function stream_state_text(created, revision, reset, next, bytes, writers)
  return string.format('%.0f %.0f %s %.0f %.0f', created, revision, reset, next, bytes) .. writers
end
