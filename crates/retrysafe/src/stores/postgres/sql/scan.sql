WITH clock AS MATERIALIZED (SELECT retrysafe.now_ms() AS now_ms),
page AS MATERIALIZED (
    SELECT s.*, c.now_ms FROM clock c JOIN retrysafe.stored s ON s.id > $1::bytea
        AND ($4::smallint IS NULL OR s.state = $4)
        AND (NOT $5::boolean OR s.state = 0 AND s.until <= c.now_ms)
        AND ($6::bytea IS NULL OR s.scope = $6)
        AND ($7::text IS NULL OR s.route = $7)
        AND ($8::text IS NULL OR s.path = $8)
        AND ($9::bytea IS NULL OR s.key = $9)
        AND ($10::bigint IS NULL OR s.created_at < $10)
        AND ($11::bytea IS NULL OR s.id >= $11)
        AND ($12::bytea IS NULL OR s.id <= $12)
        AND (NOT $13::boolean OR s.key = $14::bytea OR s.key BETWEEN $15::bytea AND $16::bytea
            OR position($17::bytea IN s.timeline) > 0)
    ORDER BY s.id LIMIT $2::bigint
), found AS (
    SELECT p.*, sum(octet_length(p.answer)) OVER (ORDER BY p.id) AS bytes,
        row_number() OVER (ORDER BY p.id) AS place
    FROM page p
)
SELECT false, now_ms, id, version, scope, key, fingerprint, method, route, path, checksum, format,
    created_at, ttl_ms, fence, attempts, state, since, until, owner, doubt, lookups, answer_version,
    timeline, seal, answer, mark, head
FROM found WHERE place = 1 OR bytes IS NULL OR bytes <= $3::bigint
UNION ALL
SELECT false, now_ms, NULL, (SELECT count(*) FROM found), NULL, NULL, NULL, NULL, NULL, NULL, NULL,
    NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL,
    NULL
FROM clock
