-- Ends a request: corrects its tokens, and frees its slots.
-- KEYS: for each account its use and its leases. ARGV: the tokens to add (or, negative, to give back), the
-- lease, the day they were reserved, and for each account tokens per minute and per day; 0 is no limit.
local time = redis.call('TIME')
local seconds = tonumber(time[1])
local now = seconds * 1000000 + tonumber(time[2])
local day = math.floor(seconds / 86400)
local change, lease, reserved = tonumber(ARGV[1]), ARGV[2], tonumber(ARGV[3])

for index = 1, #KEYS / 2 do
  local per_minute, per_day = tonumber(ARGV[index * 2 + 2]), tonumber(ARGV[index * 2 + 3])
  local use = KEYS[index * 2 - 1]
  redis.call('ZREM', KEYS[index * 2], lease)
  local held = redis.call('HMGET', use, 't', 'tt', 'd', 'dt')
  if change ~= 0 and per_minute > 0 then
    local used = 0
    if held[1] then
      used = math.max(0, tonumber(held[1]) - math.max(0, now - tonumber(held[2])) * per_minute / 60000000)
    end
    redis.call('HSET', use, 't', string.format('%.17g', math.max(0, used + change)),
      'tt', string.format('%.0f', now))
  end
  local today = 0
  if tonumber(held[3] or -1) == day then today = tonumber(held[4]) end
  -- What was reserved yesterday is not in today's sum.
  if change > 0 or (change < 0 and reserved == day) then
    redis.call('HSET', use, 'd', day, 'dt', string.format('%.0f', math.max(0, today + change)))
  end
  redis.call('EXPIRE', use, per_day > 0 and 172800 or 3600)
end
return 0
