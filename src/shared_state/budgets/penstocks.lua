-- Notes that a penstock shares budgets, and returns how many do.
-- KEYS: when each counts no longer (a sorted set). ARGV: the penstock, milliseconds for which it counts.
local time = redis.call('TIME')
local now = tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', now)
redis.call('ZADD', KEYS[1], string.format('%.0f', now + tonumber(ARGV[2])), ARGV[1])
redis.call('PEXPIRE', KEYS[1], tonumber(ARGV[2]) * 2)
return { tostring(redis.call('ZCARD', KEYS[1])) }
