SELECT retrysafe.now_ms(), u.unknown, u.since,
    -- A small table is counted; of a large one the catalogue has an estimate, and counting it would
    -- mean reading it.
    CASE WHEN f.few < 10000 THEN f.few ELSE greatest(c.reltuples::bigint, f.few) END,
    p.pages * current_setting('block_size')::bigint
FROM (SELECT count(*) AS unknown, min(unknown_since) AS since FROM retrysafe.record
        WHERE unknown_since IS NOT NULL) u,
    (SELECT count(*) AS few FROM (SELECT FROM retrysafe.record LIMIT 10000) first) f,
    (SELECT reltuples FROM pg_catalog.pg_class WHERE oid = 'retrysafe.record'::regclass) c,
    (SELECT sum(k.relpages::bigint + coalesce(t.relpages, 0))::bigint AS pages
        FROM pg_catalog.pg_class k LEFT JOIN pg_catalog.pg_class t ON t.oid = k.reltoastrelid
        WHERE k.relnamespace = 'retrysafe'::regnamespace) p
