//! Which breakages of the stores must be caught?

use super::catcher::Catcher::Test;
use super::table::Mutant;

/// The unit tests of the embedded store.
const DISK: &[&str] = &["-p", "retrysafe", "--features", "disk", "--lib"];

/// The tests of Redis and of the tiered store, on real servers.
const REDIS: &[&str] = &["-p", "retrysafe", "--features", "postgres,redis", "--test", "redis"];

/// The tests of PostgreSQL and of its SQL functions, on a real server.
const POSTGRES: &[&str] = &["-p", "retrysafe", "--features", "postgres,axum", "--test", "postgres"];

pub(crate) const MUTANTS: &[Mutant] = &[
    Mutant {
        name: "disk-draft-outlives-its-batch",
        file: "crates/retrysafe/src/stores/disk/append.rs",
        old: "flushed.map_err(|_| no_room())?;",
        new: "let _ = flushed;",
        breaks: "what replaces a record that could not be written is written",
        caught: Test(DISK, "a_batch_that_has_no_room_refuses_what_was_built_on_it"),
    },
    Mutant {
        name: "postgres-place-believed",
        file: "crates/retrysafe/src/stores/postgres/migrations/0001_records.sql",
        old: "WHERE r.ctid = f.place AND r.id IS NOT DISTINCT FROM f.id AND r.version = f.from_version\n            AND r.request = f.request AND r.created_at = f.created_at",
        new: "WHERE r.ctid = f.place",
        breaks: "an answer is written to whichever record lies at a place that somebody remembers",
        caught: Test(POSTGRES, "a_record_that_was_moved_is_settled_and_its_neighbour_is_not"),
    },
    Mutant {
        name: "redis-quarantine-ends-at-once",
        file: "crates/retrysafe/src/stores/redis/lua/shared.lua",
        old: "    if now < held_until then",
        new: "    if now < 0 then",
        breaks: "a server that lost writes grants at once what was in flight",
        caught: Test(REDIS, "a_replica_that_missed_the_last_writes_grants_nothing_new"),
    },
    Mutant {
        name: "redis-server-not-compared",
        file: "crates/retrysafe/src/stores/redis/lua/shared.lua",
        old: "if kept[1] ~= identity or version < tonumber(seen) then",
        new: "if version < tonumber(seen) then",
        breaks: "a server that was started again is trusted at once",
        caught: Test(REDIS, "a_restarted_server_serves_what_it_has_and_grants_nothing_new"),
    },
    Mutant {
        name: "redis-versions-may-go-back",
        file: "crates/retrysafe/src/stores/redis/lua/shared.lua",
        old: "if kept[1] ~= identity or version < tonumber(seen) then",
        new: "if kept[1] ~= identity then",
        breaks: "a restored copy of the same server is trusted at once",
        caught: Test(REDIS, "versions_that_went_back_begin_a_quarantine"),
    },
    Mutant {
        name: "tiered-code-not-checked",
        file: "crates/retrysafe/src/stores/tiered/copy.rs",
        old: "if *format != FORMAT || !is_same(&right, claimed) {",
        new: "if *format != FORMAT || right.is_empty() {",
        breaks: "a forged copy is served",
        caught: Test(REDIS, "a_poisoned_copy_is_not_served"),
    },
    Mutant {
        name: "tiered-expiry-not-checked",
        file: "crates/retrysafe/src/stores/tiered/copy.rs",
        old: "record.standing() == Standing::Completed && is_fresh)",
        new: "record.standing() == Standing::Completed && (is_fresh || true))",
        breaks: "a restored copy of an answer that has expired is served",
        caught: Test(REDIS, "a_copy_of_a_former_generation_is_not_served"),
    },
    Mutant {
        name: "tiered-epoch-never-rises",
        file: "crates/retrysafe/src/stores/tiered/epoch.rs",
        old: "            last.epoch = reading.epoch;",
        new: "            last.epoch = last.epoch.max(1);",
        breaks: "an answer that an operator has ended is served again",
        caught: Test(REDIS, "what_was_expired_without_a_tiered_store_is_not_served_again"),
    },
    Mutant {
        name: "postgres-expiry-keeps-copies",
        file: "crates/retrysafe/src/stores/postgres/migrations/0001_records.sql",
        old: "UPDATE retrysafe.answer_tier SET epoch = epoch + 1;",
        new: "UPDATE retrysafe.answer_tier SET epoch = epoch;",
        breaks: "an answer that was ended without the tiered store is served again",
        caught: Test(REDIS, "what_was_expired_without_a_tiered_store_is_not_served_again"),
    },
    Mutant {
        name: "sql-resumes-an-unkeyed-call",
        file: "crates/retrysafe/src/stores/postgres/migrations/0003_rules.sql",
        old: "AND (flow.digest IS NULL OR flow.resume_until IS NOT NULL AND now_ms < flow.resume_until)",
        new: "AND (flow.digest IS NULL OR coalesce(now_ms < flow.resume_until, true))",
        breaks: "a call whose provider takes no key is made by the next owner again",
        caught: Test(POSTGRES, "random_histories_are_decided_as_the_machine_decides_them"),
    },
    Mutant {
        name: "sql-advance-from-anywhere",
        file: "crates/retrysafe/src/stores/postgres/migrations/0003_rules.sql",
        old: "IF is_from_here AND (live.state = 0",
        new: "IF (live.state = 0",
        breaks: "a phase is committed from another recovery point",
        caught: Test(POSTGRES, "random_histories_are_decided_as_the_machine_decides_them"),
    },
    Mutant {
        name: "sql-damage-believed",
        file: "crates/retrysafe/src/stores/postgres/migrations/0003_bytes.sql",
        old: "IF get_byte(record.request, 0) = 1 AND",
        new: "IF true OR",
        breaks: "a damaged record is read as if it were whole",
        caught: Test(POSTGRES, "a_damaged_record_is_an_error_and_never_absent"),
    },
    Mutant {
        name: "sql-inner-part-opened",
        file: "crates/retrysafe/src/stores/postgres/migrations/0003_verbs.sql",
        old: "IF (stack ~ ('[^a-zA-Z0-9_$\".]' || pattern)) IS NOT TRUE THEN",
        new: "IF false THEN",
        breaks: "a begin can be made inside an open transaction",
        caught: Test(POSTGRES, "the_inner_parts_of_procedures_answer_to_their_procedures_alone"),
    },
    Mutant {
        name: "sql-unkeyed-call-twice",
        file: "crates/retrysafe/src/stores/postgres/migrations/0003_doors.sql",
        old: "ELSIF flow.resume_until IS NULL AND NOT is_unsent THEN",
        new: "ELSIF false THEN",
        breaks: "an owner that asks twice calls a provider without keys twice",
        caught: Test(POSTGRES, "an_owner_that_asks_twice_calls_a_provider_without_keys_once"),
    },
    Mutant {
        name: "sql-begin-in-unguarded",
        file: "crates/retrysafe/src/stores/postgres/migrations/0003_doors.sql",
        old: "PERFORM retrysafe.guard_v1(begun.id, begun.fence);",
        new: "NULL;",
        breaks: "rows are committed whose request was never settled",
        caught: Test(
            POSTGRES,
            "a_begin_inside_the_transaction_exists_only_if_that_commits_with_a_settle",
        ),
    },
];
