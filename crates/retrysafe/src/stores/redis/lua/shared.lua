-- What do all scripts share? This text stands before each of them.
--
-- A record is one string: a head of 43 bytes, then the bytes that the client sent. The head is "R1", version and
-- clock of the write, its kind, its due time, and a seal over all of this, the record's name and the last four bytes
-- of what follows, which are its checksum. So a script knows without reading the bytes whether a record is sound, of
-- which version it is, and when it is due. Kinds: L a lease that ends then, U unknown since then, E expires then.
--
-- Numbers stay below 2^53, up to which Lua counts exactly: microseconds reach it in the year 2255.

local HEAD = 43

-- How far versions leap at the most when the server has changed: no two clocks are a day apart.
local LEAP_MAX_MS = 86400000

-- The store's clock in milliseconds, and the server's in microseconds. Only tests give a clock: the first ("MS") or both
-- ("MS/US").
local function read_clock(given)
    local time = redis.call('TIME')
    local us = time[1] * 1000000 + time[2]
    if given ~= '' then
        local ms, by_hand = string.match(given, '^(%d+)/?(%d*)$')
        return tonumber(ms), tonumber(by_hand) or us
    end
    return math.floor(us / 1000), us
end

-- The version of a write: by the clock, and above every version that the bucket has given out and the record has had.
local function next_version(us, highest, of_record)
    return math.max(us, highest + 1, of_record + 1)
end

local function seal_of(id, front, tail)
    return string.sub(redis.sha1hex(id .. front .. tail), 1, 16)
end

local function value_of(id, version, now, kind, due, bytes)
    local front = struct.pack('>c2I8I8c1I8', 'R1', version, now, kind, due)
    return front .. seal_of(id, front, string.sub(bytes, -4)) .. bytes
end

-- The head of a record; nil if there is none, and "damaged" if it is not sound.
local function head_of(key, id)
    local head = redis.call('GETRANGE', key, 0, HEAD - 1)
    if head == '' and redis.call('EXISTS', key) == 0 then
        return nil
    end
    if #head < HEAD then
        return 'damaged'
    end
    local tail = redis.call('GETRANGE', key, -4, -1)
    if string.sub(head, 1, 2) ~= 'R1' or string.sub(head, 28) ~= seal_of(id, string.sub(head, 1, 27), tail) then
        return 'damaged'
    end
    local version, _, kind, due = struct.unpack('>I8I8c1I8', head, 3)
    return { version = version, kind = kind, due = due }
end

-- Whether this server may be trusted with a new grant. A bucket knows which server last granted in it, the highest
-- version that it has given out, and until when it is held. Another server, or a version that is lower than one that
-- a caller has seen, means that acknowledged writes may be lost: nothing new is granted until whoever was executing
-- has ended, and whoever retries has stopped. The lost versions were counted by another clock, which may have been
-- ahead of this one: versions go on above all that it can have counted.
--
-- Gives the highest version, or nothing and the answer that the caller gets.
local function may_grant(meta, now, us, identity, seen, hold_ms)
    local kept = redis.call('HMGET', meta, 'identity', 'held_until', 'version')
    if not kept[1] then
        return nil, { 'absent', now }
    end
    local held_until, version, is_new = tonumber(kept[2]), tonumber(kept[3]), 0
    if kept[1] ~= identity or version < tonumber(seen) then
        held_until = math.max(held_until, now + tonumber(hold_ms))
        version = math.max(version, tonumber(seen), us + math.min(tonumber(hold_ms), LEAP_MAX_MS) * 1000)
        is_new = 1
        redis.call('HSET', meta, 'identity', identity, 'held_until', held_until, 'version', version)
    end
    if now < held_until then
        return nil, { 'held', now, held_until, is_new }
    end
    return version
end

