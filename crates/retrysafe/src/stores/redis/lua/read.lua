-- What do these records of one bucket say?
-- KEYS the records
-- ARGV clock, then the id of each
-- Gives the clock, then for each record its value, 1 if it is damaged, or 0 if there is none.
local now = read_clock(ARGV[1])
local found = { now }
for at, key in ipairs(KEYS) do
    local head = head_of(key, ARGV[at + 1])
    if not head then
        found[at + 1] = 0
    elseif head == 'damaged' then
        found[at + 1] = 1
    else
        found[at + 1] = redis.call('GET', key)
    end
end
return found
