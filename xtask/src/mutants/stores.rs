//! Which breakages of the stores must be caught?

use super::catcher::Catcher::Test;
use super::table::Mutant;

/// The unit tests of the embedded store.
const DISK: &[&str] = &["-p", "retrysafe", "--features", "disk", "--lib"];

/// The tests of Redis and of the tiered store, on real servers.
const REDIS: &[&str] = &["-p", "retrysafe", "--features", "postgres,redis", "--test", "redis"];

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
];
