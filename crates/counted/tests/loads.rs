//! Does each load run to its end? `cargo xtask bench counts` counts the program that is built for this test.

use std::process::Command;

#[test]
fn every_load_ends_well_and_no_other_is_known() {
    let run = |load: &str| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_counted"));
        command.args([load, "3"]).status().expect("a program that starts").success()
    };
    for load in ["layer-first", "layer-replay", "disk"] {
        assert!(run(load), "{load}");
    }
    assert!(!run("another"));
}
