-- What stands for a caller, a key, a request and a call? The same bytes as in the program, for the same things.

-- Who is asking: named parts, in an encoding that no two lists share. retrysafe.scope('tenant', 'acme').
CREATE FUNCTION retrysafe.scope(VARIADIC parts text[]) RETURNS bytea
LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE AS $$
DECLARE
    bytes bytea := '';
    field bytea;
    part  text;
BEGIN
    IF cardinality(parts) % 2 <> 0 OR array_position(parts, NULL) IS NOT NULL THEN
        PERFORM retrysafe.refuse_argument('a scope is names and values in turn, and none of them NULL',
            'Such as retrysafe.scope(''tenant'', ''acme'').');
    END IF;
    FOREACH part IN ARRAY parts LOOP
        field := convert_to(part, 'UTF8');
        bytes := bytes || convert_to(octet_length(field)::text, 'UTF8') || ':'::bytea || field || ','::bytea;
    END LOOP;
    RETURN bytes;
END
$$;

-- A short digest of a credential, fit to be a part of a scope.
CREATE FUNCTION retrysafe.credential_digest(credential bytea) RETURNS text
LANGUAGE sql IMMUTABLE STRICT PARALLEL SAFE AS $$
    SELECT encode(substring(sha256('retrysafe credential v1\000'::bytea || credential) FROM 1 FOR 16), 'hex')
$$;

-- The mark of a credential, for callers whose scope is a name that the credential only claims.
CREATE FUNCTION retrysafe.credential_mark(credential bytea) RETURNS bytea
LANGUAGE sql IMMUTABLE STRICT PARALLEL SAFE AS $$
    SELECT substring(sha256('retrysafe credential mark v1\000'::bytea || credential) FROM 1 FOR 16)
$$;

-- What stands for a key. A key is 1 to 255 characters of printable ASCII, without the quotes of the header.
CREATE FUNCTION retrysafe.key_digest(key text) RETURNS bytea LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE AS $$
BEGIN
    IF (key ~ '^[ -~]{1,255}$') IS NOT TRUE THEN
        PERFORM retrysafe.refuse_argument('a key is 1 to 255 characters of printable ASCII',
            'Answer 400: the caller must send another Idempotency-Key.');
    END IF;
    RETURN sha256('retrysafe key v1\000'::bytea || convert_to(key, 'UTF8'));
END
$$;

-- The name of a record.
CREATE FUNCTION retrysafe.record_id(scope bytea, key text) RETURNS bytea
LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE AS $$
DECLARE
    length bytea := int8send(octet_length(scope));
    little bytea := '';
BEGIN
    FOR place IN REVERSE 7..0 LOOP
        little := little || substring(length FROM place + 1 FOR 1);
    END LOOP;
    RETURN sha256('retrysafe id v1\000'::bytea || little || scope || retrysafe.key_digest(key));
END
$$;

-- One part of a fingerprint, with its length.
CREATE FUNCTION retrysafe.print_part(part bytea) RETURNS bytea LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT int8send(octet_length(part)) || part
$$;

-- What a request means, byte by byte: method, path with query, media type, content coding and body. It is the
-- program's fingerprint under `Rules::default().without_host().raw_bodies()`, whose id stands here.
CREATE FUNCTION retrysafe.fingerprint(
    method text, path text, body bytea, content_type text DEFAULT NULL, content_encoding text DEFAULT NULL
) RETURNS bytea LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE AS $$
DECLARE
    rules     bytea := '\x4ed08d44e3f4858f';
    essence   text  := lower(btrim(split_part(coalesce(content_type, ''), ';', 1), E' \t\n\f\r') COLLATE "C");
    coding    text  := (SELECT string_agg(lower(btrim(c.one, E' \t\n\f\r') COLLATE "C"), ',' ORDER BY c.place)
        FROM unnest(string_to_array(coalesce(content_encoding, ''), ',')) WITH ORDINALITY AS c (one, place)
        WHERE lower(btrim(c.one, E' \t\n\f\r') COLLATE "C") NOT IN ('', 'identity'));
    parts     bytea;
BEGIN
    IF method IS NULL OR path IS NULL OR body IS NULL THEN
        PERFORM retrysafe.refuse_argument('a fingerprint needs a method, a path and a body', 'An empty body is ''''::bytea.');
    END IF;
    parts := retrysafe.print_part('retrysafe fingerprint') || retrysafe.print_part('\x02')
        || retrysafe.print_part(rules) || retrysafe.print_part(convert_to(method, 'UTF8'))
        || retrysafe.print_part('') || retrysafe.print_part(convert_to(path, 'UTF8'))
        || retrysafe.print_part(convert_to(essence, 'LATIN1'))
        || retrysafe.print_part(convert_to(coalesce(coding, ''), 'LATIN1')) || int8send(0);
    -- The boundary that the media type names decides which parts there are, so all of it counts.
    IF essence LIKE 'multipart/%' THEN
        parts := parts || retrysafe.print_part('raw multipart') || int8send(1)
            || retrysafe.print_part(convert_to(content_type, 'LATIN1'));
    END IF;
    RETURN '\x02' || rules || sha256(parts || retrysafe.print_part('raw') || retrysafe.print_part(body));
END
$$;

-- The headers of an answer as lines. What belongs to one connection, one moment or one trace is left out, and so are
-- cookies: the same list as in response.rs.
CREATE FUNCTION retrysafe.header_lines(headers text[]) RETURNS bytea
LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE AS $$
DECLARE
    lines   bytea := '';
    of_hop  text[] := ARRAY['set-cookie', 'connection', 'keep-alive', 'proxy-connection', 'proxy-authenticate',
        'proxy-authorization', 'proxy-authentication-info', 'te', 'trailer', 'transfer-encoding', 'upgrade', 'via',
        'alt-svc', 'date', 'age', 'content-length', 'retry-after', 'server-timing', 'traceparent', 'tracestate',
        'x-request-id', 'request-id', 'x-correlation-id', 'x-amzn-trace-id', 'x-cloud-trace-context',
        'idempotent-replayed', 'idempotency-expires'];
    pair    text[];
    name    text;
BEGIN
    IF coalesce(cardinality(headers), 0) = 0 THEN
        RETURN lines;
    ELSIF array_length(headers, 2) IS DISTINCT FROM 2 THEN
        PERFORM retrysafe.refuse_argument('headers are pairs of name and value',
            'Such as ARRAY[[''content-type'', ''application/json'']].');
    END IF;
    FOREACH pair SLICE 1 IN ARRAY headers LOOP
        IF lower(pair[1]) = 'connection' THEN
            of_hop := of_hop || regexp_split_to_array(lower(pair[2]), '\s*,\s*');
        END IF;
    END LOOP;
    FOREACH pair SLICE 1 IN ARRAY headers LOOP
        name := lower(pair[1] COLLATE "C");
        IF (name ~ '^[!#$%&''*+.^_`|~0-9a-z-]+$' AND pair[2] ~ '^[\t -~\u00a0-\u00ff\u0080-\u009f]*$') IS NOT TRUE THEN
            PERFORM retrysafe.refuse_argument(format('this is no header: %s', coalesce(pair[1], 'NULL')),
                'A name is a token; a value has no line breaks and no characters beyond Latin-1.');
        END IF;
        CONTINUE WHEN name = ANY (of_hop) OR name ~ '^(ratelimit|x-ratelimit-|retrysafe-|x-b3-)';
        lines := lines || convert_to(name || ': ' || pair[2] || E'\n', 'LATIN1');
    END LOOP;
    RETURN lines;
END
$$;
