-- Is this the server that the bucket knows? A change holds its grants from now on.
-- KEYS meta
-- ARGV clock, identity, seen, hold_ms
local now, us = read_clock(ARGV[1])
local highest, refusal = may_grant(KEYS[1], now, us, ARGV[2], ARGV[3], ARGV[4])
return refusal or { 'done', now, highest }
