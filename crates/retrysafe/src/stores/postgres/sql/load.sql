SELECT * FROM retrysafe.load_v1($1::bytea[], $2::integer)
