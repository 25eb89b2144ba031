SELECT retrysafe.trust_v1($1, $2, $3, $4)
