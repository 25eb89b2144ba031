-- What may an application ask for in SQL, with any driver? This is a contract: docs/sql.md.
--
-- A procedure commits by itself, so PostgreSQL refuses it inside an open transaction: nobody acts on what is not
-- committed. A function whose name ends in `_in`, and retrysafe.guard, join the caller's transaction.
--
-- A procedure that commits cannot run with another role's rights. So each has a step that does, and that refuses
-- everybody but its procedure.

CREATE FUNCTION retrysafe.begin_v1(
    scope bytea, key text, fingerprint bytea, flows text[], ttl_ms bigint, lease_ms bigint, owner bigint,
    mark bytea, method text, route text, path text, request_id text
) RETURNS retrysafe.begun
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET lock_timeout = '1s' AS $$
BEGIN
    PERFORM retrysafe.only_from('begin'), retrysafe.join_v1();
    IF retrysafe.hold_v1() = -1 THEN
        -- Noted in a commit of its own: a refusal would take the note back, and a quarantine would never end.
        PERFORM retrysafe.observe_here();
        RETURN NULL;
    END IF;
    RETURN retrysafe.begin_record(scope, key, fingerprint, flows, ttl_ms, lease_ms, owner, mark, method, route,
        path, request_id, false);
EXCEPTION WHEN lock_not_available THEN
    -- A transaction of the application holds it.
    RETURN retrysafe.told('in_progress', retrysafe.record_named(retrysafe.record_id(scope, key)), NULL);
END
$$;

-- Asks for the right to execute a request, or for its answer.
-- The quotes are for psql, which takes the bare word for the begin of a body.
CREATE PROCEDURE retrysafe."begin"(
    scope bytea, key text, fingerprint bytea, flows text[] DEFAULT NULL, ttl_ms bigint DEFAULT 86400000,
    lease_ms bigint DEFAULT 60000, owner bigint DEFAULT NULL, mark bytea DEFAULT NULL, method text DEFAULT '',
    route text DEFAULT '', path text DEFAULT '', request_id text DEFAULT NULL,
    INOUT decision text DEFAULT NULL, INOUT id bytea DEFAULT NULL, INOUT fence bigint DEFAULT NULL,
    INOUT recovery_point text DEFAULT NULL, INOUT flow text DEFAULT NULL, INOUT input bytea DEFAULT NULL,
    INOUT outputs bytea[] DEFAULT NULL, INOUT status integer DEFAULT NULL, INOUT headers text[] DEFAULT NULL,
    INOUT body bytea DEFAULT NULL, INOUT retry_after_ms integer DEFAULT NULL
) LANGUAGE plpgsql AS $$
BEGIN
    COMMIT;
    SET TRANSACTION ISOLATION LEVEL READ COMMITTED, READ WRITE;
    SELECT * INTO decision, id, fence, recovery_point, flow, input, outputs, status, headers, body, retry_after_ms
    FROM retrysafe.begin_v1(scope, key, fingerprint, flows, ttl_ms, lease_ms, owner, mark, method, route, path,
        request_id);
    COMMIT;
    IF decision IS NULL THEN
        -- The server is another one, and that is noted by now.
        SET TRANSACTION ISOLATION LEVEL READ COMMITTED, READ WRITE;
        SELECT * INTO decision, id, fence, recovery_point, flow, input, outputs, status, headers, body, retry_after_ms
        FROM retrysafe.begin_v1(scope, key, fingerprint, flows, ttl_ms, lease_ms, owner, mark, method, route, path,
            request_id);
        COMMIT;
    END IF;
END
$$;

-- The same inside the caller's transaction, for work that is nothing but writes of that transaction. Its COMMIT fails
-- unless it settles.
CREATE FUNCTION retrysafe.begin_in(
    scope bytea, key text, fingerprint bytea, ttl_ms bigint DEFAULT 86400000, lease_ms bigint DEFAULT 60000,
    owner bigint DEFAULT NULL, mark bytea DEFAULT NULL, method text DEFAULT '', route text DEFAULT '',
    path text DEFAULT '', request_id text DEFAULT NULL
) RETURNS retrysafe.begun
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET lock_timeout = '1s' AS $$
DECLARE
    begun retrysafe.begun;
BEGIN
    PERFORM retrysafe.join_v1();
    BEGIN
        begun := retrysafe.begin_record(scope, key, fingerprint, NULL, ttl_ms, lease_ms, owner, mark, method, route,
            path, request_id, true);
    EXCEPTION WHEN lock_not_available THEN
        RETURN retrysafe.told('in_progress', retrysafe.record_named(retrysafe.record_id(scope, key)), NULL);
    END;
    -- Outside of that block, which is a savepoint.
    IF begun.decision = 'execute' THEN
        PERFORM retrysafe.guard_v1(begun.id, begun.fence);
    END IF;
    RETURN begun;
END
$$;

-- Binds the caller's transaction to an attempt, as its first statement. Its COMMIT fails unless it settles or
-- advances. It may be idle and wait for a lock for half of what is left of the lease.
CREATE FUNCTION retrysafe.guard(id bytea, fence bigint) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_variable
DECLARE
    live     retrysafe.record;
    limit_ms bigint;
    setting  text;
    set_ms   bigint;
BEGIN
    PERFORM retrysafe.guard_v1(id, retrysafe.checked_fence(fence));
    live := retrysafe.read_record(id);
    limit_ms := greatest((live.lease_until - retrysafe.now_ms()) / 2, 1000);
    FOREACH setting IN ARRAY ARRAY['idle_in_transaction_session_timeout', 'lock_timeout'] LOOP
        set_ms := 1000 * extract(epoch FROM current_setting(setting)::interval);
        IF set_ms = 0 OR set_ms > limit_ms THEN
            PERFORM set_config(setting, least(limit_ms, 2147483647)::text, true);
        END IF;
    END LOOP;
END
$$;

CREATE FUNCTION retrysafe.advance_v1(
    id bytea, fence bigint, procedure text, from_point text, started retrysafe.flow_progress, output bytea
) RETURNS TABLE (reply text, answer text, holds text)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET lock_timeout = '5s' AS $$
#variable_conflict use_variable
DECLARE
    live retrysafe.record;
BEGIN
    PERFORM retrysafe.only_from(procedure), retrysafe.join_v1();
    reply := retrysafe.advance_record(id, retrysafe.checked_fence(fence), from_point, started, output, NULL, NULL);
    IF reply = 'lost' AND from_point LIKE 'calling %' THEN
        PERFORM retrysafe.keep_late_note(id, fence, 0, NULL, NULL, output);
    ELSIF reply = 'too_large' AND from_point LIKE 'calling %' THEN
        -- The call was made, and nobody may make it again: its result would be as large. Its begin is evidence.
        PERFORM retrysafe.keep_late_note(id, fence, 0, NULL, NULL, output);
        PERFORM retrysafe.settle_record(id, fence, NULL, 'unknown', 7, NULL, NULL, NULL, NULL);
    END IF;
    live := retrysafe.read_record(id);
    answer := retrysafe.point_of(retrysafe.read_flow((retrysafe.read_detail(live.detail)).flow));
    holds := retrysafe.holds(live, fence);
    RETURN NEXT;
END
$$;

-- The first commit of a flow: its name with its version, and its input. From here on others can go on with it.
CREATE PROCEDURE retrysafe.start(
    id bytea, fence bigint, flow text, input bytea, INOUT recovery_point text DEFAULT NULL
) LANGUAGE plpgsql AS $$
DECLARE
    reply  text;
    answer text;
    holds  text;
BEGIN
    COMMIT;
    SET TRANSACTION ISOLATION LEVEL READ COMMITTED, READ WRITE;
    SELECT * INTO reply, answer, holds FROM retrysafe.advance_v1(id, fence, 'start', NULL, retrysafe.started(flow, input), NULL) a;
    COMMIT;
    recovery_point := retrysafe.answer_owner(reply, answer, holds);
END
$$;

-- A phase is over, with its output: from `before 1`, or, with the result of a call, from `calling 1`. A result that
-- comes too late is kept as evidence.
CREATE PROCEDURE retrysafe.advance(
    id bytea, fence bigint, from_point text, output bytea, INOUT recovery_point text DEFAULT NULL
) LANGUAGE plpgsql AS $$
DECLARE
    reply  text;
    answer text;
    holds  text;
BEGIN
    COMMIT;
    SET TRANSACTION ISOLATION LEVEL READ COMMITTED, READ WRITE;
    SELECT * INTO reply, answer, holds FROM retrysafe.advance_v1(id, fence, 'advance', retrysafe.checked_point(from_point),
        NULL, retrysafe.checked_output(output)) a;
    COMMIT;
    recovery_point := retrysafe.answer_owner(reply, answer, holds);
END
$$;

-- The same inside the caller's transaction: the phase is over if and only if that commits. A phase that was over
-- before is refused: the rows of this transaction would be there a second time. So is the result of a call: a
-- rollback would lose it.
CREATE FUNCTION retrysafe.advance_in(id bytea, fence bigint, from_point text, output bytea) RETURNS text
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_variable
DECLARE
    reply text;
    live  retrysafe.record;
BEGIN
    PERFORM retrysafe.join_v1();
    IF from_point LIKE 'calling %' THEN
        PERFORM retrysafe.refuse_argument('the result of a call must not hang on this transaction',
            'Use CALL retrysafe.advance(…), with autocommit on.');
    END IF;
    reply := retrysafe.advance_record(id, retrysafe.checked_fence(fence), retrysafe.checked_point(from_point), NULL,
        retrysafe.checked_output(output), NULL, NULL);
    live := retrysafe.read_record(id);
    RETURN retrysafe.answer_owner(CASE reply WHEN 'repeated' THEN 'lost' ELSE reply END,
        retrysafe.point_of(retrysafe.read_flow((retrysafe.read_detail(live.detail)).flow)), retrysafe.holds(live, fence));
END
$$;

CREATE FUNCTION retrysafe.about_to_call_v1(
    id bytea, fence bigint, from_point text, phase text, request bytea, repeatable_ms bigint, deadline_ms integer,
    OUT decision text, OUT call_key text, OUT send_within_ms integer, OUT recovery_point text
) LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET lock_timeout = '5s' AS $$
#variable_conflict use_variable
DECLARE
    digest      bytea := retrysafe.digest_of(phase, request);
    -- Whether this owner has set the mark just now, so that surely none of its bytes has left.
    is_unsent   boolean := false;
    called_from text := replace(from_point, 'before', 'calling');
    reply       text;
    live        retrysafe.record;
    detail      retrysafe.record_detail;
    change      retrysafe.record_change;
    flow        retrysafe.flow_progress;
    left_ms     bigint;
BEGIN
    PERFORM retrysafe.only_from('about_to_call'), retrysafe.join_v1(), retrysafe.checked_fence(fence);
    IF from_point LIKE 'before %' THEN
        reply := retrysafe.advance_record(id, fence, from_point, NULL, NULL, digest, repeatable_ms);
        is_unsent := reply = 'done';
    END IF;
    live := retrysafe.lock_record(id);
    detail := retrysafe.read_detail(live.detail);
    flow := retrysafe.read_flow(detail.flow);
    IF reply IN ('lost', 'too_large') OR live.fence IS DISTINCT FROM fence OR live.state <> 0
        OR retrysafe.point_of(flow) IS DISTINCT FROM called_from
    THEN
        PERFORM retrysafe.answer_owner(CASE reply WHEN 'too_large' THEN reply ELSE 'lost' END, NULL,
            retrysafe.holds(live, fence));
    END IF;
    recovery_point := called_from;
    left_ms := least(live.lease_until - retrysafe.now_ms() - deadline_ms, flow.resume_until - retrysafe.now_ms());
    IF flow.digest <> digest THEN
        -- The first attempt has sent other bytes, and nobody knows what became of them.
        PERFORM retrysafe.settle_record(id, fence, NULL, 'unknown', 6, NULL, NULL, NULL, NULL);
        decision := 'unknown';
    ELSIF flow.resume_until IS NULL AND NOT is_unsent THEN
        -- It may have been sent before, and a second call would be a second effect.
        PERFORM retrysafe.settle_record(id, fence, NULL, 'unknown', 2, NULL, NULL, NULL, NULL);
        decision := 'unknown';
    ELSIF repeatable_ms IS NULL AND NOT is_unsent THEN
        -- The same, by the word of whoever asks now: the mark is of a time when the provider was said to take a key.
        PERFORM retrysafe.settle_record(id, fence, NULL, 'unknown', 8, NULL, NULL, NULL, NULL);
        decision := 'unknown';
    ELSIF left_ms > 0 THEN
        decision := 'send';
        call_key := retrysafe.call_key_of(live, phase);
        send_within_ms := least(left_ms, 2147483647);
        IF flow.set_by = fence AND NOT is_unsent THEN
            -- This owner was told so before, and may have sent since: from here on nobody can say that nothing has left.
            flow.set_by := 0;
            detail.flow := retrysafe.flow_bytes(flow);
            change := retrysafe.change_nothing(live);
            change.detail := retrysafe.detail_bytes(detail);
            PERFORM retrysafe.write_record(live, change);
        END IF;
    ELSIF is_unsent THEN
        PERFORM retrysafe.give_back_call(id, fence, called_from);
        decision := 'too_late';
    ELSE
        PERFORM retrysafe.settle_record(id, fence, NULL, 'unknown', 2, NULL, NULL, NULL, NULL);
        decision := 'too_late';
    END IF;
END
$$;

-- The last stop before a call: commits the first-sent mark with the digest of what will be sent, and says whether it
-- may be sent and with which key. `remembers_ms` is how long the provider remembers a key; NULL if it takes none.
CREATE PROCEDURE retrysafe.about_to_call(
    id bytea, fence bigint, from_point text, phase text, request bytea, remembers_ms bigint,
    deadline_ms integer DEFAULT 20000, margin_ms bigint DEFAULT 300000, lease_max_ms bigint DEFAULT 600000,
    INOUT decision text DEFAULT NULL, INOUT call_key text DEFAULT NULL, INOUT send_within_ms integer DEFAULT NULL,
    INOUT recovery_point text DEFAULT NULL
) LANGUAGE plpgsql AS $$
BEGIN
    COMMIT;
    SET TRANSACTION ISOLATION LEVEL READ COMMITTED, READ WRITE;
    SELECT * INTO decision, call_key, send_within_ms, recovery_point
    FROM retrysafe.about_to_call_v1(id, fence, retrysafe.checked_point(from_point),
        retrysafe.checked_phase(phase),
        retrysafe.checked_output(request), retrysafe.repeatable(remembers_ms, lease_max_ms, deadline_ms, margin_ms),
        deadline_ms);
    COMMIT;
END
$$;

-- The call of this recovery point was not made: not a byte of it has left. Gives the lease back, and says in which state
-- the record is then.
CREATE FUNCTION retrysafe.call_not_sent(id bytea, fence bigint, from_point text) RETURNS text
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET lock_timeout = '5s' AS $$
BEGIN
    PERFORM retrysafe.join_v1();
    RETURN retrysafe.give_back_call(id, retrysafe.checked_fence(fence), retrysafe.checked_point(from_point));
END
$$;

CREATE FUNCTION retrysafe.settle_v1(
    id bytea, fence bigint, outcome text, status integer, headers text[], body bytea, from_point text, ttl_ms bigint
) RETURNS TABLE (reply text, answer text, holds text)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET lock_timeout = '5s' AS $$
#variable_conflict use_variable
DECLARE
    told retrysafe.told_outcome := retrysafe.read_outcome(outcome, status, headers, body, ttl_ms);
    live retrysafe.record;
BEGIN
    PERFORM retrysafe.only_from('settle'), retrysafe.join_v1();
    reply := retrysafe.settle_record(id, retrysafe.checked_fence(fence), from_point, told.outcome, 5, ttl_ms, told.status,
        told.headers, told.body);
    IF reply IN ('lost', 'contradicts') AND told.outcome <> 'unknown' THEN
        PERFORM retrysafe.keep_late_note(id, fence, CASE told.outcome WHEN 'completed' THEN 1 ELSE 2 END,
            told.status, CASE WHEN told.body IS NOT NULL THEN told.content_type END, told.body);
    END IF;
    live := retrysafe.read_record(id);
    answer := retrysafe.standing_name(live.state);
    holds := retrysafe.holds(live, fence);
    RETURN NEXT;
END
$$;

-- Says how the execution ended, and in which state the record is then. The outcome is `completed` with status, headers
-- and body; `not_kept`, which is completed without an answer to replay; `retryable`; or `unknown`. A flow is completed
-- from its own recovery point only.
CREATE PROCEDURE retrysafe.settle(
    id bytea, fence bigint, outcome text, status integer DEFAULT NULL, headers text[] DEFAULT NULL,
    body bytea DEFAULT NULL, from_point text DEFAULT NULL, ttl_ms bigint DEFAULT NULL, INOUT state text DEFAULT NULL
) LANGUAGE plpgsql AS $$
DECLARE
    reply  text;
    answer text;
    holds  text;
BEGIN
    COMMIT;
    SET TRANSACTION ISOLATION LEVEL READ COMMITTED, READ WRITE;
    SELECT * INTO reply, answer, holds FROM retrysafe.settle_v1(id, fence, outcome, status, headers, body,
        CASE WHEN from_point IS NOT NULL THEN retrysafe.checked_point(from_point) END, ttl_ms) s;
    COMMIT;
    state := retrysafe.answer_owner(reply, answer, holds);
END
$$;

-- The same inside the caller's transaction: it holds if and only if that commits. What was settled before is refused,
-- the same answer too: the rows of this transaction would be there a second time. So is `retryable`: the next attempt
-- would do again what this transaction commits.
CREATE FUNCTION retrysafe.settle_in(
    id bytea, fence bigint, outcome text, status integer DEFAULT NULL, headers text[] DEFAULT NULL,
    body bytea DEFAULT NULL, from_point text DEFAULT NULL, ttl_ms bigint DEFAULT NULL
) RETURNS text
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_variable
DECLARE
    told  retrysafe.told_outcome := retrysafe.read_outcome(outcome, status, headers, body, ttl_ms);
    reply text;
    live  retrysafe.record;
BEGIN
    PERFORM retrysafe.join_v1();
    IF told.outcome = 'retryable' THEN
        PERFORM retrysafe.refuse_argument('what this transaction commits is done, and must not be done again',
            'Roll back, and then CALL retrysafe.settle(…) with autocommit on, if the begin is committed.');
    END IF;
    reply := retrysafe.settle_record(id, retrysafe.checked_fence(fence),
        CASE WHEN from_point IS NOT NULL THEN retrysafe.checked_point(from_point) END, told.outcome, 5, ttl_ms,
        told.status, told.headers, told.body);
    live := retrysafe.read_record(id);
    RETURN retrysafe.answer_owner(CASE reply WHEN 'repeated' THEN 'lost' ELSE reply END,
        retrysafe.standing_name(live.state), retrysafe.holds(live, fence));
END
$$;

-- Takes back a begin whose answer was lost: this owner has sent nothing and will not. Says whether there was
-- something to take back.
CREATE FUNCTION retrysafe.withdraw(id bytea, owner bigint) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET lock_timeout = '5s' AS $$
#variable_conflict use_variable
DECLARE
    live    retrysafe.record;
    detail  retrysafe.record_detail;
    decided retrysafe.decision;
BEGIN
    PERFORM retrysafe.join_v1();
    live := retrysafe.lock_record(id);
    detail := retrysafe.read_detail(live.detail);
    decided := retrysafe.decide_withdraw(live, detail, retrysafe.read_flow(detail.flow), owner);
    IF live.id IS NULL OR decided.reply = 'lost' THEN
        RETURN false;
    END IF;
    -- A guarded transaction does not commit with this: the key is free, and its rows would be written a second time.
    PERFORM retrysafe.write_record(live, decided.change);
    RETURN true;
END
$$;

-- Lengthens a lease while its owner executes, and says how many milliseconds it has from the moment it asked.
CREATE FUNCTION retrysafe.renew(
    id bytea, fence bigint, lease_ms bigint DEFAULT 60000, lease_max_ms bigint DEFAULT 600000
) RETURNS integer
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET lock_timeout = '5s' AS $$
#variable_conflict use_variable
DECLARE
    live    retrysafe.record;
    decided retrysafe.decision;
    left_ms bigint;
BEGIN
    PERFORM retrysafe.join_v1();
    live := retrysafe.lock_record(id);
    decided := retrysafe.decide_renew(live, retrysafe.now_ms(), retrysafe.checked_fence(fence), lease_ms, lease_max_ms);
    IF live.id IS NULL OR decided.reply = 'lost' THEN
        PERFORM retrysafe.answer_owner('lost', NULL, retrysafe.holds(live, fence));
    END IF;
    PERFORM retrysafe.write_record(live, decided.change);
    live := retrysafe.read_record(id);
    left_ms := live.lease_until - retrysafe.now_ms();
    IF left_ms <= 0 THEN
        PERFORM retrysafe.answer_owner('lost', NULL, retrysafe.holds(live, fence));
    END IF;
    RETURN least(left_ms, 2147483647);
END
$$;

-- The record as it is, to read back what became of a COMMIT without an answer. No row if there is none.
CREATE FUNCTION retrysafe.look(id bytea) RETURNS TABLE (
    state text, fence bigint, recovery_point text, flow text, input bytea, outputs bytea[], status integer,
    headers text[], body bytea, lease_left_ms integer
) LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_variable
DECLARE
    live     retrysafe.record := retrysafe.read_record(id);
    progress retrysafe.flow_progress := retrysafe.read_flow((retrysafe.read_detail(live.detail)).flow);
    now_ms   bigint := retrysafe.now_ms();
BEGIN
    IF live.id IS NULL OR retrysafe.is_expired(live, progress, now_ms) THEN
        RETURN;
    END IF;
    state := retrysafe.standing_name(live.state);
    fence := live.fence;
    recovery_point := retrysafe.point_of(progress);
    flow := retrysafe.code_of(progress);
    input := progress.input;
    outputs := progress.outputs;
    status := live.status;
    headers := retrysafe.read_headers(live.headers);
    body := live.body;
    IF live.state = 0 THEN
        lease_left_ms := least(greatest(live.lease_until - now_ms, 0), 2147483647);
    END IF;
    RETURN NEXT;
END
$$;

-- The key with which the call of this phase is sent, as retrysafe.about_to_call gives it. NULL if there is no record.
CREATE FUNCTION retrysafe.downstream_key(id bytea, phase text) RETURNS text
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RETURN retrysafe.call_key_of(retrysafe.read_record(id), retrysafe.checked_phase(phase));
END
$$;
