-- What may happen next to a record, for whoever asks in SQL?
--
-- The rules of machine.rs and of machine/flows.rs in the core, once more. The program has one copy and this is
-- the other; a test plays random histories over both and compares every decision and every byte.
-- A rule that changes there changes here.
--
-- `live` is the record, `detail` and `flow` are what stands in it, `now_ms` is the clock's reading.

-- What is to be written: see retrysafe.change_v1 for `since`, `length_ms` and `until_ms`. A moment is told unless
-- `what` is NULL.
CREATE TYPE retrysafe.record_change AS (
    new_fence boolean,
    state     smallint,
    since     bigint,
    length_ms bigint,
    until_ms  bigint,
    detail    bytea,
    what      bytea,
    label     text,
    status    smallint,
    headers   bytea,
    body      bytea
);

-- An answer to whoever asked, and what is to be written where `change` is there.
CREATE TYPE retrysafe.decision AS (reply text, change retrysafe.record_change);

CREATE FUNCTION retrysafe.stands(reply text) RETURNS retrysafe.decision LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT ROW(reply, NULL)::retrysafe.decision
$$;

CREATE FUNCTION retrysafe.writes(reply text, change retrysafe.record_change) RETURNS retrysafe.decision
LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT ROW(reply, change)::retrysafe.decision
$$;

CREATE FUNCTION retrysafe.standing_name(state smallint) RETURNS text
LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT (ARRAY['in_progress', 'completed', 'failed_retryable', 'unknown'])[state + 1]
$$;

-- The recovery point of a flow in words: `before 2`, or `calling 2`. NULL for a record without a flow.
CREATE FUNCTION retrysafe.point_of(flow retrysafe.flow_progress) RETURNS text
LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT CASE WHEN flow.name IS NULL THEN NULL WHEN flow.digest IS NULL THEN 'before ' ELSE 'calling ' END
        || cardinality(flow.outputs)
$$;

-- The code that can go on with a flow: `create_ride/1`.
CREATE FUNCTION retrysafe.code_of(flow retrysafe.flow_progress) RETURNS text
LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT convert_from(flow.name, 'UTF8') || '/' || flow.version
$$;

-- Whether a phase is committed, or a call may have been sent.
CREATE FUNCTION retrysafe.holds_work(flow retrysafe.flow_progress) RETURNS boolean
LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT flow.name IS NOT NULL AND (cardinality(flow.outputs) > 0 OR flow.digest IS NOT NULL)
$$;

-- Whether somebody else may go on with what an owner has left.
CREATE FUNCTION retrysafe.may_resume(flow retrysafe.flow_progress, now_ms bigint) RETURNS boolean
LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT flow.name IS NOT NULL
        AND (flow.digest IS NULL OR flow.resume_until IS NOT NULL AND now_ms < flow.resume_until)
$$;

CREATE FUNCTION retrysafe.is_expired(
    live retrysafe.record, flow retrysafe.flow_progress, now_ms bigint
) RETURNS boolean LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT live.state IN (1, 2) AND live.expires_at <= now_ms AND NOT retrysafe.holds_work(flow)
$$;

-- What happened, and under which fence.
CREATE FUNCTION retrysafe.happened(timeline bytea) RETURNS TABLE (fence bigint, what bytea)
LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE AS $$
DECLARE
    place  integer := 0;
    length integer;
BEGIN
    WHILE place < octet_length(timeline) LOOP
        length := retrysafe.read_four(timeline, place)::integer;
        what := substring(timeline FROM place + 5 FOR length);
        fence := retrysafe.read_eight(timeline, place + 4 + length);
        place := place + 4 + length + 16;
        RETURN NEXT;
    END LOOP;
END
$$;

-- The fence of the first owner: of this record alone, also where the key is used again.
CREATE FUNCTION retrysafe.birth(timeline bytea) RETURNS bigint
LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT retrysafe.read_eight(timeline, 4 + retrysafe.read_four(timeline, 0)::integer)
$$;

-- The record as it is.
CREATE FUNCTION retrysafe.change_nothing(live retrysafe.record) RETURNS retrysafe.record_change
LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT ROW(false, live.state, live.since, NULL,
        CASE live.state WHEN 0 THEN live.lease_until ELSE live.expires_at END,
        live.detail, NULL, NULL, live.status, live.headers, live.body)::retrysafe.record_change
$$;

-- Nobody executes it any more, and it is in progress still.
CREATE FUNCTION retrysafe.change_end_lease(live retrysafe.record, status smallint)
RETURNS retrysafe.record_change LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT ROW(false, live.state, live.since, 0, NULL, live.detail,
        '\x0100' || retrysafe.number_bytes(coalesce(status, 0)), NULL, NULL, NULL, NULL)::retrysafe.record_change
$$;

-- Nobody knows.
CREATE FUNCTION retrysafe.change_doubt(
    detail retrysafe.record_detail, doubt integer, what bytea, label text
) RETURNS retrysafe.record_change LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE AS $$
BEGIN
    detail.doubt := doubt;
    detail.lookups := 0;
    RETURN ROW(false, 3, NULL, NULL, NULL, retrysafe.detail_bytes(detail), what, label, NULL, NULL, NULL)::retrysafe.record_change;
END
$$;

-- Free to be tried again, from the recovery point of its flow on.
CREATE FUNCTION retrysafe.change_release(
    detail retrysafe.record_detail, flow retrysafe.flow_progress, ttl_ms bigint, status smallint
) RETURNS retrysafe.record_change LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE AS $$
BEGIN
    detail := ROW(detail.attempts, ttl_ms, NULL, NULL, NULL, detail.mark, NULL, NULL)::retrysafe.record_detail;
    IF flow.name IS NOT NULL THEN
        flow := ROW(flow.name, flow.version, flow.input, flow.outputs, NULL, NULL, NULL)::retrysafe.flow_progress;
        detail.flow := retrysafe.flow_bytes(flow);
    END IF;
    RETURN ROW(false, 2, NULL,
        CASE WHEN retrysafe.holds_work(flow) THEN 9223372036854775807 ELSE ttl_ms END, NULL,
        retrysafe.detail_bytes(detail), '\x0102' || retrysafe.number_bytes(coalesce(status, 0)), NULL,
        NULL, NULL, NULL)::retrysafe.record_change;
END
$$;

-- A new owner executes.
CREATE FUNCTION retrysafe.change_begin(
    detail retrysafe.record_detail, owner bigint, lease_ms bigint, mark bytea, what bytea
) RETURNS retrysafe.record_change LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT ROW(true, 0, NULL, lease_ms, NULL, retrysafe.detail_bytes(ROW(detail.attempts + 1, detail.ttl_ms,
        owner, NULL, NULL, mark, detail.flow, NULL)::retrysafe.record_detail), what, NULL, NULL, NULL,
        NULL)::retrysafe.record_change
$$;

CREATE FUNCTION retrysafe.decide_begin(
    live retrysafe.record, detail retrysafe.record_detail, flow retrysafe.flow_progress, now_ms bigint,
    is_same_request boolean, new_mark bytea, flows text[]
) RETURNS text LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE AS $$
BEGIN
    IF live.id IS NULL OR retrysafe.is_expired(live, flow, now_ms) THEN
        RETURN 'insert';
    ELSIF NOT is_same_request THEN
        RETURN 'mismatch';
    ELSIF detail.mark IS DISTINCT FROM new_mark AND (live.state <> 2 OR retrysafe.holds_work(flow)) THEN
        RETURN 'credential_changed';
    ELSIF live.state = 0 AND live.lease_until > now_ms THEN
        RETURN 'in_progress';
    ELSIF live.state = 2 OR live.state = 0 AND retrysafe.may_resume(flow, now_ms) THEN
        RETURN CASE WHEN flow.name IS NULL OR retrysafe.code_of(flow) = ANY (flows) THEN 'execute' ELSE 'held' END;
    ELSIF live.state = 0 THEN
        RETURN 'doubt';
    ELSIF live.state = 1 THEN
        RETURN CASE WHEN live.body IS NULL THEN 'not_replayable' ELSE 'replay' END;
    END IF;
    RETURN 'unknown';
END
$$;

-- An owner moves its flow. `from_point` is NULL for the flow's own first commit, which has `started`; a step with a
-- `digest` is about to call; every other one is the end of a phase, with its output.
CREATE FUNCTION retrysafe.decide_advance(
    live retrysafe.record, detail retrysafe.record_detail, flow retrysafe.flow_progress, now_ms bigint,
    owner_fence bigint, from_point text, started retrysafe.flow_progress, output bytea, digest bytea,
    repeatable_ms bigint
) RETURNS retrysafe.decision LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE AS $$
DECLARE
    is_from_here boolean := retrysafe.point_of(flow) IS NOT DISTINCT FROM from_point;
    phases       integer := cardinality(flow.outputs);
    bytes        bigint  := octet_length(flow.input) + (SELECT coalesce(sum(octet_length(o)), 0) FROM unnest(flow.outputs) o);
    phase        integer := substring(from_point FROM '\d+$')::integer;
    change       retrysafe.record_change;
    moved        retrysafe.flow_progress := flow;
BEGIN
    IF live.fence IS DISTINCT FROM owner_fence THEN
        RETURN retrysafe.stands('lost');
    END IF;
    IF is_from_here AND (live.state = 0 OR live.state = 3 AND from_point LIKE 'calling %') THEN
        IF from_point IS NULL THEN
            IF octet_length(started.name) NOT BETWEEN 1 AND 128 OR octet_length(started.input) > 262144 THEN
                RETURN retrysafe.stands('too_large');
            END IF;
            moved := started;
        ELSIF phases >= 64 OR bytes + octet_length(coalesce(output, '')) > 262144 THEN
            RETURN retrysafe.stands('too_large');
        ELSIF digest IS NOT NULL THEN
            moved.digest := digest;
            moved.set_by := owner_fence;
            moved.resume_until := retrysafe.later(now_ms, repeatable_ms);
        ELSE
            moved := ROW(flow.name, flow.version, flow.input, flow.outputs || output, NULL, NULL, NULL)::retrysafe.flow_progress;
        END IF;
        change := retrysafe.change_nothing(live);
        detail.flow := retrysafe.flow_bytes(moved);
        IF live.state = 3 THEN
            -- A late owner told the truth. Somebody else goes on, under a new fence.
            change.new_fence := true;
            change.state := 0;
            change.length_ms := 0;
            change.until_ms := NULL;
            detail.owner := coalesce(detail.owner, 0);
            detail.doubt := NULL;
            detail.lookups := NULL;
        END IF;
        change.detail := retrysafe.detail_bytes(detail);
        change.what := CASE WHEN moved.digest IS NULL THEN '\x0900'::bytea ELSE '\x0901' END
            || retrysafe.number_bytes(cardinality(moved.outputs));
        RETURN retrysafe.writes('done', change);
    END IF;
    RETURN retrysafe.stands(CASE WHEN live.state = 0 AND CASE
        WHEN from_point IS NULL THEN retrysafe.point_of(flow) = 'before 0'
            AND flow.name = started.name AND flow.version = started.version AND flow.input = started.input
        WHEN digest IS NOT NULL THEN retrysafe.point_of(flow) = 'calling ' || phase
            AND flow.digest = digest AND flow.set_by = owner_fence
        ELSE retrysafe.point_of(flow) = 'before ' || phase + 1 AND flow.outputs[phases] = output
        END THEN 'repeated' ELSE 'lost' END);
END
$$;

-- An owner says how its execution ended. `doubt` counts where the outcome is unknown.
CREATE FUNCTION retrysafe.decide_settle(
    live retrysafe.record, detail retrysafe.record_detail, flow retrysafe.flow_progress,
    owner_fence bigint, from_point text, outcome text, doubt integer, ttl_ms bigint, new_status smallint,
    new_headers bytea, new_body bytea
) RETURNS retrysafe.decision LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE AS $$
DECLARE
    kept_ms bigint := coalesce(ttl_ms, detail.ttl_ms);
    code    bytea  := retrysafe.number_bytes(coalesce(new_status, 0));
    label   text   := 'settled unknown' || coalesce(' ' || new_status, '');
BEGIN
    IF live.fence IS DISTINCT FROM owner_fence THEN
        RETURN retrysafe.stands('lost');
    ELSIF live.state IN (1, 2) THEN
        RETURN retrysafe.stands(CASE
            WHEN live.state = 2 AND outcome = 'retryable' THEN 'repeated'
            WHEN live.state = 1 AND outcome = 'completed'
                AND (live.status, live.headers, live.body) IS NOT DISTINCT FROM (new_status, new_headers, new_body)
                THEN 'repeated'
            ELSE 'contradicts' END);
    ELSIF outcome = 'completed' THEN
        IF retrysafe.point_of(flow) IS DISTINCT FROM from_point THEN
            RETURN retrysafe.stands('lost');
        END IF;
        detail := ROW(detail.attempts, kept_ms, NULL, NULL, NULL, detail.mark, NULL, NULL)::retrysafe.record_detail;
        RETURN retrysafe.writes('done', ROW(false, 1, NULL, kept_ms, NULL, retrysafe.detail_bytes(detail), '\x0101' || code,
            NULL, new_status, new_headers, new_body)::retrysafe.record_change);
    ELSIF live.state = 3 AND outcome = 'unknown' THEN
        RETURN retrysafe.stands('repeated');
    ELSIF flow.digest IS NOT NULL AND (outcome = 'retryable' OR doubt NOT IN (6, 7, 8, 9)) THEN
        -- A call may be in flight. Nothing is retryable while it may be, whatever anybody says.
        IF live.state = 3 THEN
            RETURN retrysafe.stands('repeated');
        ELSIF flow.resume_until IS NOT NULL THEN
            RETURN retrysafe.writes('done', retrysafe.change_end_lease(live, new_status));
        END IF;
        RETURN retrysafe.writes('done', retrysafe.change_doubt(detail, CASE outcome WHEN 'retryable' THEN 2 ELSE doubt END,
            '\x0103' || code, label));
    ELSIF flow.name IS NOT NULL AND flow.digest IS NULL AND live.state = 0 AND outcome = 'unknown' AND doubt <> 9 THEN
        -- Nothing outside is in flight, so there is nothing that nobody knows; unless a phase has committed something by itself.
        RETURN retrysafe.writes('done', retrysafe.change_end_lease(live, new_status));
    ELSIF outcome = 'retryable' THEN
        RETURN retrysafe.writes('done', retrysafe.change_release(detail, flow, kept_ms, new_status));
    END IF;
    detail.ttl_ms := kept_ms;
    RETURN retrysafe.writes('done', retrysafe.change_doubt(detail, doubt, '\x0103' || code, label));
END
$$;

-- An owner whose begin was ambiguous says that it has sent nothing and will not.
CREATE FUNCTION retrysafe.decide_withdraw(
    live retrysafe.record, detail retrysafe.record_detail, flow retrysafe.flow_progress, asking bigint
) RETURNS retrysafe.decision LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE AS $$
BEGIN
    IF live.state IN (1, 2) OR detail.owner IS DISTINCT FROM asking OR detail.head IS NOT NULL THEN
        RETURN retrysafe.stands('lost');
    ELSIF flow.name IS NULL THEN
        RETURN retrysafe.writes('done', retrysafe.change_release(detail, flow, detail.ttl_ms, NULL));
    ELSIF live.state = 0 THEN
        -- This owner has sent nothing, but whoever left the recovery point may have.
        RETURN retrysafe.writes('done', retrysafe.change_end_lease(live, NULL));
    END IF;
    RETURN retrysafe.stands('lost');
END
$$;

-- The owner of a flow was about to make a call, and none of its bytes has left.
CREATE FUNCTION retrysafe.decide_call_not_sent(
    live retrysafe.record, detail retrysafe.record_detail, flow retrysafe.flow_progress,
    owner_fence bigint, from_point text
) RETURNS retrysafe.decision LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE AS $$
BEGIN
    IF live.fence IS DISTINCT FROM owner_fence OR flow.digest IS NULL OR live.state IN (1, 2)
        OR retrysafe.point_of(flow) IS DISTINCT FROM from_point
    THEN
        RETURN retrysafe.stands('lost');
    ELSIF flow.set_by = owner_fence THEN
        RETURN retrysafe.writes('done', retrysafe.change_release(detail, flow, detail.ttl_ms, NULL));
    ELSIF live.state = 0 THEN
        RETURN retrysafe.writes('done', retrysafe.change_end_lease(live, NULL));
    END IF;
    RETURN retrysafe.stands('lost');
END
$$;

-- The owner is still executing. A lease that was given back is never revived.
CREATE FUNCTION retrysafe.decide_renew(
    live retrysafe.record, now_ms bigint, owner_fence bigint, lease_ms bigint, lease_max_ms bigint
) RETURNS retrysafe.decision LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE AS $$
DECLARE
    last_end bigint := retrysafe.later(live.since, lease_max_ms);
    change   retrysafe.record_change := retrysafe.change_nothing(live);
BEGIN
    IF live.state <> 0 OR live.fence IS DISTINCT FROM owner_fence OR last_end <= now_ms OR EXISTS (
        SELECT FROM retrysafe.happened(live.timeline) h
        WHERE h.fence = owner_fence AND substring(h.what FROM 1 FOR 2) = '\x0100')
    THEN
        RETURN retrysafe.stands('lost');
    END IF;
    change.length_ms := lease_ms;
    change.until_ms := last_end;
    RETURN retrysafe.writes('done', change);
END
$$;

-- What an owner reports after it has lost its record: it changes nothing and is kept as evidence, once. Who reports
-- under a fence that this record never gave out was no owner of it.
-- `standing` is how it says that its execution ended; in progress for the result of a call.
CREATE FUNCTION retrysafe.decide_late_note(
    live retrysafe.record, owner_fence bigint, standing smallint, new_status smallint, content_type text,
    body bytea
) RETURNS retrysafe.decision LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE AS $$
DECLARE
    change retrysafe.record_change := retrysafe.change_nothing(live);
    -- Not if it is long, or not ASCII.
    kept   bytea := convert_to(substring(content_type FROM '^[\t -~]{1,128}$'), 'UTF8');
BEGIN
    IF live.id IS NULL OR (owner_fence BETWEEN retrysafe.birth(live.timeline) AND live.fence) IS NOT TRUE OR EXISTS (
        SELECT FROM retrysafe.happened(live.timeline) h
        WHERE get_byte(h.what, 0) = 3 AND (retrysafe.read_number(h.what, 1)).number = owner_fence)
    THEN
        RETURN retrysafe.stands('lost');
    END IF;
    body := coalesce(body, '');
    change.what := '\x03' || retrysafe.number_bytes(owner_fence) || set_byte('\x00', 0, standing::integer)
        || retrysafe.number_bytes(coalesce(new_status, 0)) || retrysafe.counted(coalesce(kept, ''))
        || retrysafe.counted(substring(body FROM 1 FOR 4096)) || retrysafe.number_bytes(octet_length(body));
    change.label := 'late result of fence ' || owner_fence || ': ' || retrysafe.standing_name(standing)
        || coalesce(' ' || new_status, '');
    RETURN retrysafe.writes('lost', change);
END
$$;
