SELECT now_ms, held_until, is_new, is_awaited FROM retrysafe.observe_v1($1, $2, $3, $4, $5, $6)
