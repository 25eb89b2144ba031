-- How are the parts of a record read and written in SQL, byte for byte as the program does it?
--
-- A record that these functions have written is replayed by the program, and the other way round. What a
-- column means stands in stores/postgres/fields.rs, what stands inside a flow and a moment in the codec of
-- the core. A test writes records at random with both and compares them.

-- Numbers inside a flow and a moment: seven bits in a byte, the lowest first, and the eighth bit says
-- that more bytes follow.
CREATE FUNCTION retrysafe.number_bytes(number bigint) RETURNS bytea
LANGUAGE plpgsql IMMUTABLE STRICT PARALLEL SAFE AS $$
DECLARE
    bytes bytea := '';
BEGIN
    IF number < 0 THEN
        -- The program could not read it back.
        PERFORM retrysafe.refuse_argument(format('a record holds no negative number: %s', number), NULL);
    END IF;
    WHILE number >= 128 LOOP
        bytes := bytes || set_byte('\x00', 0, (number & 127)::integer | 128);
        number := number >> 7;
    END LOOP;
    RETURN bytes || set_byte('\x00', 0, number::integer);
END
$$;

-- Reads such a number, and says where it ends. One that is past the end of time is the end of time.
CREATE FUNCTION retrysafe.read_number(bytes bytea, INOUT place integer, OUT number bigint)
LANGUAGE plpgsql IMMUTABLE STRICT PARALLEL SAFE AS $$
DECLARE
    shift integer := 0;
    byte  integer;
BEGIN
    number := 0;
    LOOP
        byte := get_byte(bytes, place);
        place := place + 1;
        IF shift = 63 THEN
            number := 9223372036854775807;
        ELSE
            number := number | ((byte & 127)::bigint << shift);
        END IF;
        shift := shift + 7;
        EXIT WHEN byte < 128;
    END LOOP;
END
$$;

-- Bytes with their length in front, as they stand inside a flow and a moment.
CREATE FUNCTION retrysafe.counted(bytes bytea) RETURNS bytea
LANGUAGE sql IMMUTABLE STRICT PARALLEL SAFE AS $$
    SELECT retrysafe.number_bytes(octet_length(bytes)) || bytes
$$;

-- Bytes with their length in front, as they stand in a column.
CREATE FUNCTION retrysafe.field(bytes bytea) RETURNS bytea
LANGUAGE sql IMMUTABLE STRICT PARALLEL SAFE AS $$
    SELECT int4send(octet_length(bytes)) || bytes
$$;

-- Big-endian numbers of four and of eight bytes.
CREATE FUNCTION retrysafe.read_four(bytes bytea, place integer) RETURNS bigint
LANGUAGE sql IMMUTABLE STRICT PARALLEL SAFE AS $$
    SELECT ('x' || encode(substring(bytes FROM place + 1 FOR 4), 'hex'))::bit(32)::bigint
$$;

CREATE FUNCTION retrysafe.read_eight(bytes bytea, place integer) RETURNS bigint
LANGUAGE sql IMMUTABLE STRICT PARALLEL SAFE AS $$
    SELECT ('x' || encode(substring(bytes FROM place + 1 FOR 8), 'hex'))::bit(64)::bigint
$$;

-- The column record.detail. What is not there is NULL.
CREATE TYPE retrysafe.record_detail AS (
    attempts bigint,
    ttl_ms   bigint,
    owner    bigint,
    doubt    smallint,
    lookups  bigint,
    -- Of the credential.
    mark     bytea,
    flow     bytea,
    head     bytea
);

CREATE FUNCTION retrysafe.read_detail(bytes bytea) RETURNS retrysafe.record_detail
LANGUAGE plpgsql IMMUTABLE STRICT PARALLEL SAFE AS $$
DECLARE
    detail retrysafe.record_detail;
    flags  integer := get_byte(bytes, 12);
    place  integer := 13;
    length integer;
BEGIN
    detail.attempts := retrysafe.read_four(bytes, 0);
    detail.ttl_ms := retrysafe.read_eight(bytes, 4);
    IF flags & 1 <> 0 THEN
        detail.owner := retrysafe.read_eight(bytes, place);
        place := place + 8;
    END IF;
    IF flags & 2 <> 0 THEN
        detail.doubt := get_byte(bytes, place);
        detail.lookups := retrysafe.read_four(bytes, place + 1);
        place := place + 5;
    END IF;
    IF flags & 4 <> 0 THEN
        detail.mark := substring(bytes FROM place + 1 FOR 16);
        place := place + 16;
    END IF;
    IF flags & 16 <> 0 THEN
        length := retrysafe.read_four(bytes, place)::integer;
        detail.flow := substring(bytes FROM place + 5 FOR length);
        place := place + 4 + length;
    END IF;
    IF flags & 8 <> 0 THEN
        detail.head := substring(bytes FROM place + 1);
    END IF;
    RETURN detail;
END
$$;

CREATE FUNCTION retrysafe.detail_bytes(detail retrysafe.record_detail) RETURNS bytea
LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT substring(int8send(detail.attempts) FROM 5) || int8send(detail.ttl_ms)
        || set_byte('\x00', 0,
            CASE WHEN detail.owner IS NULL THEN 0 ELSE 1 END
            | CASE WHEN detail.doubt IS NULL THEN 0 ELSE 2 END
            | CASE WHEN detail.mark IS NULL THEN 0 ELSE 4 END
            | CASE WHEN detail.head IS NULL THEN 0 ELSE 8 END
            | CASE WHEN detail.flow IS NULL THEN 0 ELSE 16 END)
        || coalesce(int8send(detail.owner), '')
        || coalesce(set_byte('\x00', 0, detail.doubt::integer)
            || substring(int8send(detail.lookups) FROM 5), '')
        || coalesce(detail.mark, '')
        || coalesce(retrysafe.field(detail.flow), '')
        || coalesce(detail.head, '')
$$;

-- How far a flow has come. The first-sent mark is NULL where there is none; of one that stands, resume_until
-- is NULL where the provider takes no key.
CREATE TYPE retrysafe.flow_progress AS (
    name         bytea,
    version      bigint,
    input        bytea,
    outputs      bytea[],
    digest       bytea,
    set_by       bigint,
    resume_until bigint
);

CREATE FUNCTION retrysafe.read_flow(bytes bytea) RETURNS retrysafe.flow_progress
LANGUAGE plpgsql IMMUTABLE STRICT PARALLEL SAFE AS $$
DECLARE
    flow   retrysafe.flow_progress;
    place  integer := 0;
    length bigint;
    count  bigint;
BEGIN
    SELECT * INTO place, length FROM retrysafe.read_number(bytes, place);
    flow.name := substring(bytes FROM place + 1 FOR length::integer);
    place := place + length;
    SELECT * INTO place, flow.version FROM retrysafe.read_number(bytes, place);
    SELECT * INTO place, length FROM retrysafe.read_number(bytes, place);
    flow.input := substring(bytes FROM place + 1 FOR length::integer);
    place := place + length;
    SELECT * INTO place, count FROM retrysafe.read_number(bytes, place);
    flow.outputs := '{}';
    FOR number IN 1..count LOOP
        SELECT * INTO place, length FROM retrysafe.read_number(bytes, place);
        flow.outputs := flow.outputs || substring(bytes FROM place + 1 FOR length::integer);
        place := place + length;
    END LOOP;
    IF get_byte(bytes, place) = 1 THEN
        flow.digest := substring(bytes FROM place + 2 FOR 32);
        SELECT * INTO place, flow.set_by FROM retrysafe.read_number(bytes, place + 33);
        IF get_byte(bytes, place) = 1 THEN
            SELECT number INTO flow.resume_until FROM retrysafe.read_number(bytes, place + 1);
        END IF;
    END IF;
    RETURN flow;
END
$$;

CREATE FUNCTION retrysafe.flow_bytes(flow retrysafe.flow_progress) RETURNS bytea
LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT retrysafe.counted(flow.name) || retrysafe.number_bytes(flow.version)
        || retrysafe.counted(flow.input) || retrysafe.number_bytes(cardinality(flow.outputs))
        || coalesce((SELECT string_agg(retrysafe.counted(o.output), '' ORDER BY o.place)
            FROM unnest(flow.outputs) WITH ORDINALITY AS o (output, place)), '')
        || CASE WHEN flow.digest IS NULL THEN '\x00'::bytea
            ELSE '\x01' || flow.digest || retrysafe.number_bytes(flow.set_by)
                || coalesce('\x01' || retrysafe.number_bytes(flow.resume_until), '\x00') END
$$;

-- Appends a moment to a timeline. Its fence and its time are filled in by whoever writes the record. A timeline
-- of 16 moments forgets one: the oldest lookup, else the oldest phase of a flow, else the oldest. Never the
-- first of all, nor the last word of an owner that gave its lease back.
CREATE FUNCTION retrysafe.next_timeline(timeline bytea, what bytea) RETURNS bytea
LANGUAGE plpgsql IMMUTABLE STRICT PARALLEL SAFE AS $$
DECLARE
    place  integer := 0;
    kind   integer;
    places integer[] := '{}';
    lookup integer;
    phase  integer;
    given_back integer;
    gone   integer;
BEGIN
    WHILE place < octet_length(timeline) LOOP
        places := places || place;
        kind := get_byte(timeline, place + 4);
        IF place > 0 AND kind IN (4, 8) THEN
            lookup := coalesce(lookup, cardinality(places));
        ELSIF place > 0 AND kind = 9 THEN
            phase := coalesce(phase, cardinality(places));
        ELSIF substring(timeline FROM place + 5 FOR 2) = '\x0100' THEN
            given_back := cardinality(places);
        END IF;
        place := place + 4 + retrysafe.read_four(timeline, place)::integer + 16;
    END LOOP;
    IF cardinality(places) >= 16 THEN
        gone := coalesce(lookup, phase, CASE WHEN given_back = 2 THEN 3 ELSE 2 END);
        timeline := substring(timeline FROM 1 FOR places[gone])
            || substring(timeline FROM coalesce(places[gone + 1], place) + 1);
    END IF;
    RETURN timeline || retrysafe.field(what);
END
$$;

-- What the writer of a record sums up; retrysafe.seal binds the numbers to it. The timeline comes without the
-- fence and the time of its last moment.
CREATE FUNCTION retrysafe.sum_of(
    id bytea, state smallint, status smallint, request bytea, detail bytea, open_timeline bytea,
    headers bytea, body bytea
) RETURNS bigint LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT retrysafe.read_eight(sha256(id || int2send(state) || int2send(coalesce(status, -1::smallint))
        || int8send(octet_length(request)) || request || int8send(octet_length(detail)) || detail
        || int8send(octet_length(open_timeline)) || open_timeline
        || int8send(coalesce(octet_length(headers), -1)) || coalesce(headers, '')
        || int8send(coalesce(octet_length(body), -1)) || coalesce(body, '')), 0)
$$;

-- Refuses a record that is not what was written, or that a newer program has written.
CREATE FUNCTION retrysafe.check_seal(record retrysafe.record) RETURNS void
LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE AS $$
DECLARE
    length integer := octet_length(record.timeline);
BEGIN
    IF get_byte(record.request, 0) = 1 AND length >= 21 AND record.seal = retrysafe.seal(
        retrysafe.sum_of(record.id, record.state, record.status, record.request, record.detail,
            substring(record.timeline FROM 1 FOR length - 16), record.headers, record.body),
        record.version, record.fence, record.created_at, record.since,
        CASE WHEN record.state = 0 THEN record.lease_until ELSE coalesce(record.expires_at, -1) END,
        retrysafe.read_eight(record.timeline, length - 16),
        retrysafe.read_eight(record.timeline, length - 8))
    THEN
        RETURN;
    END IF;
    RAISE EXCEPTION 'retrysafe: the record % is damaged, or of a newer format', encode(record.id, 'hex')
        USING ERRCODE = 'RS009', HINT = 'Run `retrysafe store doctor`. Nothing is executed meanwhile.';
END
$$;

-- The headers of an answer as lines, and the lines as pairs of name and value. Bytes of a value that are not
-- ASCII are Latin-1 on both sides, as HTTP libraries have them.
CREATE FUNCTION retrysafe.read_headers(lines bytea) RETURNS text[]
LANGUAGE sql IMMUTABLE STRICT PARALLEL SAFE AS $$
    SELECT coalesce(array_agg(ARRAY[split_part(l.line, ': ', 1),
            substring(l.line FROM position(': ' IN l.line) + 2)] ORDER BY l.place), '{}')
    FROM unnest(string_to_array(convert_from(lines, 'LATIN1'), E'\n')) WITH ORDINALITY AS l (line, place)
    WHERE l.line <> ''
$$;
