SELECT now_ms, reaped FROM retrysafe.reap_v1($1, $2, $3)
