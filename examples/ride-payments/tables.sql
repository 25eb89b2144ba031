-- The tables of a ride, for all three languages. The unique constraints are the last net: they hold for callers who send two
-- keys for one booking, and for whoever writes here without these programs.
CREATE TABLE IF NOT EXISTS ride (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    booking text NOT NULL UNIQUE,
    place text NOT NULL,
    cents bigint NOT NULL,
    charge text UNIQUE
);
CREATE TABLE IF NOT EXISTS ride_event (
    ride bigint NOT NULL REFERENCES ride,
    what text NOT NULL,
    UNIQUE (ride, what)
);
