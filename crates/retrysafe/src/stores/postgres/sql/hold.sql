SELECT pg_try_advisory_xact_lock(('x' || encode(substring($1::bytea FROM 1 FOR 8), 'hex'))::bit(64)::bigint)
