WITH clock AS MATERIALIZED (SELECT retrysafe.now_ms() AS now_ms),
page AS MATERIALIZED (
    SELECT s.*, c.now_ms FROM clock c JOIN retrysafe.stored s ON s.id > $1::bytea
        AND ($2::smallint IS NULL OR s.state = $2)
        AND (NOT $3::boolean OR s.state = 0 AND s.until <= c.now_ms)
        AND ($4::bytea IS NULL OR s.scope = $4)
        AND ($5::text IS NULL OR s.route = $5)
        AND ($6::bytea IS NULL OR s.key = $6)
        AND ($7::bigint IS NULL OR s.created_at < $7)
    ORDER BY s.id LIMIT $8::bigint
), found AS (
    SELECT p.*, sum(octet_length(p.answer)) OVER (ORDER BY p.id) AS bytes,
        row_number() OVER (ORDER BY p.id) AS place
    FROM page p
)
SELECT false, now_ms, id, version, scope, key, fingerprint, method, route, path, checksum, format,
    created_at, ttl_ms, fence, attempts, state, since, until, owner, doubt, lookups, answer_version,
    timeline, seal, answer, mark
FROM found WHERE place = 1 OR bytes IS NULL OR bytes <= $9::bigint
UNION ALL
SELECT false, now_ms, NULL, (SELECT count(*) FROM found), NULL, NULL, NULL, NULL, NULL, NULL, NULL,
    NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL
FROM clock
