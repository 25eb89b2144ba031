-- The inbox: what providers have told us by webhooks. An event is kept before its provider is told that it has arrived, and is matched
-- to a record or an effect afterwards.
--
-- Times are milliseconds by this server's clock, as everywhere here; happened_at is by the provider's.

CREATE TABLE retrysafe.inbox (
    id          bigint   GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    provider    text     NOT NULL CHECK (octet_length(provider) BETWEEN 1 AND 64),
    event_id    text     NOT NULL CHECK (octet_length(event_id) BETWEEN 1 AND 255),
    -- 0 waiting for what it names, 1 applied, 2 agrees with what was decided before, 3 contradicts it, 4 unmatched: its time
    -- to wait is over, 5 ignored: it says nothing that counts, 6 malformed.
    state       smallint NOT NULL CHECK (state BETWEEN 0 AND 6),
    -- When it was verified and kept.
    received_at bigint   NOT NULL,
    happened_at bigint,
    -- What it names: 'id:…', 'key:…' (a digest), 'request:…', 'sent:…', 'effect:…', 'reference:…'.
    names       text[]   NOT NULL,
    -- How often it was delivered.
    copies      integer  NOT NULL DEFAULT 1,
    -- When to look for what it names, how often somebody did, and until when.
    look_at     bigint   NOT NULL,
    looks       integer  NOT NULL DEFAULT 0,
    wait_until  bigint   NOT NULL,
    ended_at    bigint,
    -- What it was matched to: 'record …' or 'effect …', and the fence of the attempt.
    matched     text,
    fence       bigint,
    reason      text,
    payload     bytea    NOT NULL CHECK (octet_length(payload) <= 1048576),
    UNIQUE (provider, event_id)
) WITH (fillfactor = 85, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_cost_delay = 0);
ALTER TABLE retrysafe.inbox ALTER COLUMN payload SET STORAGE EXTERNAL;
CREATE INDEX inbox_due ON retrysafe.inbox (look_at) WHERE state = 0;
CREATE INDEX inbox_wait ON retrysafe.inbox (wait_until) WHERE state = 0;
-- Those that have decided, or agreed, are found by what they were matched to.
CREATE INDEX inbox_names ON retrysafe.inbox USING gin (names) WHERE state IN (0, 3, 4, 5);
CREATE INDEX inbox_matched ON retrysafe.inbox (matched) WHERE matched IS NOT NULL;
CREATE INDEX inbox_ended ON retrysafe.inbox (provider, ended_at) WHERE state <> 0;
CREATE INDEX inbox_state ON retrysafe.inbox (state, id);

-- The number of an event that was lost in a fail-over is given to no other one.
CREATE OR REPLACE FUNCTION retrysafe.leap_v1() RETURNS void LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    PERFORM setval('retrysafe.version', nextval('retrysafe.version') + 4294967296),
        setval('retrysafe.effect_id_seq', nextval('retrysafe.effect_id_seq') + 4294967296),
        setval('retrysafe.inbox_id_seq', nextval('retrysafe.inbox_id_seq') + 4294967296);
END
$$;

-- By these an event finds its effect: among those that are unknown, which are few, and among those that are over.
CREATE INDEX effect_unknown_key ON retrysafe.effect (downstream_key) WHERE state = 3;
CREATE INDEX effect_done_key ON retrysafe.effect_done (downstream_key);
CREATE INDEX effect_done_reference ON retrysafe.effect_done (reference) WHERE reference IS NOT NULL;

-- An event as whoever applies it needs it.
CREATE FUNCTION retrysafe.inbox_event(i retrysafe.inbox) RETURNS jsonb LANGUAGE sql STABLE AS $$
    SELECT jsonb_build_object('id', i.id, 'provider', i.provider, 'event_id', i.event_id, 'names', to_jsonb(i.names),
        'happened_at', i.happened_at, 'payload', encode(i.payload, 'hex'))
$$;

-- An event as an operator sees it.
CREATE FUNCTION retrysafe.shown_event(i retrysafe.inbox) RETURNS jsonb LANGUAGE sql STABLE AS $$
    SELECT jsonb_build_object('id', i.id, 'provider', i.provider, 'event_id', i.event_id, 'state', i.state,
        'received_at', i.received_at, 'happened_at', i.happened_at, 'names', to_jsonb(i.names), 'copies', i.copies,
        'looks', i.looks, 'wait_until', i.wait_until, 'ended_at', i.ended_at, 'matched', i.matched, 'fence', i.fence,
        'reason', i.reason, 'payload_bytes', octet_length(i.payload))
$$;

-- Keeps an event, once for its provider and id, and says whether it is new.
CREATE FUNCTION retrysafe.keep_event(asked jsonb, payload bytea) RETURNS jsonb LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    t    bigint := retrysafe.now_ms();
    kept retrysafe.inbox;
BEGIN
    INSERT INTO retrysafe.inbox AS i (provider, event_id, state, received_at, happened_at, names, look_at, wait_until, ended_at,
        reason, payload)
    VALUES (asked ->> 'provider', asked ->> 'event_id', (asked ->> 'state')::smallint, t, (asked ->> 'happened_at')::bigint,
        ARRAY(SELECT n.one FROM jsonb_array_elements_text(asked -> 'names') AS n (one)),
        -- Whoever keeps it looks at once; others look if that process dies.
        t + 1000, t + (asked ->> 'wait_ms')::bigint, CASE WHEN (asked ->> 'state')::smallint <> 0 THEN t END,
        asked ->> 'reason', payload)
    ON CONFLICT (provider, event_id) DO UPDATE SET copies = i.copies + 1
    RETURNING i.* INTO kept;
    RETURN jsonb_build_object('id', kept.id, 'is_new', kept.copies = 1, 'state', kept.state);
END
$$;

-- The effect that an event names, among these kinds. What is under way is not found: nobody knows its end yet.
CREATE FUNCTION retrysafe.named_effect(asked jsonb) RETURNS jsonb LANGUAGE plpgsql STABLE AS $$
DECLARE
    named text := asked ->> 'name';
    value text := substring(named FROM position(':' IN named) + 1);
    kinds text[] := ARRAY(SELECT k.one FROM jsonb_array_elements_text(asked -> 'kinds') AS k (one));
    found jsonb[];
BEGIN
    IF named LIKE 'effect:%' AND value ~ '^[0-9]{1,18}$' THEN
        found := ARRAY(SELECT jsonb_build_object('id', e.id, 'state', e.state, 'fence', e.fence, 'deliveries', e.deliveries)
            FROM retrysafe.effect e
            WHERE e.id = value::bigint AND e.kind = ANY (kinds)
            UNION ALL SELECT jsonb_build_object('id', d.id, 'state', d.state, 'fence', d.fence) FROM retrysafe.effect_done d
            WHERE d.id = value::bigint AND d.kind = ANY (kinds));
    ELSIF named LIKE 'sent:%' THEN
        found := ARRAY(SELECT jsonb_build_object('id', e.id, 'state', e.state, 'fence', e.fence, 'deliveries', e.deliveries)
            FROM retrysafe.effect e
            WHERE e.state = 3 AND e.downstream_key = value AND e.kind = ANY (kinds)
            UNION ALL SELECT jsonb_build_object('id', d.id, 'state', d.state, 'fence', d.fence) FROM retrysafe.effect_done d
            WHERE d.downstream_key = value AND d.kind = ANY (kinds) LIMIT 2);
    ELSIF named LIKE 'reference:%' THEN
        found := ARRAY(SELECT jsonb_build_object('id', d.id, 'state', d.state, 'fence', d.fence) FROM retrysafe.effect_done d
            WHERE d.reference = value AND d.kind = ANY (kinds) LIMIT 2);
    END IF;
    RETURN jsonb_build_object('effects', coalesce(to_jsonb(found), '[]'));
END
$$;

-- Waiting events whose time to be looked at has come. Each look doubles the pause before the next one, up to a quarter of an hour.
CREATE FUNCTION retrysafe.due_events(most integer) RETURNS jsonb LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    t     bigint := retrysafe.now_ms();
    found jsonb[];
BEGIN
    WITH due AS (
        SELECT i.id FROM retrysafe.inbox i WHERE i.state = 0 AND i.look_at <= t
        ORDER BY i.look_at LIMIT most FOR UPDATE SKIP LOCKED
    ), taken AS (
        UPDATE retrysafe.inbox i SET looks = i.looks + 1, look_at = t + least(900000, 1000 * (1 << least(i.looks, 10)))
        FROM due WHERE i.id = due.id RETURNING i.*
    )
    SELECT array_agg(retrysafe.inbox_event(taken)) INTO found FROM taken;
    RETURN jsonb_build_object('events', coalesce(to_jsonb(found), '[]'));
END
$$;

-- The one door.
CREATE FUNCTION retrysafe.inbox_v1(verb text, asked jsonb, payload bytea) RETURNS jsonb LANGUAGE plpgsql VOLATILE
SET plan_cache_mode = force_custom_plan AS $$
DECLARE
    t       bigint := retrysafe.now_ms();
    named   bigint := (asked ->> 'id')::bigint;
    most    integer := coalesce((asked ->> 'most')::integer, 1);
    -- The last event that whoever asks has had: whoever keeps its place comes to every event.
    after   bigint := coalesce((asked ->> 'after')::bigint, 0);
    changed bigint;
    -- Not `found`: that is what PostgreSQL says about the last statement.
    listed  jsonb[];
BEGIN
    IF verb IN ('keep', 'end', 'replay') THEN
        -- What was promised must survive what the server does not.
        PERFORM set_config('synchronous_commit', CASE current_setting('synchronous_commit')
            WHEN 'remote_apply' THEN 'remote_apply' ELSE 'on' END, true);
    END IF;
    CASE verb
    WHEN 'keep' THEN
        RETURN retrysafe.keep_event(asked, payload);
    WHEN 'due' THEN
        RETURN retrysafe.due_events(most);
    WHEN 'effect' THEN
        RETURN retrysafe.named_effect(asked);
    WHEN 'named' THEN
        listed := ARRAY(SELECT retrysafe.inbox_event(i) FROM retrysafe.inbox i
            WHERE i.state = 0 AND i.id > after
                AND i.names && ARRAY(SELECT n.one FROM jsonb_array_elements_text(asked -> 'names') AS n (one))
            ORDER BY i.id LIMIT most);
        RETURN jsonb_build_object('events', to_jsonb(listed));
    WHEN 'of_effects' THEN
        listed := ARRAY(SELECT retrysafe.inbox_event(i) FROM (
            SELECT e.id, e.downstream_key FROM retrysafe.effect e WHERE e.state = 3 ORDER BY e.at LIMIT 10000) e
            JOIN retrysafe.inbox i ON i.state = 0 AND i.id > after
                AND i.names && ARRAY['sent:' || e.downstream_key, 'effect:' || e.id]
            ORDER BY i.id LIMIT most);
        RETURN jsonb_build_object('events', to_jsonb(listed));
    WHEN 'end' THEN
        UPDATE retrysafe.inbox i SET state = (asked ->> 'state')::smallint, ended_at = t, matched = asked ->> 'matched',
            fence = (asked ->> 'fence')::bigint, reason = asked ->> 'reason'
        WHERE i.id = named AND i.state = 0;
        RETURN jsonb_build_object('changed', FOUND);
    WHEN 'note' THEN
        UPDATE retrysafe.inbox i SET reason = asked ->> 'reason'
        WHERE i.id = named AND i.state = 0 AND i.reason IS DISTINCT FROM asked ->> 'reason';
        RETURN jsonb_build_object('changed', FOUND);
    WHEN 'expire' THEN
        WITH over AS (SELECT i.id FROM retrysafe.inbox i WHERE i.state = 0 AND i.wait_until <= t
            ORDER BY i.wait_until LIMIT most FOR UPDATE SKIP LOCKED), ended AS (
            UPDATE retrysafe.inbox i SET state = 4, ended_at = t,
                reason = coalesce(i.reason, 'nothing here has a name that the event names')
            FROM over WHERE i.id = over.id RETURNING i.provider)
        SELECT array_agg(e.provider) INTO listed FROM (SELECT to_jsonb(ended.provider) AS provider FROM ended) e;
        RETURN jsonb_build_object('providers', coalesce(to_jsonb(listed), '[]'));
    WHEN 'reap' THEN
        DELETE FROM retrysafe.inbox i WHERE i.id IN (SELECT o.id FROM retrysafe.inbox o
            WHERE o.provider = asked ->> 'provider' AND o.state <> 0 AND o.ended_at < t - (asked ->> 'keep_ms')::bigint
            ORDER BY o.ended_at LIMIT most FOR UPDATE SKIP LOCKED);
        GET DIAGNOSTICS changed = ROW_COUNT;
        RETURN jsonb_build_object('changed', changed);
    WHEN 'stats' THEN
        listed := ARRAY(SELECT jsonb_build_object('provider', s.provider, 'waiting', s.waiting, 'oldest', s.oldest) FROM (
            SELECT i.provider, count(*) AS waiting, min(i.received_at) AS oldest FROM retrysafe.inbox i
            WHERE i.state = 0 GROUP BY i.provider) s);
        RETURN jsonb_build_object('providers', to_jsonb(listed), 'now', t);
    WHEN 'list' THEN
        listed := ARRAY(SELECT retrysafe.shown_event(i) FROM retrysafe.inbox i
            WHERE (asked ->> 'state' IS NULL OR i.state = (asked ->> 'state')::smallint)
                AND (asked ->> 'provider' IS NULL OR i.provider = asked ->> 'provider')
                AND i.id < coalesce((asked ->> 'before_id')::bigint, 9223372036854775807)
            ORDER BY i.id DESC LIMIT most);
        RETURN jsonb_build_object('events', to_jsonb(listed));
    WHEN 'about' THEN
        listed := ARRAY(SELECT retrysafe.shown_event(i) FROM retrysafe.inbox i WHERE i.id IN (
                SELECT m.id FROM retrysafe.inbox m WHERE m.matched = asked ->> 'matched'
                UNION ALL SELECT n.id FROM retrysafe.inbox n WHERE n.state IN (0, 3, 4, 5)
                    AND n.names && ARRAY(SELECT w.one FROM jsonb_array_elements_text(asked -> 'names') AS w (one)))
            ORDER BY i.id DESC LIMIT most);
        RETURN jsonb_build_object('events', to_jsonb(listed));
    WHEN 'show' THEN
        RETURN (SELECT jsonb_build_object('event', retrysafe.shown_event(i),
                'payload_head', encode(substring(i.payload FROM 1 FOR (asked ->> 'head_bytes')::integer), 'hex'))
            FROM retrysafe.inbox i WHERE i.id = named);
    WHEN 'event' THEN
        RETURN (SELECT retrysafe.inbox_event(i) FROM retrysafe.inbox i WHERE i.id = named);
    WHEN 'replay' THEN
        -- What was applied, or agrees, has said what it had to say.
        UPDATE retrysafe.inbox i SET state = (asked ->> 'state')::smallint, looks = 0, look_at = t,
            names = ARRAY(SELECT n.one FROM jsonb_array_elements_text(asked -> 'names') AS n (one)),
            wait_until = t + (asked ->> 'wait_ms')::bigint,
            ended_at = CASE WHEN (asked ->> 'state')::smallint <> 0 THEN t END, matched = NULL, fence = NULL,
            reason = asked ->> 'reason'
        WHERE i.id = named AND i.state IN (0, 3, 4, 5, 6);
        RETURN jsonb_build_object('changed', FOUND);
    END CASE;
END
$$;
