-- now_ms(given): the one reading of time that a script makes, in milliseconds.
--
-- `given` is the last ARGV of a script, used by tests to move time; without it the server's TIME decides, so
-- that all workers share one clock. Read once: before Redis 7.2 TIME moves on while a script runs.
local function now_ms(given)
  if given then return tonumber(given) end
  local time = redis.call('TIME')
  return time[1] * 1000 + (time[2] - time[2] % 1000) / 1000
end
