//! What must be installed before the tests, and who installs it?
//!
//! On a machine with Debian's package manager and the right to use it, what is missing is installed. Elsewhere the
//! command is told. Servers are not started here: each test starts a private one on a free port.

use std::path::Path;
use std::process::Command;

use crate::Error;

/// A package, and the programs by which it is recognised. One `*` stands for a version.
const NEEDED: &[(&str, &[&str])] = &[
    ("postgresql", &["/usr/lib/postgresql/*/bin/initdb"]),
    ("pgbouncer", &["/usr/sbin/pgbouncer", "/usr/bin/pgbouncer"]),
    ("redis-server", &["/usr/bin/redis-server"]),
    ("redis-sentinel", &["/usr/bin/redis-sentinel"]),
    ("strace", &["/usr/bin/strace"]),
    ("valgrind", &["/usr/bin/valgrind"]),
];

/// Installs what is missing.
///
/// # Errors
///
/// With the command to run, where this may not install anything.
pub(crate) fn missing() -> Result<(), Error> {
    let missing: Vec<&str> = NEEDED
        .iter()
        .filter(|(_, programs)| !programs.iter().any(|program| exists(program)))
        .map(|(package, _)| *package)
        .collect();
    if missing.is_empty() {
        return Ok(());
    }
    println!("== installing {}", missing.join(", "));
    let mut install = vec!["install", "--yes", "--no-install-recommends"];
    install.extend(&missing);
    if apt(&["update", "--quiet"]) && apt(&install) {
        return Ok(());
    }
    Err(format!(
        "the tests need more than this may install; run: apt-get install {}",
        missing.join(" ")
    )
    .into())
}

fn apt(arguments: &[&str]) -> bool {
    Command::new("apt-get")
        .env("DEBIAN_FRONTEND", "noninteractive")
        .args(arguments)
        .status()
        .is_ok_and(|status| status.success())
}

fn exists(program: &str) -> bool {
    match program.split_once("/*/") {
        None => Path::new(program).exists(),
        Some((folder, rest)) => std::fs::read_dir(folder).is_ok_and(|versions| {
            versions.flatten().any(|version| version.path().join(rest).exists())
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_are_found_in_any_version() {
        assert!(exists("/proc/*/status"));
        assert!(exists("/proc/self/status"));
        assert!(!exists("/proc/*/no-such-file"));
        assert!(!exists("/no-such-folder/*/x"));
    }
}
