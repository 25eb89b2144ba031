SELECT w.* FROM retrysafe.join_v1(), LATERAL retrysafe.begin_in_v1($1, $2, $3, $4, $5, $6, $7) AS w
