//! How does a test get packages that must be downloaded?

use std::process::Command;
use std::time::Duration;

/// Runs a command that may download something, and gives what it says: a registry that fails is asked three times.
pub(crate) fn run(command: &mut Command) -> String {
    let mut complaint = String::new();
    for _ in 0..3 {
        let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
        if output.status.success() {
            return String::from_utf8_lossy(&output.stdout).into_owned();
        }
        complaint = String::from_utf8_lossy(&output.stderr).into_owned();
        std::thread::sleep(Duration::from_secs(2));
    }
    panic!("{command:?}: {complaint}");
}
