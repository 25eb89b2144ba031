SELECT w.* FROM retrysafe.join_v1(), LATERAL retrysafe.change_in_v1($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18) AS w
