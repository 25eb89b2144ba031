SELECT
    current_setting('server_version_num')::integer,
    pg_is_in_recovery(),
    current_setting('fsync'),
    current_setting('synchronous_commit'),
    (SELECT system_identifier::text FROM pg_control_system()),
    CASE WHEN pg_is_in_recovery() THEN NULL
        ELSE substring(pg_walfile_name(pg_current_wal_lsn()) FROM 1 FOR 8) END,
    (SELECT string_agg(c.relname, ', ') FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
        WHERE n.nspname = 'retrysafe' AND c.relkind IN ('r', 'p') AND c.relpersistence <> 'p'),
    pg_backend_pid()
