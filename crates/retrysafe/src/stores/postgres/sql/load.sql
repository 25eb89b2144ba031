SELECT * FROM retrysafe.load_v1($1, $2, $3, $4)
