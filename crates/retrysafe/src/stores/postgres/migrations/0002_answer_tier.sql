-- What a Redis that answers in the database's stead rests on: the secret by which its copies are known to be ours, and
-- the answer epoch, which ends every copy that was made before it. One row.
CREATE TABLE retrysafe.answer_tier (
    is_only boolean PRIMARY KEY DEFAULT true CHECK (is_only),
    secret bytea NOT NULL CHECK (octet_length(secret) = 32),
    epoch bigint NOT NULL
);

-- gen_random_uuid draws from the strong generator of the server: 244 random bits.
INSERT INTO retrysafe.answer_tier (secret, epoch) VALUES (
    decode(replace(gen_random_uuid()::text || gen_random_uuid()::text, '-', ''), 'hex'), 1
);
