//! How is a running program counted? Under callgrind, which sees every instruction, and under strace.

use std::collections::{BTreeMap, HashMap};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::local::{Folder, Running, free_address, run as must_run};
use crate::{Error, cargo, root};

/// Functions of the allocator that hand out memory.
const ALLOCATES: [&str; 3] = ["__rust_alloc", "__rust_realloc", "__rust_alloc_zeroed"];

/// One thread, so that a request's way does not depend on who is free.
const SETTINGS: &str = "threads = 1\n";

/// What counts.
#[derive(Clone, Copy, Debug)]
pub(super) enum Tool {
    Callgrind,
    Strace,
}

impl Tool {
    /// Runs the gateway under this tool while it serves a load, and gives what was counted, by unit.
    pub(super) fn run(
        self,
        program: &Path,
        folder: &Folder,
        upstream: SocketAddr,
        load: impl FnOnce(SocketAddr) -> Result<(), Error>,
    ) -> Result<BTreeMap<&'static str, f64>, Error> {
        let counted = folder.path().join("counted");
        let config = folder.path().join("retrysafe.toml");
        std::fs::write(&config, SETTINGS)?;
        let mut command = match self {
            Self::Callgrind => {
                let mut valgrind = Command::new("valgrind");
                valgrind.args(["--tool=callgrind", "--quiet"]);
                valgrind.arg(format!("--callgrind-out-file={}", counted.display()));
                valgrind
            }
            // As a child of the program, so that the program keeps its own number.
            Self::Strace => {
                let mut strace = Command::new("strace");
                strace.args(["-D", "-f", "-c", "-o"]).arg(&counted);
                strace
            }
        };
        let gateway = free_address()?;
        command
            .arg(program)
            .args(["serve", "--config"])
            .arg(&config)
            .args(["--listen", &gateway.to_string(), "--upstream", &format!("http://{upstream}")])
            .arg("--store")
            .arg(format!("disk:{}", folder.path().join("data").display()))
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        let running = Running::start(&mut command, gateway).map_err(|error| {
            format!("{error}; is the tool installed? (apt-get install valgrind strace)")
        })?;
        load(gateway)?;
        running.stop()?;
        let text = read_when_written(&counted)?;
        match self {
            Self::Callgrind => callgrind(&text),
            Self::Strace => strace(&text),
        }
        .ok_or_else(|| format!("{self:?} wrote what cannot be read: {}", counted.display()).into())
    }
}

/// A tool that is the program's child writes after the program has ended.
fn read_when_written(path: &Path) -> Result<String, Error> {
    let begun = std::time::Instant::now();
    loop {
        match std::fs::read_to_string(path) {
            Ok(text) if text.contains("totals:") || text.trim_end().ends_with("total") => {
                return Ok(text);
            }
            Ok(_) | Err(_) if begun.elapsed().as_secs() > 20 => {
                return Err(format!("nothing was written to {}", path.display()).into());
            }
            Ok(_) | Err(_) => std::thread::sleep(std::time::Duration::from_millis(20)),
        }
    }
}

/// Instructions and allocations, from the format that callgrind writes.
fn callgrind(text: &str) -> Option<BTreeMap<&'static str, f64>> {
    let total = text.lines().find_map(|line| line.strip_prefix("totals: "))?;
    // A function's name stands at its first mention only; later there is its number alone.
    let mut names: HashMap<&str, bool> = HashMap::new();
    let mut is_allocation = false;
    let mut allocations = 0.0;
    for line in text.lines() {
        let named = line.strip_prefix("cfn=").or_else(|| line.strip_prefix("fn="));
        if let Some((number, name)) = named.and_then(|named| named.split_once(')')) {
            if !name.is_empty() {
                let name = name.trim();
                let allocates = ALLOCATES.iter().any(|allocates| name.ends_with(allocates));
                names.insert(number, allocates);
            }
            is_allocation = line.starts_with("cfn=") && names.get(number).copied().unwrap_or(false);
        } else if let Some(calls) = line.strip_prefix("calls=")
            && is_allocation
        {
            allocations += calls.split_whitespace().next()?.parse::<f64>().ok()?;
        }
    }
    Some(BTreeMap::from([
        ("instructions", total.trim().parse().ok()?),
        ("allocations", allocations),
    ]))
}

/// System calls, from the last line of strace's summary.
fn strace(text: &str) -> Option<BTreeMap<&'static str, f64>> {
    let total = text.lines().rev().find(|line| line.trim_end().ends_with("total"))?;
    let calls = total.split_whitespace().nth(3)?.parse().ok()?;
    Some(BTreeMap::from([("system_calls", calls)]))
}

/// Builds the program as it is released, and says where it is.
pub(super) fn program() -> Result<PathBuf, Error> {
    must_run(cargo().args(["build", "--release", "--quiet", "-p", "retrysafe-cli"]))?;
    let target = std::env::var_os("CARGO_TARGET_DIR");
    let target = target.map_or_else(|| root().join("target"), PathBuf::from);
    Ok(target.join("release/retrysafe"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_tools_write_is_read() {
        let text = "fn=(1) main\n0 5\ncfn=(2) __rustc::__rust_alloc\ncalls=3 0\n0 9\nfn=(3) f\ncfn=(2)\ncalls=4 0\n0 1\n\
                    cfn=(4) free\ncalls=9 0\ntotals: 1234\n";
        let counted = callgrind(text).unwrap();
        assert_eq!((counted["instructions"], counted["allocations"]), (1234.0, 7.0));
        let summary = "% time     seconds  usecs/call     calls    errors syscall\n 50.00    0.1    1   10    1 read\n\
                       ------\n100.00    0.2         3        42         7 total\n";
        assert_eq!(strace(summary).unwrap()["system_calls"], 42.0);
    }
}
