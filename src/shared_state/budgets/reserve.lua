-- Reserves what a request may cost from all of its budgets, or from none.
-- KEYS: for each account its spent money and its leases. ARGV: the lease, milliseconds of it, the amount; then for each
-- account the position of its budget, the limit, the start of the oldest part that counts, milliseconds until what is spent
-- now is forgotten. Returns the account that refuses (0: none); then for each account what is reserved, the number of its
-- rows, and the rows.
local member, lease, amount = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3])
local accounts, refused, first = {}, 0, math.huge
for index = 1, #KEYS / 2 do
  local spent, leases, at = KEYS[index * 2 - 1], KEYS[index * 2], index * 4
  local position, limit, since = tonumber(ARGV[at]), tonumber(ARGV[at + 1]), tonumber(ARGV[at + 2])
  local sum, reserved, rows = read(spent, leases, since)
  if sum + reserved + amount > limit and position < first then refused, first = index, position end
  accounts[index] = { spent = spent, leases = leases, ttl = tonumber(ARGV[at + 3]), reserved = reserved, rows = rows }
end

local result = { tostring(refused) }
for _, account in ipairs(accounts) do
  if refused == 0 then
    reserve(account.spent, account.leases, member, lease)
    keep(account.spent, math.max(account.ttl, lease * 2))
    account.reserved = account.reserved + amount
  end
  result[#result + 1] = string.format('%.0f', account.reserved)
  result[#result + 1] = tostring(#account.rows / 3)
  for _, value in ipairs(account.rows) do result[#result + 1] = value end
end
return result
