-- Can this bucket be written? What is written means nothing.
-- KEYS meta
-- ARGV clock
local now = read_clock(ARGV[1])
if redis.call('EXISTS', KEYS[1]) == 0 then
    return { 'absent', now }
end
redis.call('HSET', KEYS[1], 'probed', now)
return { 'done', now, 0 }
