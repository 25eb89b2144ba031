-- The outbox: what is to be done outside the database, staged with the rows of the application and delivered by
-- workers. The rules are those of retrysafe_core::effect; a test compares the two, event by event.
--
-- Times are milliseconds by this server's clock, as everywhere here.

-- What is not over yet. Delivered and cancelled effects leave for retrysafe.effect_done, so that this table
-- is as small as what is under way.
CREATE TABLE retrysafe.effect (
    id             bigint   GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    kind           text     NOT NULL CHECK (octet_length(kind) BETWEEN 1 AND 128),
    -- 0 waiting for another of its lane, 1 ready, 2 leased, 3 unknown, 4 dead.
    state          smallint NOT NULL,
    -- Ready: from when on; leased: until when; waiting: from when on it would be ready; unknown and dead: since.
    at             bigint   NOT NULL,
    -- Rises with every claim and every decision. It is drawn from retrysafe.version, which leaps ahead when a server takes over: a
    -- claim that was lost in a fail-over gives its fence to nobody.
    fence          bigint   NOT NULL DEFAULT 0,
    -- The sent mark: the fence under which it was set, and until when the effect may be sent again. Both NULL: it
    -- was never sent. The time alone NULL: its receiver takes no key.
    marked_by      bigint,
    resend_until   bigint,
    -- The last claim that was about to send it, the one that set the mark or a later one. It says something only while it is the fence.
    sent_by        bigint,
    -- How many claims were about to send it, since it was staged: so many deliveries may have left. A claim that was given back
    -- has sent nothing and does not count.
    deliveries     integer  NOT NULL DEFAULT 0,
    -- To whom it was sent under the mark: a digest of what the worker says of its receiver. NULL: to whoever is sent its kind.
    receiver       bigint,
    failures       integer  NOT NULL DEFAULT 0,
    -- Leases that ended without a word after their mark.
    crashes        integer  NOT NULL DEFAULT 0,
    -- Effects of one lane are delivered one after the other, in the order of their ids.
    lane           text     CHECK (octet_length(lane) BETWEEN 1 AND 256),
    -- The application's own name for it, unique in its kind.
    name           text     CHECK (octet_length(name) BETWEEN 1 AND 256),
    -- The same on every delivery, and never another effect's.
    downstream_key text     NOT NULL CHECK (octet_length(downstream_key) BETWEEN 1 AND 255),
    destination    text     CHECK (octet_length(destination) <= 2048),
    content_type   text     CHECK (octet_length(content_type) <= 255),
    payload        bytea    NOT NULL CHECK (octet_length(payload) <= 1048576),
    staged_at      bigint   NOT NULL,
    last_error     text,
    -- While it is unknown: how often its receiver was asked about this delivery, when last, and what came of that. On the first
    -- line what was learned, then the beginning of what was answered.
    lookups        integer  NOT NULL DEFAULT 0,
    looked_up_at   bigint,
    last_lookup    text     CHECK (octet_length(last_lookup) <= 2048),
    -- The request whose guarded transaction has staged it. NULL: it was staged outside of a request.
    record         bytea,
    -- Where it waits for another delivery: from when on its receiver may have forgotten its key; 0 for one that takes no key. The sweeper looks for that time. It has a
    -- column of its own so that a sent mark changes nothing that is indexed: then PostgreSQL writes the row and no index.
    forgotten_at   bigint   GENERATED ALWAYS AS (
        CASE WHEN state = 1 AND marked_by IS NOT NULL THEN coalesce(resend_until, 0) END) STORED
) WITH (
    -- A claim and a mark of every effect of a page find room in the page, once what the claim has left behind is cleared away. So the table hardly grows
    -- with what passes through it.
    fillfactor = 45,
    autovacuum_vacuum_scale_factor = 0.01,
    autovacuum_vacuum_threshold = 1000,
    autovacuum_analyze_scale_factor = 0.05,
    autovacuum_vacuum_cost_delay = 0
);
ALTER TABLE retrysafe.effect ALTER COLUMN payload SET STORAGE EXTERNAL;
-- Each state has its own index, so that a claim never meets what it may not take.
CREATE INDEX effect_ready ON retrysafe.effect (kind, at, id) WHERE state = 1;
CREATE INDEX effect_leased ON retrysafe.effect (at) WHERE state = 2;
CREATE INDEX effect_undecided ON retrysafe.effect (state, at) WHERE state IN (3, 4);
CREATE INDEX effect_forgotten ON retrysafe.effect (forgotten_at) WHERE forgotten_at IS NOT NULL;
CREATE INDEX effect_lane ON retrysafe.effect (lane, id) WHERE lane IS NOT NULL;
CREATE INDEX effect_record ON retrysafe.effect (record) WHERE record IS NOT NULL;

-- The number of an effect that was lost in a fail-over is given to no other one: somebody may still name it, to cancel it or to tell its end.
CREATE OR REPLACE FUNCTION retrysafe.leap_v1() RETURNS void LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    PERFORM setval('retrysafe.version', nextval('retrysafe.version') + 4294967296),
        setval('retrysafe.effect_id_seq', nextval('retrysafe.effect_id_seq') + 4294967296);
END
$$;

-- What is over: 5 delivered, 6 cancelled. One partition per day, dropped as a whole after its time.
CREATE TABLE retrysafe.effect_done (
    day            integer  NOT NULL,
    id             bigint   NOT NULL,
    kind           text     NOT NULL,
    state          smallint NOT NULL,
    at             bigint   NOT NULL,
    fence          bigint   NOT NULL,
    failures       integer  NOT NULL,
    crashes        integer  NOT NULL,
    lane           text,
    name           text,
    downstream_key text     NOT NULL,
    destination    text,
    -- What its receiver calls it.
    reference      text,
    staged_at      bigint   NOT NULL,
    record         bytea,
    PRIMARY KEY (id, day)
) PARTITION BY RANGE (day);
CREATE INDEX effect_done_record ON retrysafe.effect_done (record) WHERE record IS NOT NULL;

-- Names are remembered for as long as their effects are.
CREATE TABLE retrysafe.effect_name (
    kind      text   NOT NULL,
    name      text   NOT NULL,
    effect_id bigint NOT NULL,
    -- SHA-256 of what was staged under the name.
    digest    bytea  NOT NULL,
    PRIMARY KEY (kind, name)
);
CREATE INDEX effect_name_effect ON retrysafe.effect_name (effect_id);

-- Kinds that nobody may claim for now.
CREATE TABLE retrysafe.effect_pause (
    kind      text   PRIMARY KEY,
    paused_at bigint NOT NULL,
    reason    text   NOT NULL,
    who       text
);

-- Who has decided what about an effect, or about a kind, and why.
CREATE TABLE retrysafe.effect_decision (
    at        bigint NOT NULL,
    verb      text   NOT NULL,
    effect_id bigint,
    kind      text   NOT NULL,
    who       text   NOT NULL,
    reason    text   NOT NULL
);
CREATE INDEX effect_decision_effect ON retrysafe.effect_decision (effect_id, at);
CREATE INDEX effect_decision_at ON retrysafe.effect_decision (at);

-- Makes the partitions of today and of the week after, with the rights of the role that migrated: a worker whose role may
-- not call this has a week in which somebody notices.
CREATE FUNCTION retrysafe.make_effect_days() RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    today integer := (retrysafe.now_ms() / 86400000)::integer;
    leaf  text;
BEGIN
    PERFORM pg_advisory_xact_lock(7272746379737632);
    FOR day IN today..today + 7 LOOP
        leaf := 'effect_done_' || day;
        IF NOT EXISTS (SELECT FROM pg_class WHERE relnamespace = 'retrysafe'::regnamespace AND relname = leaf) THEN
            EXECUTE format('CREATE TABLE retrysafe.%I (LIKE retrysafe.effect_done INCLUDING ALL)', leaf);
            EXECUTE format('ALTER TABLE retrysafe.effect_done ATTACH PARTITION retrysafe.%I FOR VALUES FROM (%s) TO (%s)',
                leaf, day, day + 1);
        END IF;
    END LOOP;
END
$$;

-- Drops one partition of effects that were over more than `keep_days` ago, at least one day, with the names of its
-- effects, if there is one, and says whether there was.
CREATE FUNCTION retrysafe.drop_effect_day(keep_days integer) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET lock_timeout = '50ms' AS $$
DECLARE
    oldest integer := (retrysafe.now_ms() / 86400000)::integer - greatest(keep_days, 1);
    leaf   text;
BEGIN
    SELECT c.relname INTO leaf
    FROM pg_catalog.pg_inherits i JOIN pg_catalog.pg_class c ON c.oid = i.inhrelid
    WHERE i.inhparent = 'retrysafe.effect_done'::regclass
        AND substring(c.relname FROM '_(\d+)$')::integer < oldest
    LIMIT 1;
    IF leaf IS NULL THEN
        RETURN false;
    END IF;
    EXECUTE format('DELETE FROM retrysafe.effect_name n USING retrysafe.%I d WHERE n.effect_id = d.id', leaf);
    EXECUTE format('DROP TABLE retrysafe.%I', leaf);
    -- What was decided is kept for a quarter of a year: as long as the transitions of requests are.
    DELETE FROM retrysafe.effect_decision d WHERE d.at < retrysafe.now_ms() - 90 * 86400000::bigint;
    RETURN true;
END
$$;

REVOKE ALL ON FUNCTION retrysafe.make_effect_days(), retrysafe.drop_effect_day(integer) FROM PUBLIC;
SELECT retrysafe.make_effect_days();

-- Whether nothing may be claimed: this server took over from one whose last commits may be lost, so it may lack sent
-- marks, and its quarantine lasts. Whoever is the first to meet such a server notes it.
CREATE FUNCTION retrysafe.claims_are_held() RETURNS boolean LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    held bigint := retrysafe.hold_v1();
BEGIN
    IF held = -1 THEN
        PERFORM retrysafe.observe_here();
        held := retrysafe.hold_v1();
    END IF;
    RETURN held IS NOT NULL;
END
$$;

-- Which server answers, and which life of it. A worker remembers both: a former primary that comes back knows nothing of what was
-- delivered without it, and takes itself for the one that has always been here.
--
-- In PL/pgSQL, as everything that a worker asks for with each batch: a function in SQL is read and planned anew by every statement
-- that calls it.
CREATE FUNCTION retrysafe.this_server_v1(OUT system text, OUT timeline integer) LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    SELECT c.system_identifier::text,
        ('x' || substring(pg_walfile_name(pg_current_wal_lsn()) FROM 1 FOR 8))::bit(32)::integer
    INTO system, timeline
    FROM pg_control_system() c;
END
$$;

-- Refuses what cannot be staged. The constraints of the table say the same, for whoever writes there directly.
CREATE FUNCTION retrysafe.check_effect(
    kind text, destination text, content_type text, payload bytea, downstream_key text, lane text, name text
) RETURNS void LANGUAGE plpgsql IMMUTABLE AS $$
BEGIN
    IF (octet_length(kind) BETWEEN 1 AND 128) IS NOT TRUE THEN
        PERFORM retrysafe.refuse_argument('the kind of an effect has 1 to 128 bytes',
            'The kind chooses who delivers the effect, such as ''receipt''.');
    ELSIF payload IS NULL THEN
        PERFORM retrysafe.refuse_argument('an effect has a body', 'An empty body is ''''::bytea.');
    ELSIF octet_length(payload) > 1048576 THEN
        PERFORM retrysafe.refuse_argument(format('the body of an effect has at most 1 MiB, and this one has %s bytes',
            octet_length(payload)), 'Keep large things in tables of your own, and their keys here.');
    ELSIF octet_length(destination) > 2048 OR octet_length(content_type) > 255 THEN
        PERFORM retrysafe.refuse_argument('a destination has at most 2048 bytes, a content type at most 255', NULL);
    ELSIF octet_length(lane) NOT BETWEEN 1 AND 256 OR octet_length(name) NOT BETWEEN 1 AND 256 THEN
        PERFORM retrysafe.refuse_argument('a lane and a name have 1 to 256 bytes', 'Pass NULL for none.');
    ELSIF octet_length(downstream_key) NOT BETWEEN 1 AND 255 THEN
        PERFORM retrysafe.refuse_argument('a key has 1 to 255 bytes', 'Pass NULL for a random one.');
    END IF;
END
$$;

-- Stages an effect in the transaction of the caller. `is_new` is false where the name was staged before, with the
-- same content; then nothing is staged.
--
-- Whoever stages into a lane holds it until the end of the transaction: ids are drawn in the order of commits then,
-- and nothing overtakes.
CREATE FUNCTION retrysafe.stage_v1(
    kind text, destination text, content_type text, payload bytea, downstream_key text, lane text, name text,
    not_before_ms bigint
)
RETURNS TABLE (id bigint, downstream_key_used text, is_new boolean)
LANGUAGE plpgsql VOLATILE AS $$
#variable_conflict use_column
DECLARE
    t        bigint := retrysafe.now_ms();
    -- Without a key of the application's own: 122 random bits. Nothing is sent before this is committed.
    used     text := coalesce($5, gen_random_uuid()::text);
    content  bytea := sha256(sha256($4) || convert_to(jsonb_build_array($2, $3, $5, $6)::text, 'UTF8'));
    known    record;
    is_first boolean := true;
    new_id   bigint;
BEGIN
    PERFORM retrysafe.check_effect($1, $2, $3, $4, $5, $6, $7);
    IF $7 IS NOT NULL THEN
        LOOP
            -- Somebody who stages the same name in another transaction is waited for.
            INSERT INTO retrysafe.effect_name AS n (kind, name, effect_id, digest) VALUES ($1, $7, 0, content)
            ON CONFLICT DO NOTHING;
            EXIT WHEN FOUND;
            SELECT n.effect_id, n.digest, coalesce(e.downstream_key, d.downstream_key) AS downstream_key INTO known
            FROM retrysafe.effect_name n
                LEFT JOIN retrysafe.effect e ON e.id = n.effect_id
                LEFT JOIN retrysafe.effect_done d ON d.id = n.effect_id
            WHERE n.kind = $1 AND n.name = $7;
            -- It was cancelled in this moment, and its name with it.
            CONTINUE WHEN NOT FOUND AND current_setting('transaction_isolation') = 'read committed';
            IF known.digest IS DISTINCT FROM content THEN
                RAISE EXCEPTION 'retrysafe: an effect of this kind and name was staged with other content'
                    USING ERRCODE = 'RS020', DETAIL = format('kind %s, name %s, effect %s', $1, $7, known.effect_id),
                    HINT = 'A name stands for one effect. Give another effect another name.';
            END IF;
            RETURN QUERY SELECT known.effect_id, known.downstream_key, false;
            RETURN;
        END LOOP;
    END IF;
    IF $6 IS NOT NULL THEN
        -- A snapshot from before the lock would not see who is ahead.
        IF current_setting('transaction_isolation') <> 'read committed' THEN
            RAISE EXCEPTION 'retrysafe: this transaction is %, and only READ COMMITTED can stage into a lane',
                upper(current_setting('transaction_isolation'))
                USING ERRCODE = 'RS002', HINT = 'Begin it with ISOLATION LEVEL READ COMMITTED, or stage without a lane.';
        END IF;
        PERFORM pg_advisory_xact_lock(hashtextextended('retrysafe lane ' || $6, 0));
        is_first := NOT EXISTS (SELECT FROM retrysafe.effect e WHERE e.lane = $6);
    END IF;
    INSERT INTO retrysafe.effect AS e (
        kind, state, at, lane, name, downstream_key, destination, content_type, payload, staged_at, record
    ) VALUES (
        $1, CASE WHEN is_first THEN 1 ELSE 0 END, greatest(t, coalesce($8, t)), $6, $7, used, $2, $3, $4, t,
        -- A transaction that works for a request says so in its first statement.
        (SELECT g.id FROM retrysafe.guard g WHERE g.txid = pg_current_xact_id() LIMIT 1)
    ) RETURNING e.id INTO new_id;
    IF $7 IS NOT NULL THEN
        UPDATE retrysafe.effect_name n SET effect_id = new_id WHERE n.kind = $1 AND n.name = $7;
    END IF;
    RETURN QUERY SELECT new_id, used, true;
END
$$;

-- What this transaction writes must survive what the server does not, whatever the database is set to: a mark that was lost is a
-- second delivery, and a claim that was lost lets another worker have the effect too. And it waits for nobody without an end: an
-- application's transaction may hold an effect that it cancels.
CREATE FUNCTION retrysafe.survive_crashes() RETURNS void LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    PERFORM set_config('synchronous_commit', CASE current_setting('synchronous_commit')
        WHEN 'remote_apply' THEN 'remote_apply' ELSE 'on' END, true), set_config('lock_timeout', '5s', true);
END
$$;

-- Locks effects and says which it has got: those that nobody else holds. An application's transaction may hold an effect for as
-- long as it likes; it costs the others of a batch nothing. Rows are locked in the order of their ids.
CREATE FUNCTION retrysafe.lock_effects(ids bigint[]) RETURNS bigint[] LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    taken bigint[];
BEGIN
    SELECT coalesce(array_agg(l.id), '{}') INTO taken FROM (
        SELECT e.id FROM retrysafe.effect e WHERE e.id = ANY ($1) ORDER BY e.id FOR UPDATE SKIP LOCKED) l;
    RETURN taken;
END
$$;

-- What was planned while the outbox was empty must not be a scan when it is full. So the functions below plan once and
-- by indexes, whatever the statistics say: to plan takes longer than to claim one effect, and to compile a plan for a
-- large estimate takes a quarter of a second.
CREATE FUNCTION retrysafe.plan_by_index() RETURNS void LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    PERFORM set_config('enable_seqscan', 'off', true), set_config('enable_bitmapscan', 'off', true),
        set_config('enable_hashjoin', 'off', true), set_config('enable_mergejoin', 'off', true),
        set_config('jit', 'off', true), set_config('plan_cache_mode', 'force_generic_plan', true);
END
$$;

-- Claims effects of one kind that are due, at most `most`, for `lease_ms`. Those that were due before `due_from` are left out.
-- Whoever claims often begins where the last claim has found something, and does not walk past what was claimed since the last vacuum.
-- `due_first` is the earliest time that was found.
--
-- An effect over which workers have died twice is suspect: it is claimed alone, so that it takes no neighbour along until it
-- is given up. Others wait for it until it heads the queue, and not longer.
CREATE FUNCTION retrysafe.claim_effects_v1(kind text, most integer, lease_ms bigint, due_from bigint DEFAULT 0)
RETURNS TABLE (
    id bigint, fence bigint, downstream_key text, destination text, content_type text, payload bytea, lane text,
    name text, failures integer, staged_at bigint, was_sent boolean, now_ms bigint, is_suspect boolean, due_first bigint
)
LANGUAGE plpgsql VOLATILE AS $$
#variable_conflict use_column
DECLARE
    t           bigint := retrysafe.now_ms();
    lease_until bigint := retrysafe.later(t, $3);
BEGIN
    -- A server that took over from one whose last commits may be lost may lack sent marks.
    IF retrysafe.claims_are_held() THEN
        RETURN;
    END IF;
    PERFORM retrysafe.survive_crashes();
    PERFORM retrysafe.plan_by_index();
    RETURN QUERY
    WITH due AS MATERIALIZED (
        SELECT e.ctid AS place, e.id, e.at, e.crashes >= 2 AS is_suspect FROM retrysafe.effect e
        WHERE e.state = 1 AND e.kind = $1 AND e.at >= $4 AND e.at <= t
            AND (e.marked_by IS NULL OR e.resend_until > t)
            AND NOT EXISTS (SELECT FROM retrysafe.effect_pause p WHERE p.kind = $1)
        ORDER BY e.at, e.id LIMIT $2 FOR UPDATE OF e SKIP LOCKED
    ), head AS MATERIALIZED (
        SELECT d.id, d.at, d.is_suspect FROM due d ORDER BY d.at, d.id LIMIT 1
    )
    -- By their places, which nobody changes while they are locked: that needs no index. One that was changed after this statement had
    -- begun and before it was locked is not found there, and is left to the next claim.
    UPDATE retrysafe.effect e SET state = 2, at = lease_until, fence = nextval('retrysafe.version'), lookups = 0, looked_up_at = NULL
    WHERE e.ctid = ANY (ARRAY(
        SELECT d.place FROM due d, head h WHERE d.id = h.id OR NOT (d.is_suspect OR h.is_suspect)
    ))
    RETURNING e.id, e.fence, e.downstream_key, e.destination, e.content_type, e.payload, e.lane, e.name,
        e.failures, e.staged_at, e.marked_by IS NOT NULL, t, e.crashes >= 2, (SELECT h.at FROM head h);
END
$$;

-- Writes the sent marks of effects that are about to be sent. `resend_ms` is for how long after this each may be sent
-- again; NULL where its receiver takes no key. `receivers` says to whom each is about to be sent: what may have been sent to
-- another one must not be sent to this one, which has never seen the key. What does not come back is not the caller's any
-- more; what comes back as not sendable is unknown now. What another transaction holds at this moment comes back without a word on
-- that: it has no mark, nobody waits for it here, and it is to be given back.
CREATE FUNCTION retrysafe.mark_effects_v1(ids bigint[], fences bigint[], receivers bigint[], resend_ms bigint)
RETURNS TABLE (id bigint, is_sendable boolean, lease_left_ms bigint, resend_left_ms bigint)
LANGUAGE plpgsql VOLATILE AS $$
#variable_conflict use_column
DECLARE
    t        bigint := retrysafe.now_ms();
    forget   bigint := retrysafe.later(t, $4);
    places   tid[];
    to_whom  bigint[];
    known    boolean[];
    sendable boolean[];
    leased   boolean[];
BEGIN
    PERFORM retrysafe.plan_by_index();
    PERFORM retrysafe.survive_crashes();
    -- Locked and judged by one statement, written by the next one at the places that are locked: one look into the index for each effect.
    SELECT array_agg(l.place), array_agg(l.to_whom), array_agg(l.is_first OR l.is_same_receiver),
        -- Not where the receiver is said to take no key by now, whatever was said when it was sent first.
        array_agg(l.is_first OR (l.is_same_receiver AND $4 IS NOT NULL AND l.is_remembered)),
        array_agg(l.is_leased)
    INTO places, to_whom, known, sendable, leased
    FROM (
        SELECT e.ctid AS place, n.receiver AS to_whom, e.state = 2 AS is_leased,
            e.marked_by IS NULL OR e.marked_by = e.fence AS is_first,
            e.receiver IS NULL OR coalesce(e.receiver = n.receiver, false) AS is_same_receiver,
            coalesce(e.resend_until > t, false) AS is_remembered
        FROM unnest($1, $2, $3) AS n (id, fence, receiver)
            JOIN retrysafe.effect e ON e.id = n.id AND e.fence = n.fence
        ORDER BY e.id FOR UPDATE OF e SKIP LOCKED
    ) l;
    IF cardinality(places) IS DISTINCT FROM cardinality($1) THEN
        RETURN QUERY SELECT e.id, NULL::boolean, 0::bigint, NULL::bigint FROM unnest($1, $2) AS n (id, fence)
            JOIN retrysafe.effect e ON e.id = n.id AND e.fence = n.fence WHERE (e.ctid = ANY (places)) IS NOT TRUE;
    END IF;
    RETURN QUERY
    UPDATE retrysafe.effect e SET
        state = CASE WHEN n.is_sendable THEN 2 ELSE 3 END,
        at = CASE WHEN n.is_sendable THEN e.at ELSE t END,
        marked_by = coalesce(e.marked_by, e.fence),
        sent_by = CASE WHEN n.is_sendable THEN e.fence ELSE e.sent_by END,
        deliveries = e.deliveries + CASE WHEN n.is_sendable AND e.sent_by IS DISTINCT FROM e.fence THEN 1 ELSE 0 END,
        -- Sent again, it is remembered for no longer than its receiver is said to remember by now: a requeued one may have another.
        resend_until = CASE WHEN e.marked_by IS NULL THEN forget
            WHEN n.is_sendable AND e.marked_by <> e.fence THEN least(e.resend_until, forget) ELSE e.resend_until END,
        receiver = CASE WHEN e.marked_by IS NULL THEN n.receiver ELSE coalesce(e.receiver, n.receiver) END,
        last_error = CASE WHEN n.is_known THEN e.last_error
            ELSE 'it may have been sent to another receiver than the one that its kind has now' END
    FROM unnest(places, to_whom, known, sendable, leased) AS n (place, receiver, is_known, is_sendable, is_leased)
    -- No condition on the row itself: an index with that condition could be scanned in the place of the places.
    WHERE e.ctid = n.place AND n.is_leased
    -- What became unknown has no lease any more.
    RETURNING e.id, n.is_sendable, CASE WHEN n.is_sendable THEN greatest(e.at - t, 0) ELSE 0 END,
        CASE WHEN e.resend_until IS NOT NULL THEN greatest(e.resend_until - t, 0) END;
END
$$;

-- Renews leases, and says which were renewed. What another transaction holds is passed by: its lease stands as it was, and
-- the others are not kept waiting for it.
CREATE FUNCTION retrysafe.renew_effects_v1(ids bigint[], fences bigint[], lease_ms bigint)
RETURNS TABLE (id bigint) LANGUAGE sql VOLATILE AS $$
    WITH clock AS MATERIALIZED (SELECT retrysafe.now_ms() AS t), held AS MATERIALIZED (
        SELECT e.id, clock.t FROM unnest($1, $2) AS n (id, fence)
            JOIN retrysafe.effect e ON e.id = n.id AND e.fence = n.fence, clock
        -- What has ended is not revived.
        WHERE e.state = 2 AND e.at > clock.t ORDER BY e.id FOR UPDATE OF e SKIP LOCKED
    )
    UPDATE retrysafe.effect e SET at = greatest(e.at, retrysafe.later(h.t, $3))
    FROM held h WHERE e.id = h.id RETURNING e.id
$$;

-- Gives back effects of which no byte has left under the caller's claim. That is no failure. Returns those that another
-- transaction holds at this moment: nobody waits for them here, and they are to be given back again.
CREATE FUNCTION retrysafe.hand_back_effects_v1(ids bigint[], fences bigint[])
RETURNS TABLE (id bigint) LANGUAGE plpgsql VOLATILE AS $$
#variable_conflict use_column
DECLARE
    taken bigint[];
BEGIN
    PERFORM retrysafe.plan_by_index();
    taken := retrysafe.lock_effects($1);
    WITH clock AS MATERIALIZED (SELECT retrysafe.now_ms() AS t), held AS MATERIALIZED (
        SELECT e.id, clock.t, e.marked_by IS NOT NULL AND e.marked_by <> e.fence AS was_sent,
            coalesce(e.resend_until > clock.t, false) AS is_remembered
        FROM unnest($1, $2) AS n (id, fence) JOIN retrysafe.effect e ON e.id = n.id AND e.fence = n.fence, clock
        -- Also what has become unknown meanwhile, unless another worker's bytes may be on their way.
        WHERE e.id = ANY (taken) AND (e.state = 2 OR (e.state = 3 AND (e.marked_by IS NULL OR e.marked_by = e.fence)))
    )
    UPDATE retrysafe.effect e SET
        state = CASE WHEN h.was_sent AND NOT h.is_remembered THEN 3 ELSE 1 END, at = h.t,
        fence = CASE WHEN h.was_sent AND NOT h.is_remembered THEN e.fence ELSE nextval('retrysafe.version') END,
        marked_by = CASE WHEN h.was_sent THEN e.marked_by END,
        resend_until = CASE WHEN h.was_sent THEN e.resend_until END,
        deliveries = e.deliveries - CASE WHEN e.sent_by = e.fence THEN 1 ELSE 0 END
    FROM held h WHERE e.id = h.id;
    RETURN QUERY SELECT e.id FROM unnest($1, $2) AS n (id, fence)
        JOIN retrysafe.effect e ON e.id = n.id AND e.fence = n.fence WHERE NOT e.id = ANY (taken);
END
$$;

-- Says how deliveries ended. `ends`: 0 delivered, 1 rejected for good, 2 without an effect, 3 without an answer.
-- Returns the state in which each effect is now; what does not come back is not the caller's any more. What another
-- transaction holds at this moment comes back without a state: nobody waits for it here, and its end is to be said again.
CREATE FUNCTION retrysafe.finish_effects_v1(
    ids bigint[], fences bigint[], ends smallint[], retry_ms bigint[], reference text[], errors text[],
    failures_max integer
)
RETURNS TABLE (id bigint, state smallint)
LANGUAGE plpgsql VOLATILE AS $$
#variable_conflict use_column
DECLARE
    t          bigint := retrysafe.now_ms();
    today      integer := (t / 86400000)::integer;
    places     tid[];
    known_as   text[];
    delivered  bigint[];
    freed      text[];
BEGIN
    PERFORM retrysafe.survive_crashes();
    IF 0 = ANY ($3) AND to_regclass('retrysafe.effect_done_' || today) IS NULL THEN
        PERFORM retrysafe.make_effect_days();
    END IF;
    PERFORM retrysafe.plan_by_index();
    -- Nearly all were delivered. They are locked by one statement and moved by the next one, from the places that are locked: one look
    -- into the index for each effect.
    SELECT array_agg(l.place), array_agg(l.reference) INTO places, known_as FROM (
        SELECT e.ctid AS place, n.reference FROM unnest($1, $2, $3, $5) AS n (id, fence, ended, reference)
            JOIN retrysafe.effect e ON e.id = n.id AND e.fence = n.fence
        WHERE n.ended = 0 AND e.state IN (2, 3) ORDER BY e.id FOR UPDATE OF e SKIP LOCKED
    ) l;
    WITH gone AS (
        DELETE FROM retrysafe.effect e USING unnest(places, known_as) AS n (place, reference) WHERE e.ctid = n.place
        RETURNING e.id, e.kind, e.fence, e.failures, e.crashes, e.lane, e.name, e.downstream_key, e.destination, n.reference,
            e.staged_at, e.record
    ), kept AS (
        INSERT INTO retrysafe.effect_done (day, id, kind, state, at, fence, failures, crashes, lane, name,
            downstream_key, destination, reference, staged_at, record)
        SELECT today, g.id, g.kind, 5, t, g.fence, g.failures, g.crashes, g.lane, g.name, g.downstream_key,
            g.destination, g.reference, g.staged_at, g.record
        FROM gone g
    )
    SELECT array_agg(g.id), array_agg(DISTINCT g.lane) FILTER (WHERE g.lane IS NOT NULL) INTO delivered, freed FROM gone g;
    RETURN QUERY SELECT d.id, 5::smallint FROM unnest(delivered) AS d (id);
    IF cardinality(delivered) IS DISTINCT FROM cardinality($1) THEN
        RETURN QUERY SELECT o.id, o.state FROM (
            SELECT array_agg(n.id) AS ids, array_agg(n.fence) AS fences, array_agg(n.ended) AS ends, array_agg(n.retry_ms) AS retry_ms,
                array_agg(n.error) AS errors
            FROM unnest($1, $2, $3, $4, $6) AS n (id, fence, ended, retry_ms, error) WHERE (n.id = ANY (delivered)) IS NOT TRUE
        ) others, LATERAL retrysafe.finish_other_effects(
            others.ids, others.fences, others.ends, others.retry_ms, others.errors, $7, t) o;
    END IF;
    -- The next of each lane whose head is gone.
    IF freed IS NOT NULL THEN
        PERFORM retrysafe.free_lanes_v1(freed);
    END IF;
END
$$;

-- What retrysafe.finish_effects_v1 does with those that were not delivered, whose delivery was said before, or that another transaction holds.
CREATE FUNCTION retrysafe.finish_other_effects(
    ids bigint[], fences bigint[], ends smallint[], retry_ms bigint[], errors text[], failures_max integer, t bigint
)
RETURNS TABLE (id bigint, state smallint)
LANGUAGE plpgsql VOLATILE AS $$
#variable_conflict use_column
DECLARE
    taken bigint[] := retrysafe.lock_effects($1);
    busy  bigint[];
BEGIN
    -- One that was delivered, and that was let go of since it was looked for, is returned without a state too, so that its end is said again.
    busy := ARRAY(SELECT e.id FROM unnest($1, $2, $3) AS n (id, fence, ended)
        JOIN retrysafe.effect e ON e.id = n.id AND e.fence = n.fence
        WHERE NOT e.id = ANY (taken) OR (n.ended = 0 AND e.state IN (2, 3)));
    RETURN QUERY SELECT b.id, NULL::smallint FROM unnest(busy) AS b (id);
    RETURN QUERY
    WITH told AS MATERIALIZED (
        SELECT n.* FROM unnest($1, $2, $3, $4, $5) AS n (id, fence, ended, retry_ms, error)
        WHERE NOT n.id = ANY (busy)
    ), judged AS MATERIALIZED (
        SELECT e.id, n.ended, n.retry_ms, n.error,
            CASE WHEN n.ended = 2 AND (e.marked_by IS NULL OR e.marked_by = e.fence) THEN NULL ELSE e.marked_by END AS marked_by,
            CASE WHEN n.ended = 2 AND (e.marked_by IS NULL OR e.marked_by = e.fence) THEN NULL ELSE e.resend_until END AS resend_until,
            e.failures + CASE WHEN n.ended IN (2, 3) THEN 1 ELSE 0 END AS failures
        FROM told n JOIN retrysafe.effect e ON e.id = n.id AND e.fence = n.fence
        WHERE (n.ended = 1 AND e.state IN (2, 3)) OR (n.ended IN (2, 3) AND e.state = 2)
            OR (n.ended = 2 AND e.state = 3 AND (e.marked_by IS NULL OR e.marked_by = e.fence))
    ), becomes AS MATERIALIZED (
        SELECT j.*, CASE
            WHEN j.ended = 1 THEN 4
            WHEN j.marked_by IS NULL AND j.failures >= $6 THEN 4
            WHEN j.marked_by IS NULL THEN 1
            WHEN j.failures < $6 AND coalesce(j.resend_until > t, false) THEN 1
            ELSE 3 END::smallint AS state
        FROM judged j
    ), changed AS (
        UPDATE retrysafe.effect e SET state = b.state, marked_by = b.marked_by, resend_until = b.resend_until,
            failures = b.failures, last_error = b.error,
            at = CASE WHEN b.state = 1 THEN retrysafe.later(t, b.retry_ms) ELSE t END,
            -- What becomes unknown keeps its fence: its worker may still tell how the delivery ended.
            fence = CASE WHEN b.state = 3 OR b.ended = 1 THEN e.fence ELSE nextval('retrysafe.version') END
        FROM becomes b WHERE e.id = b.id
        RETURNING e.id, e.state
    )
    SELECT c.id, c.state FROM changed c
    -- Said before, and it holds.
    UNION ALL SELECT d.id, d.state FROM told n JOIN retrysafe.effect_done d ON d.id = n.id AND d.fence = n.fence
        WHERE n.ended = 0 AND d.state = 5 AND d.day >= (t / 86400000)::integer - 1
    UNION ALL SELECT e.id, e.state FROM told n JOIN retrysafe.effect e ON e.id = n.id AND e.fence = n.fence
        WHERE (n.ended = 1 AND e.state = 4)
            OR (e.state = 3 AND n.ended IN (2, 3) AND NOT (n.ended = 2 AND (e.marked_by IS NULL OR e.marked_by = e.fence)));
END
$$;

-- Makes the head of each of these lanes ready, if it waits.
CREATE FUNCTION retrysafe.free_lanes_v1(lanes text[]) RETURNS bigint LANGUAGE sql VOLATILE AS $$
    WITH heads AS MATERIALIZED (
        SELECT h.id, h.state FROM unnest($1) AS l (lane),
            LATERAL (SELECT e.id, e.state FROM retrysafe.effect e WHERE e.lane = l.lane ORDER BY e.id LIMIT 1) h
    ), waiting AS MATERIALIZED (
        -- A head that somebody else holds, to cancel it for instance, is left to the next sweep: whoever finishes an effect
        -- holds it meanwhile, and the two would wait for one another.
        SELECT e.id FROM retrysafe.effect e WHERE e.id IN (SELECT h.id FROM heads h WHERE h.state = 0) AND e.state = 0
        ORDER BY e.id FOR UPDATE SKIP LOCKED
    ), freed AS (
        UPDATE retrysafe.effect e SET state = 1 FROM waiting w WHERE e.id = w.id
        RETURNING e.id
    )
    SELECT count(*) FROM freed
$$;

-- Looks at the lanes after `after`, at most `most`, and makes their heads ready if they wait: a head that was delivered
-- in the moment in which the next one was staged has freed nothing. Returns the last lane, or NULL at the end.
CREATE FUNCTION retrysafe.sweep_lanes_v1(after text, most integer) RETURNS text LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    lanes text[] := '{}';
    lane_after text := $1;
BEGIN
    FOR number IN 1..$2 LOOP
        SELECT e.lane INTO lane_after FROM retrysafe.effect e
        WHERE e.lane > coalesce(lane_after, '') ORDER BY e.lane, e.id LIMIT 1;
        EXIT WHEN lane_after IS NULL;
        lanes := lanes || lane_after;
    END LOOP;
    PERFORM retrysafe.free_lanes_v1(lanes);
    RETURN lane_after;
END
$$;

-- Ends leases whose workers have said nothing, and what waits for its next delivery until its receiver has forgotten
-- the key; at most `most` of each. Returns how many became ready and unknown.
--
-- A lease without a mark of its own is not held against the effect: nobody was called with it. So whatever is given up here may have
-- been sent, and nothing dies.
CREATE FUNCTION retrysafe.sweep_effects_v1(crashes_max integer, most integer)
RETURNS TABLE (ready bigint, unknown bigint)
LANGUAGE sql VOLATILE AS $$
    WITH clock AS MATERIALIZED (SELECT retrysafe.now_ms() AS t), stale AS MATERIALIZED (
        SELECT e.id, clock.t, true AS was_leased, e.marked_by, e.resend_until,
            coalesce(e.sent_by = e.fence, false) AS is_crash,
            e.crashes + CASE WHEN e.sent_by = e.fence THEN 1 ELSE 0 END AS crashes
        FROM retrysafe.effect e, clock
        WHERE e.state = 2 AND e.at <= clock.t ORDER BY e.at LIMIT $2 FOR UPDATE OF e SKIP LOCKED
    ), forgotten AS MATERIALIZED (
        SELECT e.id, clock.t, false AS was_leased, e.marked_by, e.resend_until, false AS is_crash, e.crashes
        FROM retrysafe.effect e, clock
        WHERE e.forgotten_at <= clock.t ORDER BY e.forgotten_at LIMIT $2 FOR UPDATE OF e SKIP LOCKED
    ), becomes AS MATERIALIZED (
        SELECT s.id, s.t, s.was_leased, s.is_crash, s.crashes, CASE
            WHEN s.marked_by IS NULL THEN 1
            WHEN s.was_leased AND NOT (s.is_crash AND s.crashes >= $1) AND coalesce(s.resend_until > s.t, false) THEN 1
            ELSE 3 END::smallint AS state
        FROM (SELECT * FROM stale UNION ALL SELECT * FROM forgotten) s
    ), changed AS (
        UPDATE retrysafe.effect e SET state = b.state, at = b.t, crashes = b.crashes,
            fence = CASE WHEN b.state = 3 THEN e.fence ELSE nextval('retrysafe.version') END,
            last_error = CASE WHEN b.is_crash THEN 'its worker died, or was too slow'
                WHEN b.was_leased THEN 'it was claimed, and its worker was not heard of again before it was sent' ELSE e.last_error END
        FROM becomes b WHERE e.id = b.id RETURNING e.state
    )
    SELECT count(*) FILTER (WHERE c.state = 1), count(*) FILTER (WHERE c.state = 3) FROM changed c
$$;

-- What an operator, or the application, decides about one effect. Each raises the fence, so that a worker that holds
-- the effect loses it. Returns what was refused: NULL if nothing was, else 'absent', 'wrong_state',
-- 'may_have_been_sent', 'past_memory' or 'too_early'.

-- Ends an effect that is locked: 5 delivered, 6 cancelled. Its lane goes on.
CREATE FUNCTION retrysafe.end_effect_v1(held retrysafe.effect, final_state smallint, reference text) RETURNS void
LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    t     bigint := retrysafe.now_ms();
    today integer := (t / 86400000)::integer;
BEGIN
    IF to_regclass('retrysafe.effect_done_' || today) IS NULL THEN
        PERFORM retrysafe.make_effect_days();
    END IF;
    DELETE FROM retrysafe.effect e WHERE e.id = held.id;
    IF final_state = 6 THEN
        -- What was taken back may be staged again.
        DELETE FROM retrysafe.effect_name n WHERE n.effect_id = held.id;
    END IF;
    INSERT INTO retrysafe.effect_done (day, id, kind, state, at, fence, failures, crashes, lane, name, downstream_key,
        destination, reference, staged_at, record)
    VALUES (today, held.id, held.kind, final_state, t, nextval('retrysafe.version'), held.failures, held.crashes, held.lane, held.name,
        held.downstream_key, held.destination, reference, held.staged_at, held.record);
    IF held.lane IS NOT NULL THEN
        PERFORM retrysafe.free_lanes_v1(ARRAY[held.lane]);
    END IF;
END
$$;

-- What stands in the way of a decision about an effect that is not there: it is over, or there was none.
CREATE FUNCTION retrysafe.refused_over(effect_id bigint) RETURNS text LANGUAGE sql STABLE AS $$
    SELECT CASE WHEN EXISTS (SELECT FROM retrysafe.effect_done d WHERE d.id = effect_id)
        THEN 'wrong_state' ELSE 'absent' END
$$;

-- Why this effect cannot be taken back; NULL if it can be.
CREATE FUNCTION retrysafe.refused_cancel(effect_id bigint, seen retrysafe.effect) RETURNS text LANGUAGE sql STABLE AS $$
    SELECT CASE
        WHEN seen.id IS NULL THEN retrysafe.refused_over(effect_id)
        WHEN seen.state NOT IN (0, 1, 2, 4) THEN 'wrong_state'
        WHEN seen.marked_by IS NOT NULL AND seen.state <> 4 THEN 'may_have_been_sent' END
$$;

-- Takes an effect back. Whoever is refused holds nothing afterwards: the transaction of the caller may stay open for as long as it
-- likes, and the worker that delivers the effect must not wait for it.
CREATE FUNCTION retrysafe.cancel_effect_v1(effect_id bigint) RETURNS text LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    held    retrysafe.effect;
    refused text;
BEGIN
    SELECT * INTO held FROM retrysafe.effect e WHERE e.id = effect_id;
    refused := retrysafe.refused_cancel(effect_id, held);
    IF refused IS NOT NULL THEN
        RETURN refused;
    END IF;
    BEGIN
        SELECT * INTO held FROM retrysafe.effect e WHERE e.id = effect_id FOR UPDATE;
        refused := retrysafe.refused_cancel(effect_id, held);
        IF refused IS NOT NULL THEN
            -- It was marked while it was waited for. What is rolled back gives the lock back.
            RAISE EXCEPTION '%', refused USING ERRCODE = 'triggered_action_exception';
        END IF;
    EXCEPTION WHEN triggered_action_exception THEN
        RETURN refused;
    END;
    PERFORM retrysafe.end_effect_v1(held, 6::smallint, NULL);
    RETURN NULL;
END
$$;

-- Gives one that was given up another chance, after `wait_ms`.
CREATE FUNCTION retrysafe.requeue_effect_v1(effect_id bigint, wait_ms bigint DEFAULT 0) RETURNS text
LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    due  bigint := retrysafe.later(retrysafe.now_ms(), wait_ms);
    held retrysafe.effect;
BEGIN
    SELECT * INTO held FROM retrysafe.effect e WHERE e.id = effect_id FOR UPDATE;
    IF held.id IS NULL THEN
        RETURN retrysafe.refused_over(effect_id);
    ELSIF held.state <> 4 THEN
        RETURN 'wrong_state';
    ELSIF held.marked_by IS NOT NULL AND coalesce(held.resend_until <= due, true) THEN
        -- Also one whose receiver would forget the key while the effect waits: it would be unknown then.
        RETURN 'past_memory';
    END IF;
    -- Whoever was sent it has refused it for good, so it may go to another receiver now.
    UPDATE retrysafe.effect e SET state = 1, at = due, fence = nextval('retrysafe.version'), failures = 0, crashes = 0, receiver = NULL
    WHERE e.id = effect_id;
    RETURN NULL;
END
$$;

-- Decides an effect that is unknown. `evidence`: 0 it was delivered, 1 it had no effect and cannot have one any more,
-- 2 its receiver does not know it, which counts `settle_ms` after it became unknown, 3 as 1, and nobody wants it done.
-- `of_fence` names the delivery that the evidence is about.
CREATE FUNCTION retrysafe.resolve_effect_v1(
    effect_id bigint, of_fence bigint, evidence smallint, settle_ms bigint, reference text, reason text
) RETURNS text LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    t    bigint := retrysafe.now_ms();
    held retrysafe.effect;
BEGIN
    IF effect_id IS NULL OR of_fence IS NULL OR evidence IS NULL OR evidence NOT IN (0, 1, 2, 3)
        OR (evidence = 2 AND settle_ms IS NULL) THEN
        RAISE EXCEPTION 'retrysafe: evidence names its effect, the fence, and what was found'
            USING ERRCODE = 'RS007',
            HINT = '0: it was delivered, 1: it had no effect, 2: it is not known there, 3: as 1, and nobody wants it done.';
    END IF;
    SELECT * INTO held FROM retrysafe.effect e WHERE e.id = effect_id FOR UPDATE;
    IF held.id IS NULL THEN
        RETURN retrysafe.refused_over(effect_id);
    ELSIF held.state <> 3 OR held.fence <> of_fence THEN
        RETURN 'wrong_state';
    ELSIF evidence = 2 AND t - held.at < settle_ms THEN
        RETURN 'too_early';
    ELSIF evidence IN (0, 3) THEN
        PERFORM retrysafe.end_effect_v1(held, CASE evidence WHEN 0 THEN 5 ELSE 6 END::smallint, reference);
    ELSE
        UPDATE retrysafe.effect e SET state = 1, at = t, fence = nextval('retrysafe.version'), marked_by = NULL, resend_until = NULL,
            failures = 0, crashes = 0, last_error = reason
        WHERE e.id = effect_id;
    END IF;
    RETURN NULL;
END
$$;

-- How many effects there are, by kind and state, and since when the oldest has been there.
CREATE FUNCTION retrysafe.count_effects_v1()
RETURNS TABLE (kind text, state smallint, effects bigint, oldest_at bigint, now_ms bigint)
LANGUAGE sql STABLE AS $$
    SELECT e.kind, e.state, count(*), min(CASE WHEN e.state = 1 THEN e.at ELSE e.staged_at END), retrysafe.now_ms()
    FROM retrysafe.effect e GROUP BY e.kind, e.state
$$;
