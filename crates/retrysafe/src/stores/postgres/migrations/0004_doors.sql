-- What may an application ask of the outbox in SQL, with any driver? This is a contract: docs/sql.md.

-- The key that is derived from the application's words: the same in every language.
CREATE FUNCTION retrysafe.effect_key(kind text, words text) RETURNS text
LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT encode(substring(sha256('retrysafe effect\000'::bytea || convert_to(kind, 'UTF8') || '\000'::bytea
        || convert_to(words, 'UTF8')) FROM 1 FOR 16), 'hex')
$$;

-- Stages an effect in the transaction of the caller: it exists if and only if that commits.
CREATE FUNCTION retrysafe.stage(
    kind text, body bytea DEFAULT '', content_type text DEFAULT NULL, destination text DEFAULT NULL,
    lane text DEFAULT NULL, name text DEFAULT NULL, not_before timestamptz DEFAULT NULL, key_by text DEFAULT NULL,
    OUT id bigint, OUT is_new boolean, OUT downstream_key text
) LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_variable
BEGIN
    IF not isfinite(not_before) THEN
        PERFORM retrysafe.refuse_argument('not_before is a time', 'Pass NULL for at once.');
    END IF;
    SELECT s.id, s.is_new, s.downstream_key_used INTO id, is_new, downstream_key
    FROM retrysafe.stage_v1(kind, destination, content_type, body, retrysafe.effect_key(kind, key_by), lane, name,
        floor(extract(epoch FROM not_before) * 1000)::bigint) s;
END
$$;

-- The same with a document. It has a name of its own, because a driver that leaves the type of a parameter open could not
-- choose between two functions of one name.
CREATE FUNCTION retrysafe.stage_json(
    kind text, body jsonb, content_type text DEFAULT 'application/json', destination text DEFAULT NULL,
    lane text DEFAULT NULL, name text DEFAULT NULL, not_before timestamptz DEFAULT NULL, key_by text DEFAULT NULL,
    OUT id bigint, OUT is_new boolean, OUT downstream_key text
) LANGUAGE sql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
    SELECT * FROM retrysafe.stage($1, convert_to($2::text, 'UTF8'), $3, $4, $5, $6, $7, $8)
$$;

-- Takes an effect back, in the transaction of the caller, and says how the effect stands: `cancelled`, now or before;
-- `delivered`, `unknown` or `may_have_been_sent` if it is too late; `absent` if there is none.
CREATE FUNCTION retrysafe.cancel_effect(id bigint) RETURNS text
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET lock_timeout = '5s' AS $$
#variable_conflict use_variable
DECLARE
    refused text;
BEGIN
    IF id IS NULL THEN
        PERFORM retrysafe.refuse_argument('there is no id', 'Pass on what retrysafe.stage has answered.');
    END IF;
    refused := retrysafe.cancel_effect_v1(id);
    RETURN CASE
        WHEN refused IS NULL THEN 'cancelled'
        WHEN refused <> 'wrong_state' THEN refused
        WHEN EXISTS (SELECT FROM retrysafe.effect e WHERE e.id = id AND e.state = 3) THEN 'unknown'
        WHEN EXISTS (SELECT FROM retrysafe.effect_done d WHERE d.id = id AND d.state = 6) THEN 'cancelled'
        ELSE 'delivered' END;
END
$$;

-- When workers were woken last. A sequence, because it is no row that every caller would lock and leave behind.
CREATE SEQUENCE retrysafe.woken_at MINVALUE 0 START 0;

-- Wakes workers, so that they do not wait for their next look. It is called after the commit, and not in it: a transaction
-- that notifies holds a lock of the whole server while it commits. Of many calls within 50 milliseconds one notifies; a
-- worker that was woken looks again by itself. Says whether this one did.
CREATE FUNCTION retrysafe.wake_workers() RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    t     bigint := floor(extract(epoch FROM clock_timestamp()) * 1000);
    woken bigint := (SELECT w.last_value FROM retrysafe.woken_at w);
BEGIN
    IF pg_current_xact_id_if_assigned() IS NOT NULL THEN
        RAISE EXCEPTION 'retrysafe: workers are woken after the commit, and this transaction has written something'
            USING ERRCODE = 'RS021', DETAIL = 'A notification in a commit makes every other commit wait.',
            HINT = 'Call retrysafe.wake_workers() after COMMIT. Without it, workers find the effect a little later.';
    ELSIF t BETWEEN woken AND woken + 50 THEN
        RETURN false;
    END IF;
    PERFORM setval('retrysafe.woken_at', t), pg_notify('retrysafe staged', '');
    RETURN true;
END
$$;

DO $$
BEGIN
    REVOKE ALL ON FUNCTION retrysafe.stage, retrysafe.stage_json, retrysafe.cancel_effect, retrysafe.wake_workers FROM PUBLIC;
    IF EXISTS (SELECT FROM pg_catalog.pg_roles WHERE rolname = 'retrysafe_app') THEN
        PERFORM retrysafe.grant_to('retrysafe_app');
    END IF;
END
$$;
