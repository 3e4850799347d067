-- Takes what a request needs from all accounts of its client, or nothing.
-- KEYS: for each account its use and its leases. ARGV: tokens, lease, milliseconds of a lease, and for each
-- account requests and tokens per minute, tokens per day, requests in flight; 0 is no limit.
-- Returns the account that refuses (0: none), its limit, the wait in microseconds, the day; then for each
-- account what is left of requests and when it is full, and the same of tokens.
local time = redis.call('TIME')
local seconds = tonumber(time[1])
local now = seconds * 1000000 + tonumber(time[2])
local day = math.floor(seconds / 86400)
local tokens, lease, lease_ms = tonumber(ARGV[1]), ARGV[2], tonumber(ARGV[3])

local function level(used, since, limit)
  if limit == 0 or not used then return 0 end
  return math.max(0, tonumber(used) - math.max(0, now - tonumber(since)) * limit / 60000000)
end

-- A millionth of a request is the error of many additions.
local function wait(used, count, limit)
  local missing = used + count - limit
  if limit == 0 or missing < 0.000001 then return 0 end
  return math.ceil(missing * 60000000 / limit)
end

local accounts, refused = {}, {0, 0, 0}
for index = 1, #KEYS / 2 do
  local at = index * 4
  local limits = {tonumber(ARGV[at]), tonumber(ARGV[at + 1]), tonumber(ARGV[at + 2]), tonumber(ARGV[at + 3])}
  local use, leases = KEYS[index * 2 - 1], KEYS[index * 2]
  local held = redis.call('HMGET', use, 'r', 'rt', 't', 'tt', 'd', 'dt')
  local account = {
    use = use, leases = leases, limits = limits,
    requests = level(held[1], held[2], limits[1]),
    tokens = level(held[3], held[4], limits[2]),
    today = 0,
  }
  if tonumber(held[5] or -1) == day then account.today = tonumber(held[6]) end
  accounts[index] = account
  if refused[1] == 0 then
    local for_requests = wait(account.requests, 1, limits[1])
    local for_tokens = wait(account.tokens, tokens, limits[2])
    if limits[3] > 0 and account.today + tokens > limits[3] then
      refused = {index, 2, (86400 - seconds % 86400) * 1000000}
    elseif for_requests > 0 then
      refused = {index, 0, for_requests}
    elseif for_tokens > 0 then
      refused = {index, 1, for_tokens}
    elseif limits[4] > 0 then
      redis.call('ZREMRANGEBYSCORE', leases, '-inf', now / 1000)
      if redis.call('ZCARD', leases) >= limits[4] then refused = {index, 3, 1000000} end
    end
  end
end

local result = {refused[1], refused[2], refused[3], day}
for _, account in ipairs(accounts) do
  local limits = account.limits
  if refused[1] == 0 then
    account.requests = account.requests + 1
    account.tokens = account.tokens + tokens
    account.today = account.today + tokens
    redis.call('HSET', account.use,
      'r', string.format('%.17g', account.requests), 'rt', string.format('%.0f', now),
      't', string.format('%.17g', account.tokens), 'tt', string.format('%.0f', now),
      'd', day, 'dt', string.format('%.0f', account.today))
    redis.call('EXPIRE', account.use, limits[3] > 0 and 172800 or 3600)
    if limits[4] > 0 then
      redis.call('ZADD', account.leases, string.format('%.0f', now / 1000 + lease_ms), lease)
      redis.call('PEXPIRE', account.leases, lease_ms * 2)
    end
  end
  for _, of in ipairs({{account.requests, limits[1]}, {account.tokens, limits[2]}}) do
    local limit = math.max(1, of[2])
    result[#result + 1] = math.max(0, math.floor(limit - of[1] + 0.000001))
    result[#result + 1] = math.ceil(of[1] * 60000000 / limit)
  end
end
return result
