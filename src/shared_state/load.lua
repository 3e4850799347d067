-- Reports what a penstock has in flight, and returns what the others reported.
-- KEYS: the reports, their versions (hashes by penstock), and when they end (a sorted set). ARGV: this penstock, the
-- lease in milliseconds, the version of its report, the report or '' where it is unchanged; then pairs: a penstock and the
-- version of its report that is known. Returns '1' where the own report is here, else '0'; then for each other penstock its
-- name, the version of its report, and the report or '' where it is known.
local time = redis.call('TIME')
local now = tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
local reports, versions, ends = KEYS[1], KEYS[2], KEYS[3]
local own, lease, version, report = ARGV[1], tonumber(ARGV[2]), ARGV[3], ARGV[4]

local ended = redis.call('ZRANGEBYSCORE', ends, '-inf', now, 'LIMIT', 0, 100)
for _, name in ipairs(ended) do
  redis.call('ZREM', ends, name)
  redis.call('HDEL', reports, name)
  redis.call('HDEL', versions, name)
end

if report ~= '' then
  redis.call('HSET', reports, own, report)
  redis.call('HSET', versions, own, version)
end
redis.call('ZADD', ends, now + lease, own)
for _, key in ipairs(KEYS) do redis.call('PEXPIRE', key, lease * 2) end

local known = {}
for index = 5, #ARGV - 1, 2 do known[ARGV[index]] = ARGV[index + 1] end
local result = { redis.call('HGET', versions, own) == version and '1' or '0' }
for _, name in ipairs(redis.call('ZREVRANGE', ends, 0, 64)) do
  local current = redis.call('HGET', versions, name)
  if name ~= own and current then
    local text = ''
    if known[name] ~= current then text = redis.call('HGET', reports, name) or '' end
    result[#result + 1], result[#result + 2], result[#result + 3] = name, current, text
  end
end
return result
