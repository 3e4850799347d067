-- Reports to an account what was spent and what is reserved, and returns it as `reserve.lua` does.
-- KEYS: its spent money and its leases. ARGV: the start of the oldest part that counts, milliseconds until what is spent
-- now is forgotten, milliseconds of a lease, the number of sums, the number of leases to renew; then each sum as
-- `part/ledger` and amount, the leases to renew, and the leases that have ended.
local spent, leases = KEYS[1], KEYS[2]
local since, ttl, lease = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3])
local sums, renewed = tonumber(ARGV[4]), tonumber(ARGV[5])
for index = 6, 4 + sums * 2, 2 do
  local name, amount = ARGV[index], ARGV[index + 1]
  -- A sum only grows: an older one arrives late.
  if tonumber(redis.call('HGET', spent, name) or -1) < tonumber(amount) then redis.call('HSET', spent, name, amount) end
end
for index = 6 + sums * 2, 5 + sums * 2 + renewed do reserve(spent, leases, ARGV[index], lease) end
for index = 6 + sums * 2 + renewed, #ARGV do release(spent, leases, ARGV[index]) end
if redis.call('EXISTS', spent) == 1 then keep(spent, math.max(ttl, lease * 2)) end
local _, reserved, rows = read(spent, leases, since)
local result = { '0', string.format('%.0f', reserved), tostring(#rows / 3) }
for _, value in ipairs(rows) do result[#result + 1] = value end
return result
