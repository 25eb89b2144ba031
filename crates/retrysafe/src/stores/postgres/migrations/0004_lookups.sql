-- Lookups of effects that are unknown: whoever could know is asked, on a schedule. How often each was asked stands in its row, so
-- that processes which ask at the same time use up one lookup together.

-- Effects of a kind that are unknown, by their ids, after this one. `receiver` says to whom each may have been sent.
CREATE FUNCTION retrysafe.unknown_effects_v1(kind text, after_id bigint, most integer)
RETURNS TABLE (
    id bigint, fence bigint, downstream_key text, destination text, name text, staged_at bigint, since bigint,
    lookups integer, looked_up_at bigint, receiver bigint, now_ms bigint
) LANGUAGE sql STABLE AS $$
    SELECT e.id, e.fence, e.downstream_key, e.destination, e.name, e.staged_at, e.at, e.lookups, e.looked_up_at,
        e.receiver, retrysafe.now_ms()
    FROM retrysafe.effect e WHERE e.state = 3 AND e.kind = $1 AND e.id > $2 ORDER BY e.id LIMIT $3
$$;

-- Notes what a lookup has found: nothing final. It names the delivery that it was about and how many lookups there had been; NULL for one
-- that a person has asked for out of turn, which does not count. Says whether it was noted: of two that asked at the same time
-- one is.
CREATE FUNCTION retrysafe.note_lookup_v1(effect_id bigint, of_fence bigint, after_lookups integer, note text)
RETURNS boolean LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    UPDATE retrysafe.effect e SET lookups = e.lookups + CASE WHEN after_lookups IS NULL THEN 0 ELSE 1 END,
        looked_up_at = retrysafe.now_ms(), last_lookup = note
    WHERE e.id = effect_id AND e.state = 3 AND e.fence = of_fence AND e.lookups = coalesce(after_lookups, e.lookups);
    RETURN FOUND;
END
$$;
