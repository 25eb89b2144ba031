//! What must be installed before the tests, and who installs it?
//!
//! On a machine with Debian's package manager and the right to use it, what is missing is installed. Elsewhere the
//! command is told. Servers are not started here: each test starts a private one on a free port.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::Error;

/// A package, and the programs or folders by which it is recognised. One `*` stands for a version; a name without a folder is looked for where
/// programs are.
const NEEDED: &[(&str, &[&str])] = &[
    ("postgresql", &["/usr/lib/postgresql/*/bin/initdb"]),
    ("pgbouncer", &["/usr/sbin/pgbouncer", "/usr/bin/pgbouncer"]),
    ("redis-server", &["/usr/bin/redis-server"]),
    ("redis-sentinel", &["/usr/bin/redis-sentinel"]),
    ("strace", &["/usr/bin/strace"]),
    ("procps", &["kill"]),
    ("curl", &["curl"]),
    ("valgrind", &["/usr/bin/valgrind"]),
    // For the dashboard: a browser, and the program that tells it what to do.
    ("chromium", &["/usr/bin/chromium"]),
    ("chromium-driver", &["/usr/bin/chromedriver"]),
    // For the examples and the tutorials in other languages. Their packages are installed by the tests themselves.
    ("python3-venv", &["/usr/lib/*/ensurepip", "/usr/local/lib/*/ensurepip"]),
    ("nodejs", &["node"]),
    ("npm", &["npm"]),
    ("default-jdk-headless", &["javac"]),
];

/// The program that checks alert rules and metrics. Its package starts a Prometheus on a port of the machine, so only this one
/// program is taken out of it.
const PROMTOOL: &str = "promtool";

/// How often something is downloaded before it counts as impossible: a mirror may fail for a moment.
const DOWNLOADS_MAX: usize = 3;

/// Where programs go that no package manager looks after.
const PROGRAMS: &str = "/usr/local/bin";

/// Installs what is missing.
///
/// # Errors
///
/// With the command to run, where this may not install anything.
pub(crate) fn missing() -> Result<(), Error> {
    missing_packages()?;
    if exists(PROMTOOL) {
        return Ok(());
    }
    println!("== installing {PROMTOOL}");
    let place = Path::new(PROGRAMS).join(PROMTOOL);
    unpack_promtool(&place).map_err(|error| {
        format!(
            "the tests need {PROMTOOL} ({error}); take it from Debian's package `prometheus` or from \
             prometheus.io, and put it to {}",
            place.display()
        )
        .into()
    })
}

/// Takes the program out of its package, and installs nothing else of it.
fn unpack_promtool(place: &Path) -> Result<(), Error> {
    let folder: PathBuf = std::env::temp_dir().join(format!("promtool-{}", std::process::id()));
    std::fs::create_dir_all(&folder)?;
    // The lists of packages may be old, or missing.
    let download = || run("apt-get", &["download", "--quiet", "prometheus"], &folder);
    let update_and_download =
        || run("apt-get", &["update", "--quiet"], &folder).and_then(|()| download());
    let unpacked = download()
        .or_else(|_| repeated(update_and_download))
        .and_then(|()| run("sh", &["-c", "dpkg-deb --extract prometheus_*.deb ."], &folder))
        .and_then(|()| Ok(std::fs::copy(folder.join("usr/bin").join(PROMTOOL), place).map(drop)?));
    std::fs::remove_dir_all(&folder)?;
    unpacked
}

fn repeated(mut work: impl FnMut() -> Result<(), Error>) -> Result<(), Error> {
    for _ in 1..DOWNLOADS_MAX {
        if work().is_ok() {
            return Ok(());
        }
    }
    work()
}

fn run(program: &str, arguments: &[&str], folder: &Path) -> Result<(), Error> {
    let status = Command::new(program).args(arguments).current_dir(folder).status()?;
    if status.success() { Ok(()) } else { Err(format!("{program} {arguments:?}: {status}").into()) }
}

fn missing_packages() -> Result<(), Error> {
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
    if (0..DOWNLOADS_MAX).any(|_| apt(&["update", "--quiet"]) && apt(&install)) {
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
    if !program.contains('/') {
        let folders = std::env::var_os("PATH").unwrap_or_default();
        return std::env::split_paths(&folders).any(|folder| folder.join(program).exists());
    }
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
        assert!(exists("sh"));
        assert!(!exists("no-such-program"));
    }
}
