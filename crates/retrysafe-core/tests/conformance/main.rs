//! Can the store suite be passed, and can it be failed?
//!
//! The [plain] store keeps every promise in the plainest way there is, and passes every case. Then it
//! is [broken] in one place at a time, and each time the case that names the fault must fail.

mod broken;
mod plain;

use plain::PlainBench;
use retrysafe_core::conformance;

conformance!(sound, PlainBench: Still + Damage + Reopen);

/// The macro lists the cases by name; a case that is not listed would never run.
#[test]
fn every_case_is_listed() {
    let list = include_str!("../../src/conformance/mod.rs");
    let themes = [
        ("boundaries", include_str!("../../src/conformance/boundaries.rs")),
        ("clocks", include_str!("../../src/conformance/clocks.rs")),
        ("damage", include_str!("../../src/conformance/damage.rs")),
        ("drops", include_str!("../../src/conformance/drops.rs")),
        ("faults", include_str!("../../src/conformance/faults.rs")),
        ("inserts", include_str!("../../src/conformance/inserts.rs")),
        ("leases", include_str!("../../src/conformance/leases.rs")),
        ("names", include_str!("../../src/conformance/names.rs")),
        ("numbers", include_str!("../../src/conformance/numbers.rs")),
        ("payloads", include_str!("../../src/conformance/payloads.rs")),
        ("reaping", include_str!("../../src/conformance/reaping.rs")),
        ("reopening", include_str!("../../src/conformance/reopening.rs")),
        ("scans", include_str!("../../src/conformance/scans.rs")),
        ("storms", include_str!("../../src/conformance/storms.rs")),
        ("swaps", include_str!("../../src/conformance/swaps.rs")),
        ("upkeep", include_str!("../../src/conformance/upkeep.rs")),
        ("verbs", include_str!("../../src/conformance/verbs.rs")),
        ("verdicts", include_str!("../../src/conformance/verdicts.rs")),
    ];
    for (theme, source) in themes {
        assert!(list.contains(&format!("\n            {theme}:\n")), "{theme} is not listed");
        for line in source.lines().filter_map(|line| line.strip_prefix("pub async fn ")) {
            let case = line.split('<').next().expect("a function has a name");
            let entries = list.lines().filter(|entry| entry.trim().trim_end_matches(';') == case);
            assert_eq!(entries.count(), 1, "{theme}::{case} is not listed once");
        }
    }
    // Model and machinery have no cases of this kind; every other module is a theme.
    let without = ["bench", "chance", "faulty", "model", "samples", "shaken"];
    let modules = list.lines().filter(|line| {
        let module = line.strip_prefix("pub mod ").or_else(|| line.strip_prefix("mod "));
        module.is_some_and(|name| name.ends_with(';'))
    });
    assert_eq!(modules.count(), themes.len() + without.len());
}
