-- Reads and corrects one account of a budget. `spent`: a hash with the money that each ledger has spent by part of time
-- (`part/ledger`), and the reserved sum (`reserved`). `leases`: a sorted set of what requests have reserved
-- (`penstock:request:amount`), with the time until which it counts. Amounts are billionths.
local time = redis.call('TIME')
local now = tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
-- Clocks of penstocks may be as many seconds apart: what is over for one still counts for another.
local MARGIN = 120

local function keep(key, ms)
  if redis.call('PTTL', key) < ms then redis.call('PEXPIRE', key, string.format('%.0f', ms)) end
end

local function release(spent, leases, member)
  if redis.call('ZREM', leases, member) == 1 then
    redis.call('HINCRBY', spent, 'reserved', '-' .. string.match(member, '(%d+)$'))
  end
end

local function reserve(spent, leases, member, lease)
  if redis.call('ZADD', leases, string.format('%.0f', now + lease), member) == 1 then
    redis.call('HINCRBY', spent, 'reserved', string.match(member, '(%d+)$'))
  end
  keep(leases, lease * 2)
end

-- Returns the sum that was spent, what is reserved, and the rows that count: part, ledger, amount.
local function read(spent, leases, since)
  for _, member in ipairs(redis.call('ZRANGEBYSCORE', leases, '-inf', now, 'LIMIT', 0, 1000)) do
    release(spent, leases, member)
  end
  if redis.call('EXISTS', leases) == 0 then redis.call('HDEL', spent, 'reserved') end
  local all, rows, sum, reserved = redis.call('HGETALL', spent), {}, 0, 0
  for index = 1, #all, 2 do
    local name, value = all[index], all[index + 1]
    local part, ledger = string.match(name, '^(%d+)/(.+)$')
    if name == 'reserved' then
      reserved = math.max(0, tonumber(value))
    elseif part and tonumber(part) >= since then
      sum = sum + tonumber(value)
      rows[#rows + 1], rows[#rows + 2], rows[#rows + 3] = part, ledger, value
    elseif part and tonumber(part) < since - MARGIN then
      redis.call('HDEL', spent, name)
    end
  end
  return sum, reserved, rows
end
