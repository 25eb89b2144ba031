-- What does the record say, unless the reader knows it?
-- KEYS record
-- ARGV clock, id, known version (or nothing)
local now = read_clock(ARGV[1])
local head = head_of(KEYS[1], ARGV[2])
if not head then
    return { 'gone', now }
end
if head == 'damaged' then
    return { 'damaged', now }
end
if head.version == tonumber(ARGV[3]) then
    return { 'known', now }
end
return { 'found', now, redis.call('GET', KEYS[1]) }
