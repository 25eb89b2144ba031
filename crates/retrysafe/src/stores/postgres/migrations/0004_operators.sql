-- What may an operator see of effects, and decide about them?
--
-- One door, retrysafe.operate_v1, so that the library and the program ask with one statement each. What is asked and
-- answered is JSON. What is refused is answered as {"refused": "wrong_state"}; the words are those of the decisions.

-- An effect as an operator sees it.
CREATE FUNCTION retrysafe.shown_effect(e retrysafe.effect) RETURNS jsonb LANGUAGE sql STABLE AS $$
    SELECT jsonb_build_object('id', e.id, 'kind', e.kind, 'state', e.state, 'at', e.at, 'staged_at', e.staged_at,
        'fence', e.fence, 'failures', e.failures, 'crashes', e.crashes, 'lane', e.lane, 'name', e.name,
        'key', e.downstream_key, 'destination', e.destination, 'content_type', e.content_type,
        'payload_bytes', octet_length(e.payload), 'last_error', e.last_error, 'marked_by', e.marked_by,
        'resend_until', e.resend_until, 'record', encode(e.record, 'hex'), 'lookups', e.lookups, 'looked_up_at', e.looked_up_at, 'last_lookup', e.last_lookup)
$$;

-- The same of one that is over.
CREATE FUNCTION retrysafe.shown_done(d retrysafe.effect_done) RETURNS jsonb LANGUAGE sql STABLE AS $$
    SELECT jsonb_build_object('id', d.id, 'kind', d.kind, 'state', d.state, 'at', d.at, 'staged_at', d.staged_at,
        'fence', d.fence, 'failures', d.failures, 'crashes', d.crashes, 'lane', d.lane, 'name', d.name,
        'key', d.downstream_key, 'destination', d.destination, 'reference', d.reference, 'record', encode(d.record, 'hex'))
$$;

-- Lists effects that are in one of these states and fit the filter, the newest first. What is over is in another table,
-- so a list is of one or of the other.
CREATE FUNCTION retrysafe.list_effects(asked jsonb) RETURNS jsonb LANGUAGE plpgsql STABLE
SET plan_cache_mode = force_custom_plan AS $$
DECLARE
    states    smallint[] := ARRAY(SELECT s.one::smallint FROM jsonb_array_elements_text(asked -> 'states') AS s (one));
    of_kind   text := asked ->> 'kind';
    of_lane   text := asked ->> 'lane';
    of_error  text := asked ->> 'error';
    until_at  bigint := retrysafe.now_ms() - (asked ->> 'older_ms')::bigint;
    before_id bigint := coalesce((asked ->> 'before_id')::bigint, 9223372036854775807);
    most      integer := (asked ->> 'most')::integer;
    found     jsonb[];
BEGIN
    IF states && '{5,6}'::smallint[] THEN
        found := ARRAY(SELECT retrysafe.shown_done(d) FROM retrysafe.effect_done d
            WHERE d.state = ANY (states) AND d.id < before_id AND (of_kind IS NULL OR d.kind = of_kind)
                AND (of_lane IS NULL OR d.lane = of_lane) AND (until_at IS NULL OR d.at <= until_at) AND of_error IS NULL
            ORDER BY d.id DESC LIMIT most);
    ELSE
        found := ARRAY(SELECT retrysafe.shown_effect(e) FROM retrysafe.effect e
            WHERE e.state = ANY (states) AND e.id < before_id AND (of_kind IS NULL OR e.kind = of_kind)
                AND (of_lane IS NULL OR e.lane = of_lane) AND (until_at IS NULL OR e.at <= until_at)
                AND (of_error IS NULL OR strpos(e.last_error, of_error) > 0)
            ORDER BY e.id DESC LIMIT most);
    END IF;
    RETURN jsonb_build_object('effects', to_jsonb(found), 'now', retrysafe.now_ms());
END
$$;

-- The effects that a request has staged since this time, the newest first, also those that are over.
CREATE FUNCTION retrysafe.effects_of_record(asked jsonb) RETURNS jsonb LANGUAGE plpgsql STABLE
SET plan_cache_mode = force_custom_plan AS $$
DECLARE
    named bytea := decode(asked ->> 'record', 'hex');
    since bigint := (asked ->> 'since')::bigint;
    found jsonb[];
BEGIN
    found := ARRAY(SELECT s.shown FROM (
        SELECT e.id, retrysafe.shown_effect(e) AS shown FROM retrysafe.effect e WHERE e.record = named AND e.staged_at >= since
        UNION ALL
        SELECT d.id, retrysafe.shown_done(d) FROM retrysafe.effect_done d WHERE d.record = named AND d.staged_at >= since
    ) s ORDER BY s.id DESC LIMIT (asked ->> 'most')::integer);
    RETURN jsonb_build_object('effects', to_jsonb(found));
END
$$;

-- Everything about one effect, with the first `head_bytes` of its payload in hexadecimal digits.
CREATE FUNCTION retrysafe.show_effect(asked jsonb) RETURNS jsonb LANGUAGE plpgsql STABLE AS $$
DECLARE
    named bigint := (asked ->> 'id')::bigint;
    live  retrysafe.effect;
    over  retrysafe.effect_done;
BEGIN
    SELECT * INTO live FROM retrysafe.effect e WHERE e.id = named;
    SELECT * INTO over FROM retrysafe.effect_done d WHERE d.id = named;
    IF live.id IS NULL AND over.id IS NULL THEN
        RETURN '{"refused": "absent"}';
    END IF;
    RETURN jsonb_build_object(
        'effect', CASE WHEN live.id IS NULL THEN retrysafe.shown_done(over) ELSE retrysafe.shown_effect(live) END,
        'payload_head', encode(substring(live.payload FROM 1 FOR (asked ->> 'head_bytes')::integer), 'hex'),
        'waits_for', CASE WHEN live.state = 0 THEN (SELECT min(e.id) FROM retrysafe.effect e WHERE e.lane = live.lane) END,
        'paused', EXISTS (SELECT FROM retrysafe.effect_pause p WHERE p.kind = live.kind),
        'decisions', coalesce((SELECT jsonb_agg(to_jsonb(d) ORDER BY d.at) FROM (
            SELECT d.* FROM retrysafe.effect_decision d WHERE d.effect_id = named ORDER BY d.at DESC LIMIT 100) d), '[]'),
        'now', retrysafe.now_ms());
END
$$;

-- How the kinds stand: what is not over, and what is paused.
CREATE FUNCTION retrysafe.effect_stats() RETURNS jsonb LANGUAGE sql STABLE AS $$
    WITH counted AS (
        SELECT e.kind, count(*) FILTER (WHERE e.state = 0) AS waiting, count(*) FILTER (WHERE e.state = 1) AS ready,
            count(*) FILTER (WHERE e.state = 2) AS leased, count(*) FILTER (WHERE e.state = 3) AS unknown,
            count(*) FILTER (WHERE e.state = 4) AS dead, min(e.at) FILTER (WHERE e.state = 1) AS oldest_ready_at,
            min(e.at) FILTER (WHERE e.state = 3) AS oldest_unknown_at
        FROM retrysafe.effect e GROUP BY e.kind
    )
    SELECT jsonb_build_object(
        'kinds', coalesce((SELECT jsonb_agg(jsonb_build_object('kind', coalesce(c.kind, p.kind),
            'waiting', coalesce(c.waiting, 0), 'ready', coalesce(c.ready, 0), 'leased', coalesce(c.leased, 0),
            'unknown', coalesce(c.unknown, 0), 'dead', coalesce(c.dead, 0), 'oldest_ready_at', c.oldest_ready_at,
            'oldest_unknown_at', c.oldest_unknown_at, 'paused_at', p.paused_at, 'pause_reason', p.reason,
            'paused_by', p.who) ORDER BY coalesce(c.kind, p.kind))
            FROM counted c FULL JOIN retrysafe.effect_pause p ON p.kind = c.kind), '[]'),
        'held_until', (SELECT s.held_until FROM retrysafe.server s WHERE s.held_until > retrysafe.now_ms()),
        'now', retrysafe.now_ms())
$$;

-- Whether the tables stay small: their sizes, the rows that are dead and not vacuumed yet, and the oldest snapshot, which
-- keeps dead rows alive. Of other roles' transactions a role without pg_read_all_stats sees none.
CREATE FUNCTION retrysafe.effect_health() RETURNS jsonb LANGUAGE sql VOLATILE AS $$
    SELECT jsonb_build_object(
        'tables', (SELECT jsonb_agg(jsonb_build_object('name', s.schemaname || '.' || s.relname,
                'bytes', pg_total_relation_size(s.relid), 'rows', s.n_live_tup, 'dead_rows', s.n_dead_tup) ORDER BY s.relname)
            FROM pg_catalog.pg_stat_user_tables s
            WHERE s.schemaname = 'retrysafe' AND s.relname IN ('effect', 'effect_name', 'effect_decision')),
        'oldest_snapshot', (SELECT jsonb_build_object('pid', a.pid, 'application', a.application_name,
                'seconds', floor(extract(epoch FROM clock_timestamp() - a.xact_start))::bigint)
            FROM pg_catalog.pg_stat_activity a
            WHERE a.datname = current_database() AND a.pid <> pg_backend_pid() AND a.xact_start IS NOT NULL
                AND coalesce(a.backend_xmin, a.backend_xid) IS NOT NULL
            ORDER BY a.xact_start LIMIT 1),
        'slots', coalesce((SELECT jsonb_agg(s.slot_name ORDER BY s.slot_name) FROM pg_catalog.pg_replication_slots s
            WHERE s.xmin IS NOT NULL AND NOT s.active), '[]'))
$$;

-- Writes down who has decided what, and why.
CREATE FUNCTION retrysafe.note_decision(asked jsonb, verb text, effect_id bigint, kind text) RETURNS void
LANGUAGE sql VOLATILE AS $$
    INSERT INTO retrysafe.effect_decision (at, verb, effect_id, kind, who, reason)
    VALUES (retrysafe.now_ms(), $2, $3, $4, $1 ->> 'who', $1 ->> 'reason')
$$;

-- Decides about one effect, and writes it down unless it was refused.
CREATE FUNCTION retrysafe.decide_effect(verb text, asked jsonb) RETURNS jsonb LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    named   bigint := (asked ->> 'id')::bigint;
    kind    text := (SELECT e.kind FROM retrysafe.effect e WHERE e.id = named);
    refused text;
BEGIN
    refused := CASE verb
        WHEN 'retry' THEN retrysafe.requeue_effect_v1(named)
        WHEN 'cancel' THEN retrysafe.cancel_effect_v1(named)
        ELSE retrysafe.resolve_effect_v1(named, (asked ->> 'fence')::bigint, (asked ->> 'evidence')::smallint,
            (asked ->> 'settle_ms')::bigint, asked ->> 'reference', asked ->> 'reason') END;
    IF refused IS NULL THEN
        PERFORM retrysafe.note_decision(asked, verb, named, kind);
    END IF;
    RETURN jsonb_build_object('refused', refused);
END
$$;

-- Pauses a kind, or lets it go on, and says whether that changed anything.
CREATE FUNCTION retrysafe.pause_kind(verb text, asked jsonb) RETURNS jsonb LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    IF verb = 'pause' THEN
        INSERT INTO retrysafe.effect_pause (kind, paused_at, reason, who)
        VALUES (asked ->> 'kind', retrysafe.now_ms(), asked ->> 'reason', asked ->> 'who') ON CONFLICT DO NOTHING;
    ELSE
        DELETE FROM retrysafe.effect_pause p WHERE p.kind = asked ->> 'kind';
    END IF;
    IF FOUND THEN
        PERFORM retrysafe.note_decision(asked, verb, NULL, asked ->> 'kind');
    END IF;
    RETURN jsonb_build_object('changed', FOUND);
END
$$;

-- Requeues or purges dead effects that fit the filter: at most `most`, with ids above `after_id`. A requeue makes one ready
-- after the other, `gap_us` microseconds apart, the first after `wait_us`. With `dry_run` nothing is changed.
CREATE FUNCTION retrysafe.decide_dead(verb text, asked jsonb) RETURNS jsonb LANGUAGE plpgsql VOLATILE
SET plan_cache_mode = force_custom_plan AS $$
DECLARE
    of_kind   text := asked ->> 'kind';
    of_error  text := asked ->> 'error';
    until_at  bigint := retrysafe.now_ms() - (asked ->> 'older_ms')::bigint;
    is_dry    boolean := coalesce((asked ->> 'dry_run')::boolean, false);
    wait_us   bigint := coalesce((asked ->> 'wait_us')::bigint, 0);
    after_id  bigint := coalesce((asked ->> 'after_id')::bigint, 0);
    dead      retrysafe.effect;
    refused   text;
    matched   bigint := 0;
    changed   bigint := 0;
BEGIN
    IF of_kind IS NULL AND of_error IS NULL AND until_at IS NULL THEN
        PERFORM retrysafe.refuse_argument('that would be every dead effect', 'Say which: kind, error or older_ms.');
    END IF;
    FOR dead IN SELECT * FROM retrysafe.effect e
        WHERE e.state = 4 AND e.id > after_id AND (of_kind IS NULL OR e.kind = of_kind)
            AND (of_error IS NULL OR strpos(e.last_error, of_error) > 0) AND (until_at IS NULL OR e.at <= until_at)
        ORDER BY e.id LIMIT coalesce((asked ->> 'most')::integer, 1000)
    LOOP
        matched := matched + 1;
        after_id := dead.id;
        refused := CASE
            WHEN is_dry AND verb = 'requeue' AND dead.marked_by IS NOT NULL
                AND coalesce(dead.resend_until <= retrysafe.now_ms() + wait_us / 1000, true) THEN 'past_memory'
            WHEN is_dry THEN NULL
            WHEN verb = 'requeue' THEN retrysafe.requeue_effect_v1(dead.id, wait_us / 1000)
            -- Somebody may have requeued it meanwhile, and only dead ones are purged.
            WHEN (SELECT e.state FROM retrysafe.effect e WHERE e.id = dead.id FOR UPDATE) = 4
                THEN retrysafe.cancel_effect_v1(dead.id)
            ELSE 'wrong_state' END;
        CONTINUE WHEN refused IS NOT NULL;
        changed := changed + 1;
        wait_us := wait_us + coalesce((asked ->> 'gap_us')::bigint, 0);
        IF NOT is_dry THEN
            PERFORM retrysafe.note_decision(asked, verb, dead.id, dead.kind);
        END IF;
    END LOOP;
    RETURN jsonb_build_object('matched', matched, 'changed', changed, 'after_id', after_id, 'wait_us', wait_us);
END
$$;

-- The one door.
CREATE FUNCTION retrysafe.operate_v1(verb text, asked jsonb) RETURNS jsonb LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    CASE verb
    WHEN 'list' THEN
        RETURN retrysafe.list_effects(asked);
    WHEN 'show' THEN
        RETURN retrysafe.show_effect(asked);
    WHEN 'of_record' THEN
        RETURN retrysafe.effects_of_record(asked);
    WHEN 'stats' THEN
        RETURN retrysafe.effect_stats();
    WHEN 'health' THEN
        RETURN retrysafe.effect_health();
    WHEN 'retry', 'cancel', 'resolve', 'pause', 'resume', 'requeue', 'purge' THEN
        IF coalesce(btrim(asked ->> 'who'), '') = '' OR coalesce(btrim(asked ->> 'reason'), '') = '' THEN
            PERFORM retrysafe.refuse_argument('a decision names who decides, and why', 'Pass who and reason.');
        END IF;
        -- What was decided must survive what the server does not.
        PERFORM set_config('synchronous_commit', CASE current_setting('synchronous_commit')
            WHEN 'remote_apply' THEN 'remote_apply' ELSE 'on' END, true);
        RETURN CASE
            WHEN verb IN ('retry', 'cancel', 'resolve') THEN retrysafe.decide_effect(verb, asked)
            WHEN verb IN ('pause', 'resume') THEN retrysafe.pause_kind(verb, asked)
            ELSE retrysafe.decide_dead(verb, asked) END;
    END CASE;
END
$$;
