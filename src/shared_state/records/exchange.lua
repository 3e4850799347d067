-- Takes over records that are newer than those here, and returns what has changed since a number.
-- KEYS: the records by id (`final version tie text`), the number of the last change of each (a sorted set), a hash with the
-- number of changes and the identity of all this, which is another one once the server has lost it, and the ends of records
-- that are not kept for good (a sorted set). ARGV: the identity for a new start, the identity and the number of changes that
-- the caller knows, the most records to return; then for each record its id, whether it is final, its version, its tie, its
-- end in seconds since 1970 (0: none), its text. Returns the identity, the number of changes that the caller
-- knows from now on, and the changed records: id, record.
local records, changes, state, ends = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
for _, id in ipairs(redis.call('ZRANGEBYSCORE', ends, '-inf', '(' .. redis.call('TIME')[1], 'LIMIT', 0, 1000)) do
  redis.call('HDEL', records, id)
  redis.call('ZREM', changes, id)
  redis.call('ZREM', ends, id)
end
local identity = redis.call('HGET', state, 'identity')
if not identity then
  identity = ARGV[1]
  redis.call('HSET', state, 'identity', identity)
end

local function is_newer(final, version, tie, held)
  local old_final, old_version, old_tie = string.match(held, '^(%d+) (%d+) (%d+) ')
  if not old_final then return true end
  if final ~= tonumber(old_final) then return final > tonumber(old_final) end
  if version ~= tonumber(old_version) then return version > tonumber(old_version) end
  return tie > tonumber(old_tie)
end

for index = 5, #ARGV, 6 do
  local id, final, version, tie = ARGV[index], ARGV[index + 1], ARGV[index + 2], ARGV[index + 3]
  local held = redis.call('HGET', records, id)
  if not held or is_newer(tonumber(final), tonumber(version), tonumber(tie), held) then
    redis.call('HSET', records, id, table.concat({ final, version, tie, ARGV[index + 5] }, ' '))
    if ARGV[index + 4] == '0' then
      redis.call('ZREM', ends, id)
    else
      redis.call('ZADD', ends, ARGV[index + 4], id)
    end
    redis.call('ZADD', changes, redis.call('HINCRBY', state, 'changes', 1), id)
  end
end

local known = ARGV[2] == identity and ARGV[3] or '0'
local found = redis.call('ZRANGEBYSCORE', changes, '(' .. known, '+inf', 'WITHSCORES', 'LIMIT', 0, tonumber(ARGV[4]))
local result = { identity, found[#found] or known }
for index = 1, #found, 2 do
  result[#result + 1] = found[index]
  result[#result + 1] = redis.call('HGET', records, found[index]) or ''
end
return result
