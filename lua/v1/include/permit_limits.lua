-- permit_limits(concurrency, starts, paused): (max_concurrency, max_starts, whether paused) of three arguments, and what to
-- answer when one of them is none.
local function permit_limits(concurrency, starts, paused)
  local most, rate = tonumber(concurrency), tonumber(starts)
  if not most or most % 1 ~= 0 or most < 0 or most > 1000000 then
    return nil, nil, nil, redis.error_reply('BADARG max_concurrency: a whole number from 0 to 1000000')
  end
  if not rate or rate % 1 ~= 0 or rate < 0 or rate > 1000000 then
    return nil, nil, nil, redis.error_reply('BADARG max_starts: a whole number from 0 to 1000000')
  end
  if paused ~= '0' and paused ~= '1' then return nil, nil, nil, redis.error_reply('BADARG paused: 0 or 1') end
  return most, rate, paused == '1'
end
