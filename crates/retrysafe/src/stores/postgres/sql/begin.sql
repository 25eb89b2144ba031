BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE;
SET LOCAL synchronous_commit = {sync};
SET LOCAL lock_timeout = {lock_ms};
SET LOCAL statement_timeout = {statement_ms};
SET LOCAL idle_in_transaction_session_timeout = {idle_ms};
