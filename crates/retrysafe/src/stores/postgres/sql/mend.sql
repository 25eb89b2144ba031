SELECT retrysafe.mend_v1($1, $2, $3, $4)
