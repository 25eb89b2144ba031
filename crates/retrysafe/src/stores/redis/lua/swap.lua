-- Is the record still of the version that the writer has read? If so, it is replaced.
-- KEYS record, meta, leases, unknown, expiries
-- ARGV clock, id, bytes, from version, kind (L, U, E, or = for "as it is"), length in ms, latest due time,
--      grace in ms, whether it grants execution (1), identity, seen, hold_ms
local now, us = read_clock(ARGV[1])
local id = ARGV[2]
local head = head_of(KEYS[1], id)
if not head then
    return { 'gone', now }
end
if head == 'damaged' then
    return { 'damaged', now }
end
if head.version ~= tonumber(ARGV[4]) then
    return { 'found', now, redis.call('GET', KEYS[1]) }
end
local highest = tonumber(redis.call('HGET', KEYS[2], 'version') or 0)
if ARGV[9] == '1' then
    local refusal
    highest, refusal = may_grant(KEYS[2], now, us, ARGV[10], ARGV[11], ARGV[12])
    if not highest then
        return refusal
    end
end
local version = next_version(us, highest, head.version)
local kind, due = ARGV[5], math.min(now + tonumber(ARGV[6]), tonumber(ARGV[7]))
if kind == '=' then
    kind, due = head.kind, head.due
end
local value = value_of(id, version, now, kind, due, ARGV[3])
if kind == 'E' then
    redis.call('SET', KEYS[1], value, 'PX', math.max(due - now, 0) + tonumber(ARGV[8]))
else
    redis.call('SET', KEYS[1], value)
end
local index = { L = KEYS[3], U = KEYS[4], E = KEYS[5] }
if kind ~= head.kind then
    redis.call('ZREM', index[head.kind], id)
end
if kind ~= head.kind or due ~= head.due then
    redis.call('ZADD', index[kind], due, id)
end
-- A bucket that has lost its identity gets none from a settle: only an operator says that it is new.
if highest > 0 then
    redis.call('HSET', KEYS[2], 'version', version)
end
return { 'done', now, version }
