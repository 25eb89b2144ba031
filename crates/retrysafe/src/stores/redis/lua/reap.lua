-- Which records of this bucket are expired? They are deleted.
-- KEYS meta, all, expiries
-- ARGV clock, how a record's key begins, limit, after how many ms a damaged record is looked at again
local now = read_clock(ARGV[1])
local due = redis.call('ZRANGEBYSCORE', KEYS[3], '-inf', now, 'LIMIT', 0, tonumber(ARGV[3]))
local reaped = 0
for _, id in ipairs(due) do
    local hex = string.gsub(id, '.', function(byte) return string.format('%02x', string.byte(byte)) end)
    local key = ARGV[2] .. hex
    local head = head_of(key, id)
    if not head then
        -- Redis itself has ended it: nobody reaped for long.
        redis.call('ZREM', KEYS[3], id)
        redis.call('ZREM', KEYS[2], id)
    elseif head == 'damaged' then
        redis.call('ZADD', KEYS[3], now + tonumber(ARGV[4]), id)
    elseif head.kind == 'E' and head.due <= now then
        redis.call('DEL', key)
        redis.call('ZREM', KEYS[3], id)
        redis.call('ZREM', KEYS[2], id)
        reaped = reaped + 1
    else
        redis.call('ZREM', KEYS[3], id)
    end
end
return { now, #due, reaped }
