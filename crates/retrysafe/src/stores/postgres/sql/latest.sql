WITH clock AS MATERIALIZED (SELECT retrysafe.now_ms() AS now_ms),
-- Without the answers, which are looked for only once it is known which records are the last.
page AS MATERIALIZED (
    SELECT r.id, c.now_ms FROM clock c JOIN retrysafe.record r ON r.version < $1::bigint
        AND ($4::smallint IS NULL OR r.state = $4)
        AND (NOT $5::boolean OR r.state = 0 AND r.lease_until <= c.now_ms)
        AND ($6::bytea IS NULL OR r.scope = $6)
        AND ($7::text IS NULL OR r.route = $7)
        AND ($8::text IS NULL OR r.path = $8)
        AND ($9::bytea IS NULL OR r.key = $9)
        AND ($10::bigint IS NULL OR r.created_at < $10)
        AND ($11::bytea IS NULL OR r.id >= $11)
        AND ($12::bytea IS NULL OR r.id <= $12)
        AND (NOT $13::boolean OR r.key = $14::bytea OR r.key BETWEEN $15::bytea AND $16::bytea
            OR position($17::bytea IN r.timeline) > 0)
    ORDER BY r.version DESC LIMIT $2::bigint
), found AS (
    SELECT s.*, p.now_ms, sum(octet_length(s.answer)) OVER (ORDER BY s.version DESC) AS bytes,
        row_number() OVER (ORDER BY s.version DESC) AS place
    FROM page p JOIN retrysafe.stored s ON s.id = p.id
)
SELECT false, now_ms, id, version, scope, key, fingerprint, method, route, path, checksum, format,
    created_at, ttl_ms, fence, attempts, state, since, until, owner, doubt, lookups, answer_version,
    timeline, seal, answer, mark, head
FROM (
    SELECT * FROM found WHERE place = 1 OR bytes IS NULL OR bytes <= $3::bigint ORDER BY place
) ordered
UNION ALL
SELECT false, now_ms, NULL, (SELECT count(*) FROM found), NULL, NULL, NULL, NULL, NULL, NULL, NULL,
    NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL,
    NULL
FROM clock
