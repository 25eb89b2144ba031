-- An operator says that this bucket may be trusted, after so many ms.
-- KEYS meta
-- ARGV clock, identity, hold_ms
local now, us = read_clock(ARGV[1])
local hold_ms = tonumber(ARGV[3])
redis.call('HSET', KEYS[1], 'identity', ARGV[2], 'held_until', hold_ms > 0 and now + hold_ms or 0)
redis.call('HSETNX', KEYS[1], 'version', us)
return { 'done', now, 0 }
