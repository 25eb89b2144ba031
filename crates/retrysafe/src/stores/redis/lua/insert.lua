-- Is this key new? If so, whoever asks may execute.
-- KEYS record, meta, all, leases, expiries
-- ARGV clock, id, bytes, lease_ms, identity, seen, hold_ms
local now, us = read_clock(ARGV[1])
local id = ARGV[2]
local head = head_of(KEYS[1], id)
if head == 'damaged' then
    return { 'damaged', now }
end
if head and not (head.kind == 'E' and head.due <= now) then
    return { 'found', now, redis.call('GET', KEYS[1]) }
end
local highest, refusal = may_grant(KEYS[2], now, us, ARGV[5], ARGV[6], ARGV[7])
if not highest then
    return refusal
end
local version = next_version(us, highest, 0)
local due = now + tonumber(ARGV[4])
redis.call('SET', KEYS[1], value_of(id, version, now, 'L', due, ARGV[3]))
redis.call('ZADD', KEYS[3], 0, id)
redis.call('ZADD', KEYS[4], due, id)
if head then
    redis.call('ZREM', KEYS[5], id)
end
redis.call('HSET', KEYS[2], 'version', version)
return { 'done', now, version }
