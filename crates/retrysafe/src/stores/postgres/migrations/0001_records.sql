-- What is remembered, in one schema of its own.
--
-- Times are milliseconds since the Unix epoch by this server's clock, as everywhere in retrysafe; the
-- views retrysafe.overview and retrysafe.history show them to people. The greatest bigint stands for
-- the end of time.
--
-- The functions end in a version of their own: a program calls those it knows, so that a newer
-- migration can add others while older programs still run. None of those that a request waits for
-- has SET clauses, which would be saved and restored with every call; they set what they need for
-- the transaction instead.

-- Every write of every record draws its version here, so no number ever occurs twice, whatever was
-- reaped meanwhile. No cache: a number drawn later must be greater.
CREATE SEQUENCE retrysafe.version AS bigint MINVALUE 1 CACHE 1;

-- What a settle leaves alone stands first, and nothing that it changes is indexed. So a settle is
-- written into the same page, no index is touched, and the log holds what has changed and no more.
CREATE TABLE retrysafe.record (
    -- SHA-256 of scope and key. Unique, so one record per scope and key: an index over the two
    -- themselves would say the same again and cost a quarter of a write.
    id            bytea    NOT NULL PRIMARY KEY,
    -- Format, key, fingerprint, scope, method, route and path; see retrysafe.request_field. Never
    -- changed.
    request       bytea    NOT NULL,
    created_at    bigint   NOT NULL,
    -- The record is over at this time at the earliest. It bounds expires_at from below and is set by
    -- the begin, so that the reaper has an index which a settle does not touch.
    keep_until    bigint   NOT NULL,
    -- When the lease ends, or has ended before the record was settled.
    lease_until   bigint   NOT NULL,
    -- When the sweeper is to look at the record: at the end of its lease, or at once where a renewal
    -- has ended the lease in the past. So it is never earlier than the write that has set it, and a
    -- sweeper that has looked at everything up to a moment need not look there again.
    sweep_at      bigint   NOT NULL,
    version       bigint   NOT NULL,
    fence         bigint   NOT NULL,
    -- Begun, settled or in doubt since.
    since         bigint   NOT NULL,
    -- By retrysafe.seal, over everything but keep_until, sweep_at and moments.
    seal          bigint   NOT NULL,
    -- How many things have happened; the timeline holds the first and the last of them.
    moments       integer  NOT NULL DEFAULT 1,
    -- 0 in_progress, 1 completed, 2 failed_retryable, 3 unknown. Later versions may add others.
    state         smallint NOT NULL,
    -- Status, headers and body of the answer. The body is NULL where it was not kept.
    status        smallint,
    -- NULL unless completed or failed_retryable.
    expires_at    bigint,
    -- NULL unless unknown.
    unknown_since bigint,
    -- Attempts, time to live, owner, doubt, lookups, mark of the credential, progress of a flow, head of
    -- an answer that is still coming.
    detail        bytea    NOT NULL,
    -- What happened; see retrysafe.moments.
    timeline      bytea    NOT NULL,
    -- One line per header: its name, a colon, a space, its value, a line feed.
    headers       bytea,
    body          bytea
) WITH (
    -- When all records of a page are settled, their new rows must fit into the page beside the old ones: PostgreSQL removes old rows only after
    -- the transaction. A record that has begun takes some 320 bytes, and one that is settled with a small answer some 670 more.
    fillfactor = 33,
    autovacuum_vacuum_scale_factor = 0.02,
    autovacuum_vacuum_insert_scale_factor = 0.1,
    autovacuum_analyze_scale_factor = 0.05,
    autovacuum_vacuum_cost_delay = 0
);
-- Bodies are not compressed: that would take longer than all the rest of a settle.
ALTER TABLE retrysafe.record ALTER COLUMN body SET STORAGE EXTERNAL;

CREATE INDEX record_sweep_at ON retrysafe.record (sweep_at);
CREATE INDEX record_keep_until ON retrysafe.record (keep_until);
-- What nobody knows is few and is asked for every few seconds. The condition is not on the state:
-- a settle changes that.
CREATE INDEX record_unknown ON retrysafe.record (unknown_since) WHERE unknown_since IS NOT NULL;

-- What happened to records, for auditors: append only, one partition per day, without an index so
-- that a write costs little. Doubts, verdicts and what operators did are written at once; all else is
-- in the record's timeline, which is written here when the record is reaped. Partitions are dropped
-- by the reaper after their time.
CREATE TABLE retrysafe.transition (
    day      integer  NOT NULL,
    at       bigint   NOT NULL,
    id       bytea    NOT NULL,
    version  bigint   NOT NULL,
    fence    bigint   NOT NULL,
    state    smallint NOT NULL,
    what     text     NOT NULL,
    -- Of a record that was reaped: its timeline, and how many things had happened in all.
    timeline bytea,
    moments  integer
) PARTITION BY RANGE (day);

-- Where `expiry=keep` puts records that are over: never read again, for audit only.
CREATE TABLE retrysafe.expired (
    id         bytea    NOT NULL,
    request    bytea    NOT NULL,
    created_at bigint   NOT NULL,
    expired_at bigint   NOT NULL,
    version    bigint   NOT NULL,
    fence      bigint   NOT NULL,
    state      smallint NOT NULL,
    PRIMARY KEY (id, version)
);

-- One row that a barrier writes: after a wait for the synchronous standby was cancelled, the next
-- commit that is waited for in full proves that the earlier ones have arrived too.
CREATE TABLE retrysafe.barrier (one boolean PRIMARY KEY DEFAULT true CHECK (one), at bigint NOT NULL);
INSERT INTO retrysafe.barrier (at) VALUES (0);

-- Which server has written here last. A standby that was promoted finds that it is another one, and may
-- lack what its predecessor has acknowledged. One row; see retrysafe.observe_v1.
CREATE TABLE retrysafe.server (
    is_only    boolean PRIMARY KEY DEFAULT true CHECK (is_only),
    system     text    NOT NULL,
    timeline   text    NOT NULL,
    -- Whether commits are waited for by a synchronous standby, which then has all of them. The commit
    -- that sets this is waited for too, so a standby that has it has everything before it.
    is_awaited boolean NOT NULL,
    -- Until when nothing new is granted. 0: nothing was lost when the server last changed.
    held_until bigint  NOT NULL
);
INSERT INTO retrysafe.server (system, timeline, is_awaited, held_until) VALUES (
    (SELECT system_identifier::text FROM pg_control_system()),
    substring(pg_walfile_name(pg_current_wal_lsn()) FROM 1 FOR 8),
    current_setting('synchronous_standby_names') <> '', 0
);

-- The only clock.
CREATE FUNCTION retrysafe.now_ms() RETURNS bigint LANGUAGE sql VOLATILE PARALLEL SAFE AS $$
    SELECT floor(extract(epoch FROM clock_timestamp()) * 1000)::bigint
$$;

-- A moment `by` milliseconds later; past the end of time it is the end of time.
CREATE FUNCTION retrysafe.later(at bigint, by_ms bigint) RETURNS bigint
LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT CASE WHEN by_ms > 9223372036854775807 - at THEN 9223372036854775807 ELSE at + by_ms END
$$;

-- The seal of a record: what the writer has summed up, and the numbers that this server has filled
-- in. `sum` is the first half of the first half of a SHA-256, as a number, over the id, the state,
-- the status, the request, the detail, the timeline without its last time and fence, the headers and
-- the body. `until` is the end of the lease or of the retention, or -1.
CREATE FUNCTION retrysafe.seal(
    sum bigint, version bigint, fence bigint, created_at bigint, since bigint, until bigint,
    last_fence bigint, last_at bigint
) RETURNS bigint LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT hashint8extended(version, hashint8extended(fence, hashint8extended(created_at,
        hashint8extended(since, hashint8extended(until, hashint8extended(last_fence,
        hashint8extended(last_at, sum)))))))
$$;

-- Makes the partitions of today and of a week ahead. Upkeep calls it, so that no transaction of an application has to
-- at midnight: it would hold the lock up to its own end, and everybody else would wait. It runs with the rights of the role that migrated, so
-- that the role of the application needs no right to create anything. ATTACH is used because it does
-- not keep readers and writers of other partitions out.
CREATE FUNCTION retrysafe.make_days() RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    today integer := (retrysafe.now_ms() / 86400000)::integer;
    leaf  text;
BEGIN
    IF NOT EXISTS (SELECT FROM generate_series(today, today + 7) AS d (day)
        WHERE to_regclass('retrysafe.transition_' || d.day) IS NULL) THEN
        RETURN;
    END IF;
    PERFORM pg_advisory_xact_lock(7272746379737631);
    FOR day IN today..today + 7 LOOP
        leaf := 'transition_' || day;
        -- Asked of the catalogue itself: to_regclass may remember an answer from before the wait.
        IF NOT EXISTS (SELECT FROM pg_class WHERE relnamespace = 'retrysafe'::regnamespace AND relname = leaf) THEN
            EXECUTE format('CREATE TABLE retrysafe.%I (LIKE retrysafe.transition INCLUDING ALL)', leaf);
            EXECUTE format('ALTER TABLE retrysafe.transition ATTACH PARTITION retrysafe.%I FOR VALUES FROM (%s) TO (%s)',
                leaf, day, day + 1);
        END IF;
    END LOOP;
END
$$;

-- Drops one partition that is older than `audit_days`, at least one day, if there is one, and says
-- whether there was. The lock on the parent is asked for briefly, and given up rather than waited for.
CREATE FUNCTION retrysafe.drop_day(audit_days integer) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET lock_timeout = '50ms' AS $$
DECLARE
    oldest integer := (retrysafe.now_ms() / 86400000)::integer - greatest(audit_days, 1);
    leaf   text;
BEGIN
    SELECT c.relname INTO leaf
    FROM pg_catalog.pg_inherits i JOIN pg_catalog.pg_class c ON c.oid = i.inhrelid
    WHERE i.inhparent = 'retrysafe.transition'::regclass
        AND substring(c.relname FROM '_(\d+)$')::integer < oldest
    LIMIT 1;
    IF leaf IS NULL THEN
        RETURN false;
    END IF;
    EXECUTE format('DROP TABLE retrysafe.%I', leaf);
    RETURN true;
END
$$;

REVOKE ALL ON FUNCTION retrysafe.make_days(), retrysafe.drop_day(integer) FROM PUBLIC;

-- Settings that hold for this transaction and end with it: how it commits, how long it waits for a
-- lock, and how its statements are planned. The tables grow faster than they are analysed, so what
-- was planned for a small one must not be a scan of the whole.
CREATE FUNCTION retrysafe.set_up_v1(sync text, lock_ms integer) RETURNS void
LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    PERFORM set_config('synchronous_commit', sync, true),
        set_config('lock_timeout', lock_ms::text, true),
        set_config('plan_cache_mode', 'force_generic_plan', true),
        set_config('enable_seqscan', 'off', true), set_config('enable_hashjoin', 'off', true),
        set_config('enable_mergejoin', 'off', true), set_config('jit', 'off', true);
END
$$;

-- What stands in the way of writes: NULL if nothing does, -1 if this server is not the one that
-- retrysafe.server knows, so that nothing may be written before retrysafe.observe_v1 was called; else
-- the time before which nothing new may be granted.
CREATE FUNCTION retrysafe.hold_v1() RETURNS bigint LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    held bigint;
BEGIN
    SELECT CASE WHEN s.held_until > retrysafe.now_ms() THEN s.held_until END INTO held
    FROM retrysafe.server s
    WHERE s.timeline = substring(pg_walfile_name(pg_current_wal_lsn()) FROM 1 FOR 8)
        AND s.is_awaited = (current_setting('synchronous_standby_names') <> '');
    RETURN CASE WHEN FOUND THEN held ELSE -1 END;
END
$$;

-- Leaps ahead by more than a lost write can have drawn, so that no number is drawn again. Later migrations replace this: whatever
-- they number leaps with it.
CREATE FUNCTION retrysafe.leap_v1() RETURNS void LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    PERFORM setval('retrysafe.version', nextval('retrysafe.version') + 4294967296);
END
$$;

-- Notes which server this is, and what a change of it means: where commits were not waited for by a
-- synchronous standby, nothing new is granted for `hold_ms`, unless the operator has said that it
-- `goes_on`. `knows_loss` says that the caller has seen commits on an earlier timeline that nobody
-- waited for: whoever turns the waiting off has no standby that would surely hear of it.
--
-- Versions that a lost write had drawn must not be drawn again: retrysafe.leap_v1.
CREATE FUNCTION retrysafe.observe_v1(
    sync text, lock_ms integer, seen_system text, hold_ms bigint, goes_on boolean, knows_loss boolean
)
RETURNS TABLE (now_ms bigint, held_until bigint, is_new boolean, is_awaited boolean)
LANGUAGE plpgsql VOLATILE AS $$
#variable_conflict use_column
DECLARE
    t             bigint  := retrysafe.now_ms();
    seen_timeline text    := substring(pg_walfile_name(pg_current_wal_lsn()) FROM 1 FOR 8);
    waits         boolean := current_setting('synchronous_standby_names') <> '';
    kept          retrysafe.server%ROWTYPE;
    is_other      boolean;
    is_lossy      boolean;
    until         bigint;
BEGIN
    PERFORM retrysafe.set_up_v1(sync, lock_ms);
    SELECT * INTO kept FROM retrysafe.server;
    IF NOT FOUND THEN
        RETURN;
    END IF;
    IF kept.system = seen_system AND kept.timeline = seen_timeline AND kept.is_awaited = waits
        AND NOT (knows_loss AND kept.held_until = 0)
    THEN
        RETURN QUERY SELECT t, kept.held_until, false, waits;
        RETURN;
    END IF;
    -- Another process may have been here meanwhile.
    SELECT * INTO kept FROM retrysafe.server FOR UPDATE;
    is_other := kept.system <> seen_system OR kept.timeline <> seen_timeline;
    is_lossy := NOT goes_on AND (knows_loss AND kept.held_until = 0
        OR is_other AND (kept.system <> seen_system OR NOT kept.is_awaited));
    until := CASE WHEN is_lossy THEN greatest(kept.held_until, retrysafe.later(t, hold_ms))
        WHEN is_other AND kept.held_until <= t THEN 0
        ELSE kept.held_until END;
    IF is_other THEN
        PERFORM retrysafe.leap_v1();
    END IF;
    UPDATE retrysafe.server SET system = seen_system, timeline = seen_timeline, is_awaited = waits,
        held_until = until;
    RETURN QUERY SELECT t, until, is_other OR is_lossy, waits;
END
$$;

-- An operator says how far this server may be trusted: new grants are held for so long. 1, and not 0:
-- what a process knows of an earlier loss is answered by this.
CREATE FUNCTION retrysafe.trust_v1(sync text, lock_ms integer, seen_system text, hold_ms bigint)
RETURNS void LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    PERFORM retrysafe.set_up_v1(sync, lock_ms);
    DELETE FROM retrysafe.server;
    INSERT INTO retrysafe.server (system, timeline, is_awaited, held_until) VALUES (
        seen_system, substring(pg_walfile_name(pg_current_wal_lsn()) FROM 1 FOR 8),
        current_setting('synchronous_standby_names') <> '',
        CASE WHEN hold_ms > 0 THEN retrysafe.later(retrysafe.now_ms(), hold_ms) ELSE 1 END
    );
    PERFORM retrysafe.leap_v1();
END
$$;

-- Reads records. One row without an id says what time it is, even if nothing is found. A record that
-- is still of the version that is `known` comes without anything but its id and its version.
CREATE FUNCTION retrysafe.load_v1(sync text, lock_ms integer, ids bytea[], known bigint[])
RETURNS TABLE (
    now_ms bigint, id bytea, version bigint, request bytea, created_at bigint, lease_until bigint,
    fence bigint, since bigint, seal bigint, state smallint, status smallint, expires_at bigint,
    detail bytea, timeline bytea, headers bytea, body bytea
)
LANGUAGE plpgsql VOLATILE AS $$
#variable_conflict use_column
DECLARE
    t bigint;
BEGIN
    IF lock_ms IS NOT NULL THEN
        PERFORM retrysafe.set_up_v1(sync, lock_ms);
    END IF;
    t := retrysafe.now_ms();
    RETURN QUERY
    SELECT t, NULL::bytea, NULL::bigint, NULL::bytea, NULL::bigint, NULL::bigint, NULL::bigint,
        NULL::bigint, NULL::bigint, NULL::smallint, NULL::smallint, NULL::bigint, NULL::bytea,
        NULL::bytea, NULL::bytea, NULL::bytea
    UNION ALL
    SELECT t, r.id, r.version, r.request, r.created_at, r.lease_until, r.fence, r.since, r.seal,
        r.state, r.status, r.expires_at, r.detail, r.timeline, r.headers, r.body
    FROM unnest(ids, known) AS n (id, known) JOIN retrysafe.record r ON r.id = n.id
    WHERE r.version IS DISTINCT FROM n.known
    UNION ALL
    SELECT t, r.id, r.version, NULL::bytea, NULL::bigint, NULL::bigint, NULL::bigint, NULL::bigint,
        NULL::bigint, NULL::smallint, NULL::smallint, NULL::bigint, NULL::bytea, NULL::bytea,
        NULL::bytea, NULL::bytea
    FROM unnest(ids, known) AS n (id, known) JOIN retrysafe.record r ON r.id = n.id
    WHERE r.version = n.known;
END
$$;

-- The common writes of a batch in one statement: begins of records that do not exist (`b_`), and
-- settles and new attempts of records whose version is still the one that was read (`s_`). One row says
-- which `ids` were written, and for each its version and its place; an id that is missing was not written,
-- and whoever wants to know why reads it. `held` is what stands in the way, as retrysafe.hold_v1 says it. A row for
-- each record would cost both sides more than the arrays do.
--
-- The caller names each id once and sorts them, and begins are written before settles, so that two
-- batches wait for each other in one order only.
--
-- `s_fences` is 0 for a new fence. The request and the time of creation are compared and not written:
-- a record whose unchanging part was damaged is left out.
--
-- `s_places` says where each record lies; the call that has begun it has returned the place. NULL: the caller knows none, and the index is searched.
-- What lies there is compared with the id and the version that the caller names, so a wrong place writes nothing.
CREATE FUNCTION retrysafe.write_v1(
    sync text, lock_ms integer,
    b_ids bytea[], b_requests bytea[], b_ttls bigint[], b_leases bigint[], b_details bytea[],
    b_timelines bytea[], b_sums bigint[],
    s_ids bytea[], s_froms bigint[], s_requests bytea[], s_created bigint[], s_fences bigint[],
    s_states smallint[], s_lengths bigint[], s_details bytea[], s_timelines bytea[],
    s_statuses smallint[], s_headers bytea[], s_bodies bytea[], s_sums bigint[], s_places tid[] DEFAULT '{}'
)
RETURNS TABLE (now_ms bigint, held bigint, ids bytea[], versions bigint[], places tid[])
LANGUAGE plpgsql VOLATILE AS $$
#variable_conflict use_column
BEGIN
    IF lock_ms IS NOT NULL THEN
        PERFORM retrysafe.set_up_v1(sync, lock_ms);
    END IF;
    held := retrysafe.hold_v1();
    IF held = -1 THEN
        RETURN QUERY SELECT retrysafe.now_ms(), held, NULL::bytea[], NULL::bigint[], NULL::tid[];
        RETURN;
    END IF;
    RETURN QUERY
    WITH clock AS MATERIALIZED (
        SELECT retrysafe.now_ms() AS t
    ), begun AS (
        INSERT INTO retrysafe.record AS r (id, request, created_at, keep_until, lease_until, sweep_at,
            version, fence, since, seal, state, detail, timeline)
        SELECT f.id, f.request, f.t, retrysafe.later(f.t, f.ttl_ms), f.until, f.until, f.version,
            f.version, f.t, retrysafe.seal(f.sum, f.version, f.version, f.t, f.t, f.until, f.version, f.t),
            0::smallint, f.detail, f.timeline || int8send(f.version) || int8send(f.t)
        FROM (
            SELECT n.*, c.t, retrysafe.later(c.t, n.lease_ms) AS until,
                nextval('retrysafe.version') AS version
            FROM clock c, unnest(b_ids, b_requests, b_ttls, b_leases, b_details, b_timelines, b_sums)
                AS n (id, request, ttl_ms, lease_ms, detail, timeline, sum)
            WHERE held IS NULL
        ) f
        ON CONFLICT (id) DO NOTHING
        RETURNING r.id, r.version, r.ctid AS place
    ), settled AS (
        UPDATE retrysafe.record r
        SET version = f.version, fence = f.fence, since = f.t, state = f.state,
            moments = r.moments + 1,
            lease_until = CASE WHEN f.state = 0 THEN f.until ELSE r.lease_until END,
            sweep_at = CASE WHEN f.state = 0 THEN f.until ELSE r.sweep_at END,
            keep_until = CASE WHEN f.state = 0 THEN r.keep_until ELSE least(r.keep_until, f.until) END,
            expires_at = CASE WHEN f.state <> 0 THEN f.until END,
            unknown_since = NULL,
            detail = f.detail, timeline = f.timeline || int8send(f.fence) || int8send(f.t),
            status = f.status, headers = f.headers, body = f.body,
            seal = retrysafe.seal(f.sum, f.version, f.fence, f.created_at, f.t, f.until, f.fence, f.t)
        FROM (
            SELECT d.*, retrysafe.later(d.t, d.length_ms) AS until,
                CASE WHEN d.old_fence = 0 THEN d.version ELSE d.old_fence END AS fence
            FROM (
                SELECT n.*, c.t, nextval('retrysafe.version') AS version,
                    coalesce(n.known_place, (SELECT o.ctid FROM retrysafe.record o WHERE o.id = n.id)) AS place
                FROM clock c, unnest(s_ids, s_froms, s_requests, s_created, s_fences, s_states,
                    s_lengths, s_details, s_timelines, s_statuses, s_headers, s_bodies, s_sums, s_places)
                    AS n (id, from_version, request, created_at, old_fence, state, length_ms, detail,
                        timeline, status, headers, body, sum, known_place)
            ) d
            OFFSET 0
        ) f
        -- Not "=" for the id: the planner could search the index instead of using the places.
        WHERE r.ctid = f.place AND r.id IS NOT DISTINCT FROM f.id AND r.version = f.from_version
            AND r.request = f.request AND r.created_at = f.created_at
            -- A new attempt is a grant, too.
            AND (held IS NULL OR f.state <> 0)
        -- What is settled is not written again.
        RETURNING r.id, r.version, CASE WHEN r.state = 0 THEN r.ctid END AS place
    )
    SELECT c.t, held, w.ids, w.versions, w.places
    FROM clock c, (
        SELECT array_agg(a.id) AS ids, array_agg(a.version) AS versions, array_agg(a.place) AS places
        FROM (SELECT * FROM begun UNION ALL SELECT * FROM settled) a
    ) w;
END
$$;

-- All other writes to records whose version is still the one that was read: renewals, heads of
-- answers, doubts, verdicts, lookups, ended retentions. A row says that this id was written; an id
-- without a row was not. A row without an id has what stands in the way, as retrysafe.hold_v1 says it, in
-- the place of the version.
--
-- `sinces` is NULL for now; `lengths` count from now, up to `untils` where both are given. The last
-- moment of a timeline has `last_fences` and `last_ats`, or, where those are NULL, happens now. What
-- has a label is written to retrysafe.transition at once.
CREATE FUNCTION retrysafe.change_v1(
    sync text, lock_ms integer,
    ids bytea[], froms bigint[], requests bytea[], created bigint[], fences bigint[],
    states smallint[], lengths bigint[], details bytea[], timelines bytea[], statuses smallint[],
    headers_ bytea[], bodies bytea[], sums bigint[], sinces bigint[], untils bigint[],
    last_fences bigint[], last_ats bigint[], labels text[]
)
RETURNS TABLE (id bytea, version bigint, now_ms bigint)
LANGUAGE plpgsql VOLATILE AS $$
#variable_conflict use_column
DECLARE
    t     bigint := retrysafe.now_ms();
    today integer := (t / 86400000)::integer;
    held  bigint;
BEGIN
    IF lock_ms IS NOT NULL THEN
        PERFORM retrysafe.set_up_v1(sync, lock_ms);
    END IF;
    held := retrysafe.hold_v1();
    IF held = -1 THEN
        RETURN QUERY SELECT NULL::bytea, held, t;
        RETURN;
    END IF;
    -- First, before any record is locked: nobody holds a record while waiting here.
    IF to_regclass('retrysafe.transition_' || today) IS NULL THEN
        PERFORM retrysafe.make_days();
    END IF;
    RETURN QUERY
    WITH changed AS (
        UPDATE retrysafe.record r
        SET version = f.version, fence = f.fence, since = f.since, state = f.state,
            moments = r.moments + CASE WHEN f.is_told THEN 1 ELSE 0 END,
            lease_until = CASE WHEN f.state = 0 THEN f.until ELSE r.lease_until END,
            sweep_at = CASE WHEN f.state = 0 THEN greatest(f.until, t) ELSE r.sweep_at END,
            keep_until = CASE WHEN f.state IN (1, 2) THEN f.until ELSE r.keep_until END,
            expires_at = CASE WHEN f.state IN (1, 2) THEN f.until END,
            unknown_since = CASE WHEN f.state = 3 THEN f.since END,
            detail = f.detail,
            timeline = f.timeline || int8send(f.last_fence) || int8send(f.last_at),
            status = f.status, headers = f.headers, body = f.body,
            seal = retrysafe.seal(f.sum, f.version, f.fence, f.created_at, f.since,
                coalesce(f.until, -1), f.last_fence, f.last_at)
        FROM (
            SELECT w.id, w.from_version, w.request, w.created_at, w.version, w.fence, w.state,
                w.detail, w.timeline, w.status, w.headers, w.body, w.sum, w.label,
                coalesce(w.since, t) AS since, w.last_at IS NULL AS is_told,
                CASE WHEN w.length_ms IS NULL THEN w.until
                    ELSE least(retrysafe.later(t, w.length_ms), w.until) END AS until,
                coalesce(w.last_fence, w.fence) AS last_fence, coalesce(w.last_at, t) AS last_at
            FROM (
                SELECT d.*, CASE WHEN d.old_fence = 0 THEN d.version ELSE d.old_fence END AS fence
                FROM (
                    SELECT n.*, nextval('retrysafe.version') AS version
                    FROM unnest(ids, froms, requests, created, fences, states, lengths, details,
                        timelines, statuses, headers_, bodies, sums, sinces, untils, last_fences,
                        last_ats, labels)
                        AS n (id, from_version, request, created_at, old_fence, state, length_ms,
                            detail, timeline, status, headers, body, sum, since, until, last_fence,
                            last_at, label)
                ) d
            ) w
            OFFSET 0
        ) f
        WHERE r.id = f.id AND r.version = f.from_version AND r.request = f.request
            AND r.created_at = f.created_at
            -- A new attempt inside a transaction of the application comes here, and is a grant.
            AND (held IS NULL OR f.state <> 0 OR f.fence <> f.version)
        RETURNING r.id, r.version, r.fence, r.state, f.label
    ), audited AS (
        INSERT INTO retrysafe.transition (day, at, id, version, fence, state, what)
        SELECT today, t, c.id, c.version, c.fence, c.state, c.label
        FROM changed c WHERE c.label IS NOT NULL
    )
    SELECT c.id, c.version, t FROM changed c
    UNION ALL
    SELECT NULL, held, t WHERE held IS NOT NULL;
    -- Somebody ends an answer before its time. Copies of answers elsewhere end with the same commit.
    IF EXISTS (SELECT FROM unnest(states, lengths) AS n (state, length_ms)
        WHERE n.state IN (1, 2) AND n.length_ms = 0) THEN
        UPDATE retrysafe.answer_tier SET epoch = epoch + 1;
    END IF;
END
$$;

-- Writes the unchanging part of a record anew, by one who holds the record whole: it was damaged.
CREATE FUNCTION retrysafe.mend_v1(
    ids bytea[], froms bigint[], requests bytea[], created bigint[]
) RETURNS void LANGUAGE sql VOLATILE AS $$
    UPDATE retrysafe.record r SET request = n.request, created_at = n.created_at
    FROM unnest(ids, froms, requests, created) AS n (id, from_version, request, created_at)
    WHERE r.id = n.id AND r.version = n.from_version;
$$;

-- Deletes records that are over: those of `ids`, or at most `most` of all. Their timelines go to
-- retrysafe.transition; where `keep` is set they themselves go to retrysafe.expired. One that another
-- transaction holds is left for the next time.
CREATE FUNCTION retrysafe.reap_v1(ids bytea[], most integer, keep boolean)
RETURNS TABLE (now_ms bigint, reaped bigint)
LANGUAGE plpgsql VOLATILE AS $$
#variable_conflict use_column
DECLARE
    t     bigint := retrysafe.now_ms();
    today integer := (t / 86400000)::integer;
    due   bytea[];
BEGIN
    IF ids IS NULL THEN
        due := ARRAY(
            SELECT r.id FROM retrysafe.record r
            WHERE r.keep_until <= t AND r.expires_at <= t AND r.state IN (1, 2)
            ORDER BY r.keep_until LIMIT most FOR UPDATE SKIP LOCKED
        );
    ELSE
        due := ARRAY(
            SELECT r.id FROM retrysafe.record r
            WHERE r.id = ANY (ids) AND r.expires_at <= t AND r.state IN (1, 2)
            ORDER BY r.id FOR UPDATE SKIP LOCKED
        );
    END IF;
    IF cardinality(due) > 0 AND to_regclass('retrysafe.transition_' || today) IS NULL THEN
        PERFORM retrysafe.make_days();
    END IF;
    RETURN QUERY
    WITH gone AS (
        DELETE FROM retrysafe.record r WHERE r.id = ANY (due) AND r.expires_at <= t RETURNING r.*
    ), archived AS (
        INSERT INTO retrysafe.expired
        SELECT g.id, g.request, g.created_at, t, g.version, g.fence, g.state FROM gone g WHERE keep
    ), audited AS (
        INSERT INTO retrysafe.transition
        SELECT today, t, g.id, g.version, g.fence, g.state, 'reaped', g.timeline, g.moments
        FROM gone g
    )
    SELECT t, count(*) FROM gone;
END
$$;

-- For transactions of the application. What is set here ends with the call: the rest of the
-- transaction is the application's own.
--
-- Above READ COMMITTED a duplicate or a lost lease would be found too late, by a failure of the whole.
CREATE FUNCTION retrysafe.join_v1() RETURNS void LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    IF current_setting('transaction_isolation') <> 'read committed' THEN
        RAISE EXCEPTION 'retrysafe: this transaction is %, and only READ COMMITTED can hold a record',
            upper(current_setting('transaction_isolation'))
            USING ERRCODE = 'RS002', HINT = 'Begin it with ISOLATION LEVEL READ COMMITTED.';
    END IF;
    PERFORM set_config('synchronous_commit', CASE current_setting('synchronous_commit')
        WHEN 'remote_apply' THEN 'remote_apply' ELSE 'on' END, true);
END
$$;

-- Begins one record. A begin of the same id in another transaction of an application is not waited
-- for: that may take as long as it likes.
CREATE FUNCTION retrysafe.begin_in_v1(
    ids bytea[], requests bytea[], ttls bigint[], leases bigint[], details bytea[],
    timelines bytea[], sums bigint[]
)
RETURNS TABLE (id bytea, version bigint, now_ms bigint)
LANGUAGE plpgsql VOLATILE
SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET enable_hashjoin = off
SET enable_mergejoin = off SET jit = off
AS $$
BEGIN
    IF NOT retrysafe.is_free_v1(ids[1]) THEN
        RAISE EXCEPTION 'retrysafe: another transaction holds the record' USING ERRCODE = '55P03';
    END IF;
    RETURN QUERY SELECT n.id, n.version, w.now_ms
    FROM retrysafe.write_v1(NULL, NULL, ids, requests, ttls, leases, details, timelines, sums,
            '{}', '{}', '{}', '{}', '{}', '{}', '{}', '{}', '{}', '{}', '{}', '{}', '{}') w,
        LATERAL (
            SELECT u.id, u.version FROM unnest(w.ids, w.versions) AS u (id, version)
            UNION ALL
            SELECT NULL, w.held WHERE w.held IS NOT NULL
        ) n;
END
$$;

-- Whether no other transaction of an application has begun this id and is still open. Whoever asks
-- holds the id until the end of its own transaction.
CREATE FUNCTION retrysafe.is_free_v1(id bytea) RETURNS boolean LANGUAGE sql VOLATILE AS $$
    SELECT pg_try_advisory_xact_lock(('x' || encode(substring(id FROM 1 FOR 8), 'hex'))::bit(64)::bigint)
$$;

-- Which transactions may commit only with a record that they have settled. A row lives as long as its
-- transaction: nobody else ever sees it.
CREATE TABLE retrysafe.guard (
    txid       xid8    NOT NULL,
    id         bytea   NOT NULL,
    is_settled boolean NOT NULL DEFAULT false,
    PRIMARY KEY (txid, id)
);

CREATE FUNCTION retrysafe.check_guard() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    DELETE FROM retrysafe.guard g WHERE g.txid = NEW.txid AND g.id = NEW.id AND g.is_settled;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'retrysafe: this transaction is guarded, and its record is not settled in it'
            USING ERRCODE = 'RS004';
    END IF;
    RETURN NULL;
END
$$;

-- Looks at the end of the transaction, whatever was rolled back to a savepoint meanwhile.
CREATE CONSTRAINT TRIGGER guarded AFTER INSERT ON retrysafe.guard
    DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION retrysafe.check_guard();

-- The first statement of a transaction that works for this attempt. Its COMMIT fails unless the record
-- was settled in it. Inside a savepoint it would be undone with that, so it is refused there.
CREATE FUNCTION retrysafe.guard_v1(record_id bytea, record_fence bigint) RETURNS void
LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    written_by xid;
BEGIN
    PERFORM retrysafe.join_v1();
    INSERT INTO retrysafe.guard (txid, id) VALUES (pg_current_xact_id(), record_id);
    SELECT g.xmin INTO written_by FROM retrysafe.guard g
    WHERE g.txid = pg_current_xact_id() AND g.id = record_id;
    IF written_by <> pg_current_xact_id()::xid THEN
        RAISE EXCEPTION 'retrysafe: a guard inside a savepoint would be rolled back with it'
            USING ERRCODE = 'RS003', HINT = 'Guard the transaction before its first savepoint.';
    END IF;
    IF NOT EXISTS (
        SELECT FROM retrysafe.record r
        WHERE r.id = record_id AND r.fence = record_fence AND r.state IN (0, 3)
    ) THEN
        RAISE EXCEPTION 'retrysafe: the lease was lost' USING ERRCODE = 'RS001';
    END IF;
END
$$;

-- A limit of this transaction in milliseconds: the one that is set already, or this one if that is shorter.
CREATE FUNCTION retrysafe.limit_v1(name text, limit_ms bigint) RETURNS void LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    set_ms bigint := (extract(epoch FROM current_setting(name)::interval) * 1000)::bigint;
BEGIN
    IF set_ms = 0 OR set_ms > limit_ms THEN
        PERFORM set_config(name, limit_ms || 'ms', true);
    END IF;
END
$$;

-- The first statement of a phase: its transaction is guarded, and ends within a time whatever becomes of its owner.
CREATE FUNCTION retrysafe.enter_phase_v1(record_id bytea, record_fence bigint, limit_ms bigint)
RETURNS void LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    PERFORM retrysafe.limit_v1('lock_timeout', limit_ms);
    PERFORM retrysafe.limit_v1('statement_timeout', limit_ms);
    PERFORM retrysafe.limit_v1('idle_in_transaction_session_timeout', limit_ms);
    PERFORM retrysafe.guard_v1(record_id, record_fence);
END
$$;

-- The last statement of a phase before its record moves. It fails if the phase has ended its transaction by itself:
-- what is written from here on would be a commit without the phase.
--
-- A COMMIT must not be cancelled by a limit of time while it waits for the standby: it would be taken for acknowledged.
CREATE FUNCTION retrysafe.leave_phase_v1(record_id bytea) RETURNS void LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    IF NOT EXISTS (
        SELECT FROM retrysafe.guard g WHERE g.txid = pg_current_xact_id() AND g.id = record_id
    ) THEN
        RAISE EXCEPTION 'retrysafe: the phase has ended its transaction by itself'
            USING ERRCODE = 'RS012', HINT = 'A phase must not send COMMIT or ROLLBACK.';
    END IF;
    PERFORM set_config('statement_timeout', '0', true);
    -- What is written next answers in text.
    PERFORM set_config('bytea_output', 'hex', true);
END
$$;

-- Changes one record.
CREATE FUNCTION retrysafe.change_in_v1(
    ids bytea[], froms bigint[], requests bytea[], created bigint[], fences bigint[],
    states smallint[], lengths bigint[], details bytea[], timelines bytea[], statuses smallint[],
    headers_ bytea[], bodies bytea[], sums bigint[], sinces bigint[], untils bigint[],
    last_fences bigint[], last_ats bigint[], labels text[]
)
RETURNS TABLE (id bytea, version bigint, now_ms bigint)
LANGUAGE plpgsql VOLATILE
SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET enable_hashjoin = off
SET enable_mergejoin = off SET jit = off
AS $$
BEGIN
    FOR id, version, now_ms IN
        SELECT * FROM retrysafe.change_v1(NULL, NULL, ids, froms, requests, created, fences, states,
            lengths, details, timelines, statuses, headers_, bodies, sums, sinces, untils, last_fences,
            last_ats, labels)
    LOOP
        -- A settle, or a phase that is told and keeps its owner. A doubt is neither, nor is a lease that is given
        -- back, nor a record that is free again: it would run again beside what was done for it here.
        IF id IS NOT NULL AND (states[1] = 1 OR labels[1] LIKE 'settled%'
            OR (states[1] = 0 AND fences[1] <> 0 AND last_ats[1] IS NULL AND lengths[1] IS DISTINCT FROM 0)) THEN
            UPDATE retrysafe.guard g SET is_settled = true
            WHERE g.txid = pg_current_xact_id() AND g.id = ids[1];
        END IF;
        RETURN NEXT;
    END LOOP;
END
$$;

-- Makes the caller's transaction fail, so that nothing it did can be committed.
CREATE FUNCTION retrysafe.refuse_v1(why text) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION 'retrysafe: %', why USING ERRCODE = 'RS001';
END
$$;

-- For people.

-- A field of record.request: 1 the scope, 2 the method, 3 the route, 4 the path. Before them stand
-- one byte for the format, 32 for the key's digest, 41 for the fingerprint; each has its length in
-- front, in four bytes.
CREATE FUNCTION retrysafe.request_field(request bytea, number integer) RETURNS bytea
LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE AS $$
DECLARE
    place  integer := 75;
    length integer;
BEGIN
    FOR field IN 1..number LOOP
        length := ('x' || encode(substring(request FROM place FOR 4), 'hex'))::bit(32)::integer;
        place := place + 4 + length;
    END LOOP;
    RETURN substring(request FROM place - length FOR length);
END
$$;

-- The moments of a timeline, oldest first. Each has a length in four bytes, what happened, the fence
-- and the time.
CREATE FUNCTION retrysafe.moments(timeline bytea)
RETURNS TABLE (number integer, at timestamptz, fence bigint, what text)
LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE AS $$
DECLARE
    place  integer := 1;
    length integer;
    code   bytea;
    states text[] := ARRAY['in_progress', 'completed', 'failed_retryable', 'unknown'];
BEGIN
    number := 0;
    WHILE place + 20 <= octet_length(timeline) LOOP
        length := ('x' || encode(substring(timeline FROM place FOR 4), 'hex'))::bit(32)::integer;
        code := substring(timeline FROM place + 4 FOR length);
        place := place + 4 + length;
        fence := ('x' || encode(substring(timeline FROM place FOR 8), 'hex'))::bit(64)::bigint;
        at := to_timestamp(('x' || encode(substring(timeline FROM place + 8 FOR 8), 'hex'))::bit(64)::bigint / 1000.0);
        place := place + 16;
        number := number + 1;
        what := CASE get_byte(code, 0)
            WHEN 0 THEN 'began'
            WHEN 7 THEN 'began request ' || encode(substring(code FROM 3), 'escape')
            WHEN 1 THEN 'settled ' || states[get_byte(code, 1) + 1]
            WHEN 2 THEN 'doubted'
            WHEN 3 THEN 'late result'
            WHEN 4 THEN 'looked up'
            WHEN 8 THEN 'looked up'
            WHEN 5 THEN 'resolved ' || states[get_byte(code, 1) + 1]
            WHEN 6 THEN 'expired'
            WHEN 9 THEN 'advanced'
            ELSE 'code ' || get_byte(code, 0) END;
        RETURN NEXT;
    END LOOP;
END
$$;

CREATE VIEW retrysafe.overview AS
    SELECT encode(r.id, 'hex') AS id,
        encode(retrysafe.request_field(r.request, 1), 'escape') AS scope,
        encode(retrysafe.request_field(r.request, 2), 'escape') AS method,
        encode(retrysafe.request_field(r.request, 3), 'escape') AS route,
        encode(retrysafe.request_field(r.request, 4), 'escape') AS path,
        (ARRAY['in_progress', 'completed', 'failed_retryable', 'unknown'])[r.state + 1] AS state,
        r.status, to_timestamp(r.created_at / 1000.0) AS created_at,
        to_timestamp(r.since / 1000.0) AS since,
        CASE WHEN r.state = 0 THEN to_timestamp(r.lease_until / 1000.0) END AS lease_until,
        CASE WHEN r.expires_at = 9223372036854775807 THEN 'infinity'::timestamptz
            ELSE to_timestamp(r.expires_at / 1000.0) END AS expires_at,
        r.fence, r.version
    FROM retrysafe.record r;

-- What happened to every record, those that were reaped among them. `left_out` says how many moments
-- of the record were forgotten because its timeline was full.
CREATE VIEW retrysafe.history AS
    SELECT encode(r.id, 'hex') AS id, m.at, m.fence, m.what,
        r.moments - (SELECT count(*) FROM retrysafe.moments(r.timeline)) AS left_out
    FROM retrysafe.record r, retrysafe.moments(r.timeline) m
    UNION ALL
    SELECT encode(r.id, 'hex'), m.at, m.fence, m.what,
        r.moments - (SELECT count(*) FROM retrysafe.moments(r.timeline))
    FROM retrysafe.transition r, retrysafe.moments(r.timeline) m WHERE r.timeline IS NOT NULL
    UNION ALL
    SELECT encode(r.id, 'hex'), to_timestamp(r.at / 1000.0), r.fence, r.what, 0
    FROM retrysafe.transition r;

SELECT retrysafe.make_days();
