WITH clock AS MATERIALIZED (SELECT retrysafe.now_ms() AS now_ms),
-- Without the answers, which are looked for only once it is known which records they are.
page AS MATERIALIZED (
    SELECT r.id, c.now_ms FROM clock c JOIN retrysafe.record r ON r.id > $1::bytea
        AND ($4::smallint IS NULL OR r.state = $4)
        -- What is unknown has an index of its own.
        AND ($4::smallint IS DISTINCT FROM 3 OR r.unknown_since IS NOT NULL)
        AND (NOT $5::boolean OR r.state = 0 AND r.lease_until <= c.now_ms
            AND r.sweep_at <= c.now_ms AND r.sweep_at > $6::bigint)
        -- The texts may also stand elsewhere in the request: whoever asked looks at what is found.
        AND ($7::bytea IS NULL OR position($7 IN r.request) > 0)
        AND ($8::bytea IS NULL OR position($8 IN r.request) > 0)
        AND ($9::bytea IS NULL OR position($9 IN r.request) > 0)
        AND ($10::bytea IS NULL OR substring(r.request FROM 2 FOR 32) = $10)
        AND ($11::bigint IS NULL OR r.created_at < $11)
        AND ($12::bytea IS NULL OR r.id >= $12)
        AND ($13::bytea IS NULL OR r.id <= $13)
        AND (NOT $14::boolean OR substring(r.request FROM 2 FOR 32) = $15::bytea
            OR substring(r.request FROM 2 FOR 32) BETWEEN $16::bytea AND $17::bytea
            OR position($18::bytea IN r.timeline) > 0)
    ORDER BY r.id LIMIT $2::bigint
), found AS (
    SELECT r.*, p.now_ms, sum(octet_length(r.body)) OVER (ORDER BY r.id) AS bytes,
        row_number() OVER (ORDER BY r.id) AS place
    FROM page p JOIN retrysafe.record r ON r.id = p.id
)
SELECT now_ms, id, version, request, created_at, lease_until, fence, since, seal, state, status,
    expires_at, detail, timeline, headers, body
FROM (
    SELECT * FROM found WHERE place = 1 OR bytes IS NULL OR bytes <= $3::bigint ORDER BY place
) ordered
UNION ALL
SELECT now_ms, NULL, (SELECT count(*) FROM found), NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL,
    NULL, NULL, NULL, NULL
FROM clock
