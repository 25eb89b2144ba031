//! Can the store suite be passed, and can it be failed?
//!
//! The [plain] store keeps every promise in the plainest way there is, and passes every case; so it
//! does with a [quirk](plain::Quirk) that the contract permits. Then it is [broken] in one place at a
//! time, and each time the case that names the fault must fail.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    reason = "the doubles of a test may panic as the test may"
)]

mod broken;
mod plain;

use plain::{PlainBench, Quirk};
use retrysafe_core::conformance;

conformance!(sound, PlainBench: Still + Damage + Reopen);
conformance!(scans_repeat, PlainBench<{ Quirk::SCANS_REPEAT }>: Still + Damage + Reopen);
conformance!(server_stamps, PlainBench<{ Quirk::SERVER_STAMPS }>: Still + Damage + Reopen);
