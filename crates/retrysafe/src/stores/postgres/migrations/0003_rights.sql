-- Who may open the doors?
--
-- An application that works through SQL alone needs the role retrysafe_app, and no right to any table.

-- A guard is checked at COMMIT, when the application's own role is at work.
ALTER FUNCTION retrysafe.check_guard() SECURITY DEFINER SET search_path = pg_catalog, pg_temp;

-- What such an application calls, and what its procedures call in its name. The outbox comes with the next migration.
CREATE FUNCTION retrysafe.doors() RETURNS SETOF regprocedure LANGUAGE sql STABLE AS $$
    SELECT p.oid::regprocedure FROM pg_catalog.pg_proc p
    WHERE p.pronamespace = 'retrysafe'::regnamespace AND p.proname IN (
        'begin', 'begin_v1', 'begin_in', 'guard', 'start', 'advance', 'advance_v1', 'advance_in', 'about_to_call',
        'about_to_call_v1', 'call_not_sent', 'settle', 'settle_v1', 'settle_in', 'withdraw', 'renew', 'look',
        'downstream_key', 'scope', 'record_id', 'key_digest', 'fingerprint', 'print_part', 'credential_digest',
        'credential_mark', 'answer_owner', 'checked_point', 'checked_phase', 'checked_output', 'started', 'repeatable',
        'refuse_argument', 'stage', 'stage_json', 'cancel_effect', 'wake_workers')
$$;

-- Lets a role work through SQL. Only the owner of the schema can grant it.
CREATE FUNCTION retrysafe.grant_to(role text) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    door regprocedure;
BEGIN
    EXECUTE format('GRANT USAGE ON SCHEMA retrysafe TO %I', role);
    FOR door IN SELECT * FROM retrysafe.doors() LOOP
        EXECUTE format('GRANT EXECUTE ON ROUTINE %s TO %I', door, role);
    END LOOP;
END
$$;

DO $$
DECLARE
    door regprocedure;
BEGIN
    FOR door IN SELECT p.oid::regprocedure FROM pg_catalog.pg_proc p
        WHERE p.pronamespace = 'retrysafe'::regnamespace AND (p.prosecdef OR p.proname IN ('grant_to', 'doors'))
    LOOP
        EXECUTE format('REVOKE ALL ON ROUTINE %s FROM PUBLIC', door);
    END LOOP;
    -- Roles belong to the whole server: another database may have made this one, at this very moment too. A role that
    -- may not create roles leaves it to somebody who may.
    IF NOT EXISTS (SELECT FROM pg_catalog.pg_roles WHERE rolname = 'retrysafe_app') THEN
        BEGIN
            CREATE ROLE retrysafe_app NOLOGIN;
        EXCEPTION WHEN insufficient_privilege OR duplicate_object OR unique_violation THEN
            NULL;
        END;
    END IF;
    IF EXISTS (SELECT FROM pg_catalog.pg_roles WHERE rolname = 'retrysafe_app') THEN
        PERFORM retrysafe.grant_to('retrysafe_app');
    END IF;
END
$$;
