-- What is remembered, in one schema of its own.
--
-- Times are milliseconds since the Unix epoch by this server's clock, as everywhere in retrysafe; the
-- view retrysafe.overview shows them to people. The greatest bigint stands for the end of time.
--
-- The functions end in a version of their own: a program calls those it knows, so that a newer
-- migration can add others while older programs still run.

-- Every write of every record draws its version here, so no number ever occurs twice, whatever was
-- reaped meanwhile. No cache: a number drawn later must be greater.
CREATE SEQUENCE retrysafe.version AS bigint MINVALUE 1 CACHE 1;

CREATE TABLE retrysafe.record (
    -- SHA-256 of scope and key. Unique, so one record per scope and key: an index over the two
    -- themselves would say the same again and cost a quarter of a write.
    id           bytea    NOT NULL PRIMARY KEY,
    scope        bytea    NOT NULL,
    key          bytea    NOT NULL,
    fingerprint  bytea    NOT NULL,
    method       text     NOT NULL,
    route        text     NOT NULL,
    path         text     NOT NULL,
    -- CRC-32C of the columns above, which never change.
    checksum     bigint   NOT NULL,
    format       smallint NOT NULL,
    created_at   bigint   NOT NULL,
    ttl_ms       bigint   NOT NULL,
    version      bigint   NOT NULL,
    fence        bigint   NOT NULL,
    attempts     bigint   NOT NULL,
    -- 0 in_progress, 1 completed, 2 failed_retryable, 3 unknown
    state        smallint NOT NULL,
    -- Begun, settled or in doubt since.
    since        bigint   NOT NULL,
    lease_until  bigint,
    expires_at   bigint,
    owner        bigint,
    doubt        smallint,
    lookups      bigint,
    -- Where the answer is: its partition and its name there. NULL unless completed.
    answer_day     integer,
    answer_version bigint,
    timeline     bytea    NOT NULL,
    -- Which credential the present or last attempt was begun with, where that counts.
    mark         bytea,
    -- Status and location of an answer that was not kept whole, while it is coming or in doubt.
    head         bytea,
    -- The first half of a SHA-256 of all that a write changes, by retrysafe.seal.
    seal         bytea    NOT NULL,
    -- Room for flows with recovery points. Nothing may be resumed unless it says so.
    flow           text,
    flow_version   integer,
    recovery_point text,
    resume_until   timestamptz NOT NULL DEFAULT '-infinity',
    CONSTRAINT record_state CHECK (state BETWEEN 0 AND 3),
    CONSTRAINT record_lease CHECK ((state = 0) = (lease_until IS NOT NULL)),
    CONSTRAINT record_expiry CHECK ((state IN (1, 2)) = (expires_at IS NOT NULL))
) WITH (
    autovacuum_vacuum_scale_factor = 0.02,
    autovacuum_vacuum_insert_scale_factor = 0.1,
    autovacuum_analyze_scale_factor = 0.05,
    autovacuum_vacuum_cost_delay = 0
);

CREATE INDEX record_lease_until ON retrysafe.record (lease_until) WHERE state = 0;
-- What nobody knows is few and is asked for every few seconds.
CREATE INDEX record_unknown ON retrysafe.record (since) WHERE state = 3;
-- The reaper looks here, and never sees a record that is in progress or unknown.
CREATE INDEX record_expires_at ON retrysafe.record (expires_at) WHERE state IN (1, 2);

-- Answers lie in one partition per day of their expiry, so that they are dropped and not deleted.
-- The version at which a record was completed names its answer: it is never used twice.
CREATE TABLE retrysafe.answer (
    day     integer NOT NULL,
    version bigint  NOT NULL,
    bytes   bytea   NOT NULL
) PARTITION BY RANGE (day);
CREATE INDEX answer_version ON retrysafe.answer (version);

-- What happened to records, for auditors: append only, one partition per day, without an index so
-- that a write costs little. Partitions are dropped by the reaper after their time.
CREATE TABLE retrysafe.transition (
    day     integer  NOT NULL,
    at      bigint   NOT NULL,
    id      bytea    NOT NULL,
    version bigint   NOT NULL,
    fence   bigint   NOT NULL,
    state   smallint NOT NULL,
    what    text     NOT NULL
) PARTITION BY RANGE (day);

-- Where `expiry = "keep"` puts records that are over: never read again, for audit only.
CREATE TABLE retrysafe.expired (
    id         bytea  NOT NULL,
    scope      bytea  NOT NULL,
    key        bytea  NOT NULL,
    fingerprint bytea NOT NULL,
    method     text   NOT NULL,
    route      text   NOT NULL,
    path       text   NOT NULL,
    created_at bigint NOT NULL,
    expired_at bigint NOT NULL,
    version    bigint NOT NULL,
    fence      bigint NOT NULL,
    attempts   bigint NOT NULL,
    state      smallint NOT NULL,
    PRIMARY KEY (id, version)
);

-- One row that a barrier writes: after a wait for the synchronous standby was cancelled, the next
-- commit that is waited for in full proves that the earlier ones have arrived too.
CREATE TABLE retrysafe.barrier (one boolean PRIMARY KEY DEFAULT true CHECK (one), at bigint NOT NULL);
INSERT INTO retrysafe.barrier (at) VALUES (0);

-- The only clock.
CREATE FUNCTION retrysafe.now_ms() RETURNS bigint LANGUAGE sql VOLATILE PARALLEL SAFE AS $$
    SELECT floor(extract(epoch FROM clock_timestamp()) * 1000)::bigint
$$;

-- A moment `by` milliseconds later; past the end of time it is the end of time.
CREATE FUNCTION retrysafe.later(at bigint, by_ms bigint) RETURNS bigint
LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT CASE WHEN by_ms > 9223372036854775807 - at THEN 9223372036854775807 ELSE at + by_ms END
$$;

-- The partition for answers that expire at this time. What expires far ahead shares one partition,
-- whose rows the reaper deletes one by one; nobody wants a partition per day of a century.
CREATE FUNCTION retrysafe.day_of(at bigint, now_ms bigint) RETURNS integer
LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT CASE WHEN at - now_ms > 34560000000 THEN 2000000000 ELSE (at / 86400000)::integer END
$$;

CREATE FUNCTION retrysafe.seal(
    checksum bigint, format smallint, created_at bigint, ttl_ms bigint, version bigint, fence bigint,
    attempts bigint, state smallint, since bigint, until bigint, owner bigint, doubt smallint,
    lookups bigint, answer_version bigint, mark bytea, head bytea, timeline bytea
) RETURNS bytea LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT substring(sha256(
        int8send(checksum) || int2send(format) || int8send(created_at) || int8send(ttl_ms)
        || int8send(version) || int8send(fence) || int8send(attempts) || int2send(state)
        || int8send(since) || int8send(coalesce(until, -1)) || int8send(coalesce(owner, -1))
        || int2send(coalesce(doubt, -1::smallint)) || int8send(coalesce(lookups, -1))
        || int8send(coalesce(answer_version, -1)) || int4send(coalesce(octet_length(mark), -1))
        || coalesce(mark, ''::bytea) || int4send(coalesce(octet_length(head), -1))
        || coalesce(head, ''::bytea) || timeline
    ) FROM 1 FOR 16)
$$;

CREATE FUNCTION retrysafe.moment(at bigint, fence bigint, what bytea) RETURNS bytea
LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT int8send(at) || int8send(fence) || int4send(octet_length(what)) || what
$$;

-- Makes the partition of a day, for answers or transitions. It runs with the rights of the role
-- that migrated, so that the role of the application needs no right to create anything. ATTACH is
-- used because it does not keep readers and writers of other partitions out.
CREATE FUNCTION retrysafe.make_day(family text, day integer) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    leaf text := family || '_' || day;
BEGIN
    IF family NOT IN ('answer', 'transition') THEN
        RAISE EXCEPTION 'no such family of partitions: %', family;
    END IF;
    PERFORM pg_advisory_xact_lock(7272746379737631);
    -- Asked of the catalogue itself: to_regclass may remember an answer from before the wait.
    IF NOT EXISTS (SELECT FROM pg_class WHERE relnamespace = 'retrysafe'::regnamespace AND relname = leaf) THEN
        EXECUTE format('CREATE TABLE retrysafe.%I (LIKE retrysafe.%I INCLUDING ALL)', leaf, family);
        EXECUTE format('ALTER TABLE retrysafe.%I ATTACH PARTITION retrysafe.%I FOR VALUES FROM (%s) TO (%s)',
            family, leaf, day, day + 1);
    END IF;
END
$$;

-- Makes the partitions that writes of today and tomorrow need, for answers that live this long. A
-- partition that is made inside a long transaction keeps everybody else waiting for its end.
CREATE FUNCTION retrysafe.prepare_v1(ttl_ms bigint) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    t bigint := retrysafe.now_ms();
BEGIN
    FOR ahead IN 0..1 LOOP
        PERFORM retrysafe.make_day('transition', (t / 86400000)::integer + ahead);
        PERFORM retrysafe.make_day('answer', CASE retrysafe.day_of(retrysafe.later(t, ttl_ms), t)
            WHEN 2000000000 THEN 2000000000
            ELSE retrysafe.day_of(retrysafe.later(t, ttl_ms), t) + ahead END);
    END LOOP;
END
$$;

-- Drops one partition that is over, if there is one: answers once no record is left that could
-- have one there, transitions after `audit_days`. Says whether there was one. The lock on the
-- parent is asked for briefly, and given up rather than waited for.
CREATE FUNCTION retrysafe.drop_day(now_ms bigint, audit_days integer) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET lock_timeout = '50ms' AS $$
DECLARE
    today integer := (now_ms / 86400000)::integer;
    leaf  text;
    day   integer;
BEGIN
    FOR leaf, day IN
        SELECT c.relname, substring(c.relname FROM '_(\d+)$')::integer
        FROM pg_catalog.pg_inherits i
        JOIN pg_catalog.pg_class c ON c.oid = i.inhrelid
        WHERE i.inhparent IN ('retrysafe.answer'::regclass, 'retrysafe.transition'::regclass)
    LOOP
        IF leaf LIKE 'answer\_%' AND day < today AND NOT EXISTS (
            SELECT FROM retrysafe.record r
            WHERE r.state IN (1, 2) AND r.expires_at < (day + 1)::bigint * 86400000
        ) OR leaf LIKE 'transition\_%' AND day < today - audit_days THEN
            EXECUTE format('DROP TABLE retrysafe.%I', leaf);
            RETURN true;
        END IF;
    END LOOP;
    RETURN false;
END
$$;

-- A record with its answer, as programs read it.
CREATE VIEW retrysafe.stored AS
    SELECT r.id, r.version, r.scope, r.key, r.fingerprint, r.method, r.route, r.path, r.checksum,
        r.format, r.created_at, r.ttl_ms, r.fence, r.attempts, r.state, r.since,
        coalesce(r.lease_until, r.expires_at) AS until, r.owner, r.doubt, r.lookups,
        r.answer_version, r.timeline, r.seal, a.bytes AS answer, r.mark, r.head,
        r.expires_at
    FROM retrysafe.record r
    LEFT JOIN retrysafe.answer a ON a.day = r.answer_day AND a.version = r.answer_version;

-- The same for people.
CREATE VIEW retrysafe.overview AS
    SELECT encode(r.id, 'hex') AS id, encode(r.scope, 'escape') AS scope, r.method, r.route, r.path,
        (ARRAY['in_progress', 'completed', 'failed_retryable', 'unknown'])[r.state + 1] AS state,
        to_timestamp(r.created_at / 1000.0) AS created_at,
        to_timestamp(r.since / 1000.0) AS since,
        to_timestamp(r.lease_until / 1000.0) AS lease_until,
        CASE WHEN r.expires_at = 9223372036854775807 THEN 'infinity'::timestamptz
            ELSE to_timestamp(r.expires_at / 1000.0) END AS expires_at,
        r.attempts, r.fence, r.version
    FROM retrysafe.record r;

CREATE FUNCTION retrysafe.load_v1(ids bytea[], lock_ms integer)
RETURNS TABLE (
    done boolean, now_ms bigint, id bytea, version bigint, scope bytea, key bytea, fingerprint bytea,
    method text, route text, path text, checksum bigint, format smallint, created_at bigint,
    ttl_ms bigint, fence bigint, attempts bigint, state smallint, since bigint, until bigint,
    owner bigint, doubt smallint, lookups bigint, answer_version bigint, timeline bytea, seal bytea,
    answer bytea, mark bytea, head bytea
)
LANGUAGE plpgsql VOLATILE
SET search_path = retrysafe, pg_catalog, pg_temp
SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off SET jit = off
AS $$
#variable_conflict use_column
DECLARE
    t bigint;
BEGIN
    PERFORM set_config('lock_timeout', lock_ms::text, true);
    t := retrysafe.now_ms();
    -- One row without a record says what time it is, even if nothing is found.
    RETURN QUERY SELECT false, t, NULL::bytea, NULL::bigint, NULL::bytea, NULL::bytea, NULL::bytea,
        NULL::text, NULL::text, NULL::text, NULL::bigint, NULL::smallint, NULL::bigint,
        NULL::bigint, NULL::bigint, NULL::bigint, NULL::smallint, NULL::bigint, NULL::bigint,
        NULL::bigint, NULL::smallint, NULL::bigint, NULL::bigint, NULL::bytea, NULL::bytea,
        NULL::bytea, NULL::bytea, NULL::bytea;
    RETURN QUERY SELECT false, t, s.id, s.version, s.scope, s.key, s.fingerprint, s.method, s.route,
        s.path, s.checksum, s.format, s.created_at, s.ttl_ms, s.fence, s.attempts, s.state, s.since,
        s.until, s.owner, s.doubt, s.lookups, s.answer_version, s.timeline, s.seal, s.answer,
        s.mark, s.head
    FROM unnest(ids) AS i (id) JOIN retrysafe.stored s ON s.id = i.id;
END
$$;

-- Inserts records unless live ones exist. A row with `done` says that this id is new; one without is
-- the live record that was there. An id without a row met a rival: nothing was written for it, and it
-- is to be asked again. The caller names each id once, and sorts them, so that two batches wait for
-- each other in one order only.
CREATE FUNCTION retrysafe.insert_v1(
    ids bytea[], scopes bytea[], keys bytea[], fingerprints bytea[], methods text[], routes text[],
    paths text[], checksums bigint[], ttls bigint[], leases bigint[], owners bigint[],
    marks bytea[], begans bytea[], keep boolean
)
RETURNS TABLE (
    done boolean, now_ms bigint, id bytea, version bigint, scope bytea, key bytea, fingerprint bytea,
    method text, route text, path text, checksum bigint, format smallint, created_at bigint,
    ttl_ms bigint, fence bigint, attempts bigint, state smallint, since bigint, until bigint,
    owner bigint, doubt smallint, lookups bigint, answer_version bigint, timeline bytea, seal bytea,
    answer bytea, mark bytea, head bytea
)
LANGUAGE plpgsql VOLATILE
SET search_path = retrysafe, pg_catalog, pg_temp
SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off SET jit = off
AS $$
#variable_conflict use_column
DECLARE
    t       bigint := retrysafe.now_ms();
    today   integer := (t / 86400000)::integer;
    missing integer[];
    over    boolean;
    news    integer := 0;
BEGIN
    IF cardinality(ids) = 0 THEN
        RETURN;
    END IF;
    -- Look first: a batch of replays writes nothing and draws no number.
    SELECT array_agg(i.at::integer) FILTER (WHERE r.id IS NULL OR r.expires_at <= t),
        coalesce(bool_or(r.expires_at <= t), false)
    INTO missing, over
    FROM unnest(ids) WITH ORDINALITY AS i (id, at) LEFT JOIN retrysafe.record r ON r.id = i.id;

    IF missing IS NOT NULL THEN
        IF to_regclass('retrysafe.transition_' || today) IS NULL THEN
            PERFORM retrysafe.make_day('transition', today);
        END IF;
        IF over THEN
            -- Deleted, not overwritten: whoever refers to the old record must not be left referring
            -- to the new one.
            WITH gone AS (
                DELETE FROM retrysafe.record r USING unnest(ids) AS i (id)
                WHERE r.id = i.id AND r.expires_at <= t RETURNING r.*
            )
            INSERT INTO retrysafe.expired SELECT g.id, g.scope, g.key, g.fingerprint, g.method,
                g.route, g.path, g.created_at, t, g.version, g.fence, g.attempts, g.state
            FROM gone g WHERE keep;
        END IF;
        RETURN QUERY
        WITH first AS MATERIALIZED (
            SELECT i.*, nextval('retrysafe.version') AS version
            FROM unnest(ids, scopes, keys, fingerprints, methods, routes, paths, checksums, ttls,
                leases, owners, marks, begans) WITH ORDINALITY
                AS i (id, scope, key, fingerprint, method, route, path, checksum, ttl_ms, lease_ms,
                    owner, mark, began, at)
            WHERE (cardinality(missing) = cardinality(ids) OR i.at = ANY (missing))
                -- begin_in holds this lock until its transaction ends. Its duplicates are left out
                -- rather than waited for, because all others of the batch would wait with them.
                AND pg_try_advisory_xact_lock_shared(
                    ('x' || encode(substring(i.id FROM 1 FOR 8), 'hex'))::bit(64)::bigint)
        ), new AS (
            INSERT INTO retrysafe.record AS r (id, scope, key, fingerprint, method, route, path,
                checksum, format, created_at, ttl_ms, version, fence, attempts, state, since,
                lease_until, owner, timeline, mark, seal)
            SELECT f.id, f.scope, f.key, f.fingerprint, f.method, f.route, f.path, f.checksum,
                1::smallint, t, f.ttl_ms, f.version, f.version, 1, 0::smallint, t,
                retrysafe.later(t, f.lease_ms), f.owner, retrysafe.moment(t, f.version, f.began),
                f.mark, retrysafe.seal(f.checksum, 1::smallint, t, f.ttl_ms, f.version, f.version, 1,
                    0::smallint, t, retrysafe.later(t, f.lease_ms), f.owner, NULL, NULL, NULL,
                    f.mark, NULL, retrysafe.moment(t, f.version, f.began))
            FROM first f
            ON CONFLICT (id) DO NOTHING
            RETURNING r.id, r.version
        ), audit AS (
            INSERT INTO retrysafe.transition SELECT today, t, n.id, n.version, n.version, 0, 'began'
            FROM new n
        )
        SELECT true, t, n.id, n.version, NULL::bytea, NULL::bytea, NULL::bytea, NULL::text,
            NULL::text, NULL::text, NULL::bigint, NULL::smallint, NULL::bigint, NULL::bigint,
            NULL::bigint, NULL::bigint, NULL::smallint, NULL::bigint, NULL::bigint, NULL::bigint,
            NULL::smallint, NULL::bigint, NULL::bigint, NULL::bytea, NULL::bytea, NULL::bytea,
            NULL::bytea, NULL::bytea
        FROM new n;
        GET DIAGNOSTICS news = ROW_COUNT;
    END IF;

    IF news < cardinality(ids) THEN
        RETURN QUERY SELECT false, t, s.id, s.version, s.scope, s.key, s.fingerprint, s.method,
            s.route, s.path, s.checksum, s.format, s.created_at, s.ttl_ms, s.fence, s.attempts,
            s.state, s.since, s.until, s.owner, s.doubt, s.lookups, s.answer_version, s.timeline,
            s.seal, s.answer, s.mark, s.head
        FROM unnest(ids) WITH ORDINALITY AS i (id, at) JOIN retrysafe.stored s ON s.id = i.id
        WHERE (s.expires_at IS NULL OR s.expires_at > t)
            AND (missing IS NULL OR news < cardinality(missing) OR NOT i.at = ANY (missing));
    END IF;
END
$$;

-- Replaces records whose version is still the one that was read. A row with `done` says that this id
-- was written; one without is the current record. An id without a row does not exist. A record that
-- is not done and still has the version that was read is held by another transaction: nothing was
-- written for it, and it is to be asked again.
--
-- `sinces` is NULL for now; `lengths` count from now, up to `untils` where both are given.
--
-- The caller holds the record whole and every column is written from what it holds, also those that
-- never change: nothing that was damaged here is sealed anew. A new version of the row holds all of
-- them anyway.
CREATE FUNCTION retrysafe.swap_v1(
    ids bytea[], scopes bytea[], keys bytea[], fingerprints bytea[], methods text[], routes text[],
    paths text[], checksums bigint[], created bigint[], froms bigint[], fences bigint[],
    new_fences boolean[], ttls bigint[], attempts_ bigint[], states smallint[], sinces bigint[],
    lengths bigint[], untils bigint[], owners bigint[], doubts smallint[], lookups_ bigint[],
    timelines bytea[], whats bytea[], labels text[], answers bytea[], marks bytea[],
    heads bytea[]
)
RETURNS TABLE (
    done boolean, now_ms bigint, id bytea, version bigint, scope bytea, key bytea, fingerprint bytea,
    method text, route text, path text, checksum bigint, format smallint, created_at bigint,
    ttl_ms bigint, fence bigint, attempts bigint, state smallint, since bigint, until bigint,
    owner bigint, doubt smallint, lookups bigint, answer_version bigint, timeline bytea, seal bytea,
    answer bytea, mark bytea, head bytea
)
LANGUAGE plpgsql VOLATILE
SET search_path = retrysafe, pg_catalog, pg_temp
SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off SET jit = off
AS $$
#variable_conflict use_column
DECLARE
    t     bigint := retrysafe.now_ms();
    today integer := (t / 86400000)::integer;
    news  integer;
    d     integer;
BEGIN
    IF cardinality(ids) = 0 THEN
        RETURN;
    END IF;
    -- Partitions first, before any record is locked: nobody holds a record while waiting here.
    IF to_regclass('retrysafe.transition_' || today) IS NULL THEN
        PERFORM retrysafe.make_day('transition', today);
    END IF;
    FOR d IN
        SELECT DISTINCT retrysafe.day_of(coalesce(retrysafe.later(t, i.length), i.until), t)
        FROM unnest(lengths, untils, answers) AS i (length, until, answer)
        WHERE i.answer IS NOT NULL
    LOOP
        IF to_regclass('retrysafe.answer_' || d) IS NULL THEN
            PERFORM retrysafe.make_day('answer', d);
        END IF;
    END LOOP;

    RETURN QUERY
    WITH new AS (
        UPDATE retrysafe.record r
        SET scope = f.scope, key = f.key, fingerprint = f.fingerprint, method = f.method,
            route = f.route, path = f.path, checksum = f.checksum, format = 1,
            created_at = f.created_at,
            version = f.version, fence = f.fence, ttl_ms = f.ttl_ms, attempts = f.attempts,
            state = f.state, since = f.since,
            lease_until = CASE WHEN f.state = 0 THEN f.until END,
            expires_at = CASE WHEN f.state IN (1, 2) THEN f.until END,
            owner = f.owner, doubt = f.doubt, lookups = f.lookups,
            answer_day = CASE WHEN f.state = 1 THEN retrysafe.day_of(f.until, t) END,
            answer_version = CASE WHEN f.state = 1 THEN f.version END, timeline = f.timeline,
            mark = f.mark, head = f.head,
            seal = retrysafe.seal(f.checksum, 1::smallint, f.created_at, f.ttl_ms, f.version, f.fence,
                f.attempts, f.state, f.since, f.until, f.owner, f.doubt, f.lookups,
                CASE WHEN f.state = 1 THEN f.version END, f.mark, f.head, f.timeline)
        FROM (
            SELECT w.id, w.scope, w.key, w.fingerprint, w.method, w.route, w.path, w.checksum,
                w.created_at, w.version, w.ttl_ms, w.attempts, w.state, w.owner, w.doubt, w.lookups,
                w.label, w.answer, w.mark, w.head, w.fence, coalesce(w.since, t) AS since,
                CASE WHEN w.length IS NULL THEN w.until
                    ELSE least(retrysafe.later(t, w.length), w.until) END AS until,
                CASE WHEN w.what IS NULL THEN w.timeline
                    ELSE w.timeline || retrysafe.moment(t, w.fence, w.what) END AS timeline
            FROM (
                SELECT d.*, CASE WHEN d.new_fence THEN d.version ELSE d.old_fence END AS fence
                FROM (
                    SELECT h.*, nextval('retrysafe.version') AS version
                    FROM (
                        SELECT i.*
                        FROM unnest(ids, scopes, keys, fingerprints, methods, routes, paths,
                            checksums, created, froms, fences, new_fences, ttls, attempts_, states,
                            sinces, lengths, untils, owners, doubts, lookups_, timelines, whats,
                            labels, answers, marks, heads)
                            AS i (id, scope, key, fingerprint, method, route, path, checksum,
                                created_at, from_version, old_fence, new_fence, ttl_ms, attempts,
                                state, since, length, until, owner, doubt, lookups, timeline, what,
                                label, answer, mark, head)
                        JOIN retrysafe.record r ON r.id = i.id AND r.version = i.from_version
                        -- A record that somebody else's transaction holds is left out rather than
                        -- waited for. Not the key: a row that refers to this record holds that
                        -- until its transaction ends, and a lease must be renewed meanwhile.
                        FOR NO KEY UPDATE OF r SKIP LOCKED
                    ) h
                ) d
            ) w
            OFFSET 0
        ) f WHERE r.id = f.id
        RETURNING r.id, r.version, r.fence, r.state, r.answer_day, f.answer, f.label
    ), kept AS (
        INSERT INTO retrysafe.answer SELECT n.answer_day, n.version, n.answer
        FROM new n WHERE n.answer IS NOT NULL
    ), audit AS (
        INSERT INTO retrysafe.transition SELECT today, t, n.id, n.version, n.fence, n.state, n.label
        FROM new n WHERE n.label IS NOT NULL
    )
    SELECT true, t, n.id, n.version, NULL::bytea, NULL::bytea, NULL::bytea, NULL::text, NULL::text,
        NULL::text, NULL::bigint, NULL::smallint, NULL::bigint, NULL::bigint, NULL::bigint,
        NULL::bigint, NULL::smallint, NULL::bigint, NULL::bigint, NULL::bigint, NULL::smallint,
        NULL::bigint, NULL::bigint, NULL::bytea, NULL::bytea, NULL::bytea, NULL::bytea, NULL::bytea
    FROM new n;
    GET DIAGNOSTICS news = ROW_COUNT;

    IF news < cardinality(ids) THEN
        RETURN QUERY SELECT false, t, s.id, s.version, s.scope, s.key, s.fingerprint, s.method,
            s.route, s.path, s.checksum, s.format, s.created_at, s.ttl_ms, s.fence, s.attempts,
            s.state, s.since, s.until, s.owner, s.doubt, s.lookups, s.answer_version, s.timeline,
            s.seal, s.answer, s.mark, s.head
        FROM unnest(ids) AS i (id) JOIN retrysafe.stored s ON s.id = i.id;
        -- Somebody may read the clock earlier than this: an id that is gone has no row of its own.
        RETURN QUERY SELECT false, t, NULL::bytea, NULL::bigint, NULL::bytea, NULL::bytea,
            NULL::bytea, NULL::text, NULL::text, NULL::text, NULL::bigint, NULL::smallint,
            NULL::bigint, NULL::bigint, NULL::bigint, NULL::bigint, NULL::smallint, NULL::bigint,
            NULL::bigint, NULL::bigint, NULL::smallint, NULL::bigint, NULL::bigint, NULL::bytea,
            NULL::bytea, NULL::bytea, NULL::bytea, NULL::bytea;
    END IF;
END
$$;

-- Deletes at most `most` records that are over; where `keep` is set they move to retrysafe.expired.
CREATE FUNCTION retrysafe.reap_v1(most integer, keep boolean)
RETURNS TABLE (now_ms bigint, reaped bigint)
LANGUAGE plpgsql VOLATILE
SET search_path = retrysafe, pg_catalog, pg_temp SET jit = off
AS $$
#variable_conflict use_column
DECLARE
    t bigint := retrysafe.now_ms();
BEGIN
    RETURN QUERY
    WITH due AS MATERIALIZED (
        SELECT r.id FROM retrysafe.record r
        WHERE r.state IN (1, 2) AND r.expires_at <= t
        ORDER BY r.expires_at LIMIT most FOR UPDATE SKIP LOCKED
    ), gone AS (
        DELETE FROM retrysafe.record r USING due
        WHERE r.id = due.id AND r.state IN (1, 2) AND r.expires_at <= t RETURNING r.*
    ), archived AS (
        INSERT INTO retrysafe.expired SELECT g.id, g.scope, g.key, g.fingerprint, g.method, g.route,
            g.path, g.created_at, t, g.version, g.fence, g.attempts, g.state
        FROM gone g WHERE keep
    ), bodies AS (
        DELETE FROM retrysafe.answer a USING gone g
        WHERE a.day = 2000000000 AND g.answer_day = 2000000000 AND a.version = g.answer_version
    )
    SELECT t, count(*) FROM gone;
END
$$;

-- Makes the caller's transaction fail, so that nothing it did can be committed.
CREATE FUNCTION retrysafe.refuse_v1(why text) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION 'retrysafe: %', why USING ERRCODE = 'RS001';
END
$$;
