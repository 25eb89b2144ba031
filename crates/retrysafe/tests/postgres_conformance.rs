//! Does the PostgreSQL store keep the promises of a store?

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "a test fails by panicking, and says what it measured"
)]

mod common;

use common::bench::Direct;

retrysafe_core::conformance!(postgres, Direct: Still + Reopen);

/// The suite's cases about damage, one by one: a record whose unchanging columns are damaged is never
/// read, begun or reaped. One case is not claimed: a swap does not look at those columns, so it neither
/// refuses nor mends them, and the next read says `Damaged` again (docs/postgres.md).
mod damage {
    use super::Direct;
    use retrysafe_core::conformance::run_damage;

    macro_rules! cases {
        ($($case:ident)*) => {
            $(#[test]
            fn $case() {
                run_damage::<Direct>(concat!("damage::", stringify!($case)));
            })*
        };
    }

    cases! {
        a_load_of_a_damaged_record_is_an_error
        an_insert_over_a_damaged_record_is_refused
        a_begin_on_a_damaged_record_never_executes
        a_scan_lists_damaged_records_and_goes_on
        other_records_are_unaffected
        a_sweep_goes_on_past_damage
        the_reaper_does_not_take_damage_for_expiry
    }
}
