-- How is what the rules say carried out?
--
-- Each verb locks the record, asks the rules and writes. They run with the rights of the role that owns the schema; the
-- doors to them, which the application may open, stand in the file after this one.

-- Refuses what a caller has passed.
CREATE FUNCTION retrysafe.refuse_argument(what text, hint text) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION 'retrysafe: %', what USING ERRCODE = 'RS007', HINT = coalesce(hint, 'Pass another value.');
END
$$;

-- What holds, for an owner that was refused.
CREATE FUNCTION retrysafe.holds(live retrysafe.record, owner_fence bigint) RETURNS text
LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT CASE WHEN live.id IS NULL THEN 'There is no such record.'
        ELSE format('The record is %s at %s under fence %s; the caller has fence %s.',
            retrysafe.standing_name(live.state),
            coalesce(retrysafe.point_of(retrysafe.read_flow((retrysafe.read_detail(live.detail)).flow)),
                'no recovery point'),
            live.fence, coalesce(owner_fence::text, 'none')) END
$$;

-- The answer to an owner, unless it is refused.
CREATE FUNCTION retrysafe.answer_owner(reply text, answer text, holds text) RETURNS text LANGUAGE plpgsql AS $$
BEGIN
    CASE reply
    WHEN 'done', 'repeated' THEN
        RETURN answer;
    WHEN 'late' THEN
        RAISE EXCEPTION 'retrysafe: the result came late; it is kept, and this owner must not go on'
            USING ERRCODE = 'RS005', DETAIL = holds, HINT = 'Begin again with the same key to go on from it.';
    WHEN 'too_large' THEN
        RAISE EXCEPTION 'retrysafe: the flow would have more than 64 phases, or more than 256 KiB of input and outputs'
            USING ERRCODE = 'RS006', DETAIL = holds, HINT = 'Keep large things in tables of your own, and their keys here.';
    WHEN 'contradicts' THEN
        RAISE EXCEPTION 'retrysafe: the same owner has settled it otherwise before'
            USING ERRCODE = 'RS011', DETAIL = holds, HINT = 'What was settled first holds.';
    ELSE
        RAISE EXCEPTION 'retrysafe: the lease was lost, or the flow is at another recovery point'
            USING ERRCODE = 'RS001', DETAIL = holds,
            HINT = 'Roll back, and do not go on. Begin again with the same key to learn what holds.';
    END CASE;
END
$$;

-- Refuses a step that was not called by its procedure, which has committed what came before: else a caller might
-- act on what is not committed. The names of procedures are in the stack of calls, in every language, without their
-- schema where the caller's search path has it: such a name counts unless another schema has the same.
CREATE FUNCTION retrysafe.only_from(procedure text) RETURNS void LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    stack   text;
    ours    pg_catalog.pg_proc;
    pattern text;
BEGIN
    GET DIAGNOSTICS stack = PG_CONTEXT;
    SELECT * INTO ours FROM pg_catalog.pg_proc p
    WHERE p.pronamespace = 'retrysafe'::regnamespace AND p.proname = procedure AND p.prokind = 'p';
    pattern := regexp_replace(ours.oid::regprocedure::text, '([^[:alnum:]_ ,])', '\\\1', 'g');
    IF NOT EXISTS (SELECT FROM pg_catalog.pg_proc p WHERE p.proname = ours.proname
        AND p.proargtypes = ours.proargtypes AND p.oid <> ours.oid)
    THEN
        pattern := replace(pattern, 'retrysafe\.', '(retrysafe\.)?');
    END IF;
    IF (stack ~ ('[^a-zA-Z0-9_$".]' || pattern)) IS NOT TRUE THEN
        RAISE EXCEPTION 'retrysafe: this is a part of retrysafe.%', procedure
            USING ERRCODE = 'RS010', HINT = format('Use CALL retrysafe.%s(…), with autocommit on.', procedure);
    END IF;
END
$$;

-- The record, locked up to the end of the transaction. A row of the application that refers to it is no obstacle.
CREATE FUNCTION retrysafe.lock_record(record_id bytea) RETURNS retrysafe.record
LANGUAGE plpgsql VOLATILE SET enable_seqscan = off AS $$
DECLARE
    live retrysafe.record;
BEGIN
    SELECT * INTO live FROM retrysafe.record r WHERE r.id = record_id FOR NO KEY UPDATE;
    IF FOUND THEN
        PERFORM retrysafe.check_seal(live);
    END IF;
    RETURN live;
END
$$;

-- The record as it is right now.
CREATE FUNCTION retrysafe.read_record(record_id bytea) RETURNS retrysafe.record
LANGUAGE plpgsql VOLATILE SET enable_seqscan = off AS $$
DECLARE
    live retrysafe.record;
BEGIN
    SELECT * INTO live FROM retrysafe.record r WHERE r.id = record_id;
    IF FOUND THEN
        PERFORM retrysafe.check_seal(live);
    END IF;
    RETURN live;
END
$$;

-- Notes that this server is another one than before: see retrysafe.observe_v1. A quarantine takes ten minutes; there is none
-- where the operator has said `ALTER DATABASE … SET retrysafe.failover = 'continue'`.
CREATE FUNCTION retrysafe.observe_here() RETURNS void LANGUAGE plpgsql VOLATILE
SET lock_timeout = '2s' SET plan_cache_mode = force_generic_plan SET enable_seqscan = off
SET enable_hashjoin = off SET enable_mergejoin = off SET jit = off AS $$
BEGIN
    PERFORM retrysafe.observe_v1(CASE current_setting('synchronous_commit') WHEN 'remote_apply' THEN 'remote_apply'
        ELSE 'on' END, 2000, (SELECT c.system_identifier::text FROM pg_control_system() c), 600000,
        coalesce(current_setting('retrysafe.failover', true) = 'continue', false), false);
END
$$;

-- Refuses a grant while a quarantine lasts.
CREATE FUNCTION retrysafe.refuse_held(held_until bigint) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION 'retrysafe: nothing new is executed until %', to_timestamp(held_until / 1000.0)
        USING ERRCODE = 'RS008', DETAIL = 'This server took over from one whose last commits may be lost.',
        HINT = 'If nothing was lost, an operator ends this with `retrysafe store init`.';
END
$$;

-- Writes a change to a record that is locked.
CREATE FUNCTION retrysafe.write_record(
    live retrysafe.record, change retrysafe.record_change, OUT version bigint, OUT now_ms bigint
) LANGUAGE plpgsql VOLATILE AS $$
#variable_conflict use_variable
DECLARE
    length     integer := octet_length(live.timeline);
    timeline   bytea   := retrysafe.next_timeline(live.timeline, change.what);
    last_fence bigint;
    last_at    bigint;
    written    record;
    held       bigint;
BEGIN
    IF change.what IS NULL THEN
        timeline := substring(live.timeline FROM 1 FOR length - 16);
        last_fence := retrysafe.read_eight(live.timeline, length - 16);
        last_at := retrysafe.read_eight(live.timeline, length - 8);
    END IF;
    FOR attempt IN 1..2 LOOP
        held := NULL;
        FOR written IN SELECT * FROM retrysafe.change_in_v1(ARRAY[live.id], ARRAY[live.version],
            ARRAY[live.request], ARRAY[live.created_at],
            ARRAY[CASE WHEN change.new_fence THEN 0 ELSE live.fence END], ARRAY[change.state],
            ARRAY[change.length_ms], ARRAY[change.detail], ARRAY[timeline], ARRAY[change.status],
            ARRAY[change.headers], ARRAY[change.body],
            ARRAY[retrysafe.sum_of(live.id, change.state, change.status, live.request, change.detail,
                timeline, change.headers, change.body)],
            ARRAY[change.since], ARRAY[change.until_ms], ARRAY[last_fence], ARRAY[last_at],
            ARRAY[change.label])
        LOOP
            IF written.id IS NOT NULL THEN
                version := written.version;
                now_ms := written.now_ms;
                RETURN;
            END IF;
            held := written.version;
        END LOOP;
        EXIT WHEN held IS DISTINCT FROM -1;
        PERFORM retrysafe.observe_here();
    END LOOP;
    PERFORM retrysafe.refuse_held(held);
END
$$;

-- The answer to a begin.
CREATE TYPE retrysafe.begun AS (
    decision       text,
    id             bytea,
    fence          bigint,
    recovery_point text,
    flow           text,
    input          bytea,
    outputs        bytea[],
    status         integer,
    headers        text[],
    body           bytea,
    retry_after_ms integer
);

-- How long a caller had better wait before it asks again, of what nobody knows the end of.
CREATE FUNCTION retrysafe.retry_after(left_ms bigint) RETURNS integer
LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT least(greatest(left_ms, 1000), 600000)::integer
$$;

-- What a caller is told of a record, beside the decision.
CREATE FUNCTION retrysafe.told(decision text, live retrysafe.record, now_ms bigint) RETURNS retrysafe.begun
LANGUAGE plpgsql STABLE AS $$
DECLARE
    begun retrysafe.begun;
    flow  retrysafe.flow_progress := retrysafe.read_flow((retrysafe.read_detail(live.detail)).flow);
BEGIN
    begun.decision := decision;
    begun.id := live.id;
    CASE decision
    WHEN 'execute' THEN
        begun.fence := live.fence;
        begun.recovery_point := retrysafe.point_of(flow);
        begun.flow := retrysafe.code_of(flow);
        begun.input := flow.input;
        begun.outputs := flow.outputs;
    WHEN 'replay', 'not_replayable' THEN
        begun.status := live.status;
        begun.headers := retrysafe.read_headers(coalesce(live.headers, ''));
        begun.body := live.body;
    WHEN 'held' THEN
        begun.flow := retrysafe.code_of(flow);
        begun.retry_after_ms := 10000;
    WHEN 'in_progress' THEN
        begun.retry_after_ms := retrysafe.retry_after(live.lease_until - now_ms);
    WHEN 'unknown' THEN
        begun.retry_after_ms := 30000;
    ELSE
        -- A mismatch and a changed credential are told nothing of the record.
        NULL;
    END CASE;
    RETURN begun;
END
$$;

-- A record of which only the name is known.
CREATE FUNCTION retrysafe.record_named(record_id bytea) RETURNS retrysafe.record LANGUAGE plpgsql IMMUTABLE AS $$
DECLARE
    live retrysafe.record;
BEGIN
    live.id := record_id;
    RETURN live;
END
$$;

-- What never changes about a record: see fields.rs.
CREATE FUNCTION retrysafe.request_bytes(
    key_digest bytea, fingerprint bytea, scope bytea, method text, route text, path text
) RETURNS bytea LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT '\x01' || key_digest || fingerprint || retrysafe.field(scope)
        || retrysafe.field(convert_to(method, 'UTF8')) || retrysafe.field(convert_to(route, 'UTF8'))
        || retrysafe.field(convert_to(path, 'UTF8'))
$$;

-- How often a begin looks again after others have moved the record.
CREATE FUNCTION retrysafe.begin_record(
    scope bytea, key text, fingerprint bytea, flows text[], ttl_ms bigint, lease_ms bigint, owner bigint,
    mark bytea, method text, route text, path text, request_id text, joins boolean
) RETURNS retrysafe.begun LANGUAGE plpgsql VOLATILE AS $$
#variable_conflict use_variable
DECLARE
    key_digest bytea := retrysafe.key_digest(key);
    record_id  bytea := retrysafe.record_id(scope, key);
    asking     bigint := coalesce(owner, retrysafe.read_eight(uuid_send(gen_random_uuid()), 0));
    what       bytea := CASE WHEN octet_length(request_id) BETWEEN 1 AND 128
        THEN '\x07' || retrysafe.counted(convert_to(request_id, 'UTF8')) ELSE '\x00' END;
    live       retrysafe.record;
    detail     retrysafe.record_detail;
    now_ms     bigint;
    decision   text;
BEGIN
    IF octet_length(fingerprint) IS DISTINCT FROM 41 THEN
        PERFORM retrysafe.refuse_argument('a fingerprint has 41 bytes', 'Make it with retrysafe.fingerprint(…).');
    ELSIF scope IS NULL THEN
        PERFORM retrysafe.refuse_argument('the scope is missing', 'Make it with retrysafe.scope(…).');
    ELSIF octet_length(mark) <> 16 THEN
        PERFORM retrysafe.refuse_argument('a mark has 16 bytes', 'Make it with retrysafe.credential_mark(…).');
    ELSIF (ttl_ms > 0 AND lease_ms > 0) IS NOT TRUE THEN
        PERFORM retrysafe.refuse_argument('ttl_ms and lease_ms must be greater than 0', NULL);
    END IF;
    FOR race IN 1..16 LOOP
        live := retrysafe.read_record(record_id);
        -- Only who has something to write waits for the record.
        FOR look IN 1..2 LOOP
            now_ms := retrysafe.now_ms();
            detail := retrysafe.read_detail(live.detail);
            decision := retrysafe.decide_begin(live, detail, retrysafe.read_flow(detail.flow), now_ms,
                substring(live.request FROM 34 FOR 41) = fingerprint, mark, coalesce(flows, '{}'));
            EXIT WHEN look = 2 OR decision NOT IN ('execute', 'doubt');
            IF joins AND NOT retrysafe.is_free_v1(record_id) THEN
                -- Another transaction has begun it anew and is still open.
                RETURN retrysafe.told('in_progress', retrysafe.record_named(record_id), now_ms);
            END IF;
            live := retrysafe.lock_record(record_id);
        END LOOP;
        IF decision = 'execute' THEN
            PERFORM retrysafe.write_record(live, retrysafe.change_begin(detail, asking, lease_ms, mark, what));
            RETURN retrysafe.told('execute', retrysafe.read_record(record_id), now_ms);
        ELSIF decision = 'doubt' THEN
            PERFORM retrysafe.write_record(live,
                retrysafe.change_doubt(detail, 0, '\x0200', 'doubted lease_ended'));
            RETURN retrysafe.told('unknown', live, now_ms);
        ELSIF decision <> 'insert' THEN
            RETURN retrysafe.told(decision, live, now_ms);
        ELSIF joins AND NOT retrysafe.is_free_v1(record_id) THEN
            -- Another transaction has begun it and is still open.
            RETURN retrysafe.told('in_progress', retrysafe.record_named(record_id), now_ms);
        END IF;
        IF live.id IS NOT NULL THEN
            PERFORM retrysafe.reap_v1(ARRAY[record_id], NULL, false);
        END IF;
        IF retrysafe.insert_record(record_id,
            retrysafe.request_bytes(key_digest, fingerprint, scope, method, route, path), ttl_ms, lease_ms,
            retrysafe.detail_bytes(ROW(1, ttl_ms, asking, NULL, NULL, mark, NULL, NULL)::retrysafe.record_detail),
            retrysafe.field(what))
        THEN
            RETURN retrysafe.told('execute', retrysafe.read_record(record_id), now_ms);
        END IF;
    END LOOP;
    RAISE EXCEPTION 'retrysafe: others move this record faster than it can be read'
        USING ERRCODE = '55P03', HINT = 'Try again.';
END
$$;

-- Begins a record. False if somebody else has begun it meanwhile.
CREATE FUNCTION retrysafe.insert_record(
    record_id bytea, request bytea, ttl_ms bigint, lease_ms bigint, detail bytea, timeline bytea
) RETURNS boolean LANGUAGE plpgsql VOLATILE
SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET enable_hashjoin = off
SET enable_mergejoin = off SET jit = off AS $$
DECLARE
    written record;
BEGIN
    FOR attempt IN 1..2 LOOP
        SELECT * INTO written FROM retrysafe.write_v1(NULL, NULL, ARRAY[record_id], ARRAY[request],
            ARRAY[ttl_ms], ARRAY[lease_ms], ARRAY[detail], ARRAY[timeline],
            ARRAY[retrysafe.sum_of(record_id, 0::smallint, NULL, request, detail, timeline, NULL, NULL)],
            '{}', '{}', '{}', '{}', '{}', '{}', '{}', '{}', '{}', '{}', '{}', '{}', '{}');
        EXIT WHEN written.held IS DISTINCT FROM -1;
        PERFORM retrysafe.observe_here();
    END LOOP;
    IF written.ids IS NULL AND written.held IS NOT NULL THEN
        PERFORM retrysafe.refuse_held(written.held);
    END IF;
    RETURN written.ids IS NOT NULL;
END
$$;

-- Moves a flow, and says how that went: done, repeated, late, too_large or lost.
CREATE FUNCTION retrysafe.advance_record(
    record_id bytea, owner_fence bigint, from_point text, started retrysafe.flow_progress, output bytea,
    digest bytea, repeatable_ms bigint
) RETURNS text LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    live    retrysafe.record := retrysafe.lock_record(record_id);
    detail  retrysafe.record_detail := retrysafe.read_detail(live.detail);
    decided retrysafe.decision := retrysafe.decide_advance(live, detail, retrysafe.read_flow(detail.flow),
        retrysafe.now_ms(), owner_fence, from_point, started, output, digest, repeatable_ms);
    change  retrysafe.record_change := decided.change;
BEGIN
    IF change.state IS NOT NULL THEN
        PERFORM retrysafe.write_record(live, change);
        RETURN CASE WHEN change.new_fence THEN 'late' ELSE decided.reply END;
    END IF;
    RETURN decided.reply;
END
$$;

-- Settles, and says how that went: done, repeated, contradicts or lost.
CREATE FUNCTION retrysafe.settle_record(
    record_id bytea, owner_fence bigint, from_point text, outcome text, doubt integer, ttl_ms bigint,
    status integer, headers bytea, body bytea
) RETURNS text LANGUAGE plpgsql VOLATILE AS $$
#variable_conflict use_variable
DECLARE
    live    retrysafe.record := retrysafe.lock_record(record_id);
    detail  retrysafe.record_detail := retrysafe.read_detail(live.detail);
    flow    retrysafe.flow_progress := retrysafe.read_flow(detail.flow);
    decided retrysafe.decision;
    change  retrysafe.record_change;
BEGIN
    IF live.id IS NULL OR retrysafe.is_expired(live, flow, retrysafe.now_ms()) THEN
        RETURN 'lost';
    END IF;
    decided := retrysafe.decide_settle(live, detail, flow, owner_fence, from_point, outcome, doubt, ttl_ms,
        status::smallint, headers, body);
    change := decided.change;
    IF change.state IS NOT NULL THEN
        PERFORM retrysafe.write_record(live, change);
    END IF;
    RETURN decided.reply;
END
$$;

-- Keeps what a late owner reports. A record that is gone or over keeps nothing.
CREATE FUNCTION retrysafe.keep_late_note(
    record_id bytea, owner_fence bigint, standing integer, status integer, content_type text, body bytea
) RETURNS void LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    live    retrysafe.record := retrysafe.lock_record(record_id);
    decided retrysafe.decision;
    change  retrysafe.record_change;
BEGIN
    IF live.id IS NULL THEN
        RETURN;
    END IF;
    decided := retrysafe.decide_late_note(live, owner_fence, standing::smallint, status::smallint, content_type, body);
    change := decided.change;
    IF change.state IS NOT NULL THEN
        PERFORM retrysafe.write_record(live, change);
    END IF;
END
$$;

-- Says that a call was not sent, and in which state the record is then.
CREATE FUNCTION retrysafe.give_back_call(record_id bytea, owner_fence bigint, from_point text) RETURNS text
LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    live    retrysafe.record := retrysafe.lock_record(record_id);
    detail  retrysafe.record_detail := retrysafe.read_detail(live.detail);
    decided retrysafe.decision := retrysafe.decide_call_not_sent(live, detail, retrysafe.read_flow(detail.flow),
        owner_fence, from_point);
    change  retrysafe.record_change := decided.change;
BEGIN
    IF live.id IS NULL OR decided.reply = 'lost' THEN
        PERFORM retrysafe.answer_owner('lost', NULL, retrysafe.holds(live, owner_fence));
    END IF;
    PERFORM retrysafe.write_record(live, change);
    RETURN retrysafe.standing_name(change.state);
END
$$;

-- The name of a phase that calls.
CREATE FUNCTION retrysafe.checked_phase(phase text) RETURNS text LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE AS $$
BEGIN
    IF coalesce(phase, '') = '' THEN
        PERFORM retrysafe.refuse_argument('the phase has no name', 'The key of its call is made of it.');
    END IF;
    RETURN phase;
END
$$;

-- A fence as a caller passes it on. None at all is nobody's.
CREATE FUNCTION retrysafe.checked_fence(fence bigint) RETURNS bigint LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE AS $$
BEGIN
    IF fence <= 0 THEN
        PERFORM retrysafe.refuse_argument(format('this is no fence: %s', fence), 'Pass on what retrysafe.begin has answered.');
    END IF;
    RETURN fence;
END
$$;

-- What a call is known by: its phase, which its key is made of, and the bytes that are sent. The same in the program.
CREATE FUNCTION retrysafe.digest_of(phase text, request bytea) RETURNS bytea LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT sha256(convert_to(phase, 'UTF8') || '\000'::bytea || request)
$$;

-- The key of a record's call in this phase.
CREATE FUNCTION retrysafe.call_key_of(live retrysafe.record, phase text) RETURNS text
LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT encode(substring(sha256('retrysafe call\000'::bytea || live.id || int8send(retrysafe.birth(live.timeline))
        || convert_to(phase, 'UTF8')) FROM 1 FOR 16), 'hex')
$$;

-- For how long a call may be repeated after its first-sent mark; NULL if the provider takes no key, or forgets it too soon.
CREATE FUNCTION retrysafe.repeatable(remembers_ms bigint, lease_max_ms bigint, deadline_ms integer, margin_ms bigint)
RETURNS bigint LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE AS $$
BEGIN
    IF (lease_max_ms > 0 AND deadline_ms > 0 AND margin_ms >= 0) IS NOT TRUE OR remembers_ms > 3155760000000 THEN
        PERFORM retrysafe.refuse_argument('lease_max_ms and deadline_ms must be greater than 0, margin_ms 0 or more, '
            || 'and remembers_ms at most a hundred years', 'remembers_ms is NULL where the provider takes no key.');
    END IF;
    RETURN CASE WHEN remembers_ms > lease_max_ms + deadline_ms + margin_ms
        THEN remembers_ms - lease_max_ms - deadline_ms - margin_ms END;
END
$$;

-- A recovery point as a caller names it.
CREATE FUNCTION retrysafe.checked_point(point text) RETURNS text LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE AS $$
BEGIN
    IF (point ~ '^(before|calling) (0|[1-9]\d{0,4})$') IS NOT TRUE THEN
        PERFORM retrysafe.refuse_argument(format('this is no recovery point: %s', coalesce(point, 'NULL')),
            'Pass on what retrysafe.begin and retrysafe.advance have answered.');
    END IF;
    RETURN point;
END
$$;

CREATE FUNCTION retrysafe.checked_output(output bytea) RETURNS bytea LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE AS $$
BEGIN
    IF output IS NULL THEN
        PERFORM retrysafe.refuse_argument('there are no bytes', 'A phase that leaves nothing has the output ''''::bytea.');
    END IF;
    RETURN output;
END
$$;

-- A flow that begins: its name with its version, such as `create_ride/1`, and its input.
CREATE FUNCTION retrysafe.started(flow text, input bytea) RETURNS retrysafe.flow_progress
LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE AS $$
DECLARE
    parts text[] := regexp_match(flow, '^(.+)/(0|[1-9]\d{0,8})$');
BEGIN
    IF parts IS NULL OR octet_length(parts[1]) > 128 THEN
        PERFORM retrysafe.refuse_argument(format('this is no flow: %s', coalesce(flow, 'NULL')),
            'Write its name, a slash and its version: create_ride/1.');
    END IF;
    RETURN ROW(convert_to(parts[1], 'UTF8'), parts[2]::bigint, retrysafe.checked_output(input), '{}', NULL, NULL,
        NULL)::retrysafe.flow_progress;
END
$$;

-- How an execution ended, as columns of a record.
CREATE TYPE retrysafe.told_outcome AS (
    outcome text, status integer, headers bytea, body bytea, content_type text
);

-- Reads what a caller says about the end of an execution.
CREATE FUNCTION retrysafe.read_outcome(outcome text, status integer, headers text[], body bytea, ttl_ms bigint)
RETURNS retrysafe.told_outcome LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE AS $$
DECLARE
    lines    bytea := retrysafe.header_lines(headers);
    location bytea;
    kind     text;
BEGIN
    IF (outcome IN ('completed', 'not_kept', 'retryable', 'unknown')) IS NOT TRUE THEN
        PERFORM retrysafe.refuse_argument(format('this is no outcome: %s', coalesce(outcome, 'NULL')),
            'It is completed, not_kept, retryable or unknown.');
    ELSIF status NOT BETWEEN 200 AND 599 OR status IS NULL AND outcome = 'completed' THEN
        PERFORM retrysafe.refuse_argument('a status is a number from 200 to 599, and a completed answer has one', NULL);
    ELSIF octet_length(body) > 16777216 THEN
        PERFORM retrysafe.refuse_argument('the body has more than 16 MiB', 'Settle it as not_kept.');
    ELSIF ttl_ms <= 0 THEN
        PERFORM retrysafe.refuse_argument('ttl_ms must be greater than 0', NULL);
    END IF;
    IF outcome = 'completed' THEN
        SELECT h.value INTO kind FROM (SELECT r[n][1] AS name, r[n][2] AS value
            FROM retrysafe.read_headers(lines) r, generate_subscripts(r, 1) n ORDER BY n) h
        WHERE h.name = 'content-type' LIMIT 1;
        RETURN ROW(outcome, status, lines, coalesce(body, ''), kind)::retrysafe.told_outcome;
    ELSIF outcome = 'not_kept' THEN
        location := convert_to(substring(convert_from(lines, 'LATIN1') FROM '(?n)^location: .*$') || E'\n', 'LATIN1');
        RETURN ROW('completed', status, location, NULL, NULL)::retrysafe.told_outcome;
    END IF;
    RETURN ROW(outcome, CASE outcome WHEN 'retryable' THEN status END, NULL, NULL, NULL)::retrysafe.told_outcome;
END
$$;
