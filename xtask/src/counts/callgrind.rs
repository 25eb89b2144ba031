//! What does callgrind say about a run?
//!
//! Its output lists, for each function, what it did by itself (a line of counts for each of its source lines) and whom it
//! calls how often (`calls=`, and a line of counts that the callee is answerable for). Names are given once, with a number
//! that stands for them afterwards.
//!
//! Two things are different under valgrind, and are corrected. It knows no instructions for SHA-256, so digests are computed
//! in software and would hide everything else: their instructions are left out, and the digests counted. And it has no
//! vDSO, so to read the clock is a system call: such calls are left out.

use std::collections::HashMap;
use std::path::Path;
use std::process::Command;

use crate::Error;

/// What is counted, by name.
pub(super) const COUNTED: [&str; 4] = ["instructions", "allocations", "system calls", "digests"];

/// What one run did, from its start to its end, in the order of [`COUNTED`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Totals([u64; 4]);

/// What one request does, in the order of [`COUNTED`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct PerRequest(pub [f64; 4]);

/// Functions that matter by themselves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Role {
    /// The way by which Rust asks its allocator for memory, whichever allocator that is.
    Allocator,
    /// Reads the clock.
    Clock,
    /// Computes blocks of SHA-256.
    Digest,
    /// Does the same in software.
    SoftwareDigest,
    Other,
}

/// A program under callgrind, which writes its counts to `out` when it ends. Threads take turns, so that none of them
/// waits for long and every run is much like the others.
pub(super) fn command(program: &Path, out: &Path) -> Command {
    let mut command = Command::new("valgrind");
    command.args(["--tool=callgrind", "--quiet", "--collect-systime=yes", "--fair-sched=yes"]);
    command.arg(format!("--callgrind-out-file={}", out.display())).arg(program);
    command
}

impl Role {
    fn of(name: &str) -> Self {
        let allocators = ["__rust_alloc", "__rust_alloc_zeroed", "__rust_realloc"];
        if allocators.iter().any(|end| name.ends_with(end)) {
            Self::Allocator
        } else if name.starts_with("clock_gettime") {
            Self::Clock
        } else if name.starts_with("sha2::sha256::compress") {
            Self::Digest
        } else if name.starts_with("sha2::sha256::soft") {
            Self::SoftwareDigest
        } else {
            Self::Other
        }
    }
}

impl Totals {
    /// Reads the file that callgrind has written.
    pub(super) fn read(out: &Path) -> Result<Self, Error> {
        let text = std::fs::read(out)?;
        Self::parse(&String::from_utf8_lossy(&text))
    }

    fn parse(text: &str) -> Result<Self, Error> {
        let mut roles = HashMap::new();
        let (mut function, mut callee, mut is_call) = (Role::Other, Role::Other, false);
        let (mut allocations, mut readings, mut digests, mut software) = (0, 0, 0, 0);
        let mut totals = None;
        for line in text.lines() {
            if let Some(named) = line.strip_prefix("fn=") {
                function = role_of(named, &mut roles);
            } else if let Some(named) = line.strip_prefix("cfn=") {
                callee = role_of(named, &mut roles);
            } else if let Some(calls) = line.strip_prefix("calls=") {
                let count: u64 = field(calls, 0)?;
                match callee {
                    Role::Allocator => allocations += count,
                    Role::Clock => readings += count,
                    Role::Digest => digests += count,
                    Role::SoftwareDigest | Role::Other => {}
                }
                is_call = true;
            } else if let Some(counts) = line.strip_prefix("totals: ") {
                totals = Some((field(counts, 0)?, field(counts, 1)?));
            } else if line
                .starts_with(|first: char| first.is_ascii_digit() || "+-*".contains(first))
            {
                if function == Role::SoftwareDigest && !is_call {
                    software += field(line, 1)?;
                }
                is_call = false;
            } else if line.starts_with("events: ") && !line.starts_with("events: Ir sysCount") {
                return Err(format!("other events than were asked for: {line}").into());
            }
        }
        let (instructions, calls) = totals.ok_or("callgrind has not written its totals")?;
        Ok(Self([instructions - software, allocations, calls - readings, digests]))
    }

    /// What each of the requests did that one run had more than another.
    pub(super) fn per_request(fewer: &Self, more: &Self, requests: u64) -> PerRequest {
        let each = |at: usize| {
            let of = |totals: &Self| totals.0.get(at).copied().unwrap_or_default();
            of(more).saturating_sub(of(fewer)) as f64 / requests as f64
        };
        PerRequest(std::array::from_fn(each))
    }
}

/// What a function is that is given as `(7) name`, or as `(7)` where it was named before.
fn role_of<'a>(named: &'a str, roles: &mut HashMap<&'a str, Role>) -> Role {
    match named.split_once(' ') {
        Some((number, name)) => *roles.entry(number).or_insert(Role::of(name)),
        None => roles.get(named).copied().unwrap_or(Role::Other),
    }
}

fn field(line: &str, at: usize) -> Result<u64, Error> {
    Ok(line.split_whitespace().nth(at).ok_or("a line of callgrind's is too short")?.parse()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    const OUT: &str = "version: 1\nevents: Ir sysCount sysTime\n\nfn=(1) main\n16 10 0 0\n\
        cfn=(9) clock_gettime@@GLIBC_2.17\ncalls=6 0\n1 1 1 1\n\
        cfn=(2) __rustc::__rust_alloc\ncalls=7 0\n16 70 0 0\ncfn=(3) __rust_alloc_error_handler\ncalls=9 0\n\
        16 1 0 0\nfn=(2)\n1 70 0 0\ncob=(1)\ncfn=(4) mi_malloc\ncalls=7 0\n2 2 2 2\nfn=(5) other\ncfn=(2)\ncalls=3 0\n\
        1 1 1 1\ncfn=(6) sha2::sha256::compress256\ncalls=4 0\n1 999 0 0\nfn=(6)\n+3 4 0 0\n\
        cfn=(7) sha2::sha256::soft::compress\ncalls=4 0\n1 200 0 0\nfn=(7)\n1 150 0 0\n* 50 0 0\ntotals: 1234 56 7\n";

    #[test]
    fn what_valgrind_adds_is_left_out_and_the_rest_is_read() {
        assert_eq!(Totals::parse(OUT).unwrap(), Totals([1_034, 10, 50, 4]));
        assert!(Totals::parse("events: Ir sysCount sysTime\n").is_err());
        assert!(Totals::parse("events: Ir Dr\ntotals: 1 2\n").is_err());
    }

    #[test]
    fn what_both_runs_did_cancels_out() {
        let (fewer, more) = (Totals([1_000, 50, 7, 1]), Totals([3_000, 90, 11, 5]));
        assert_eq!(Totals::per_request(&fewer, &more, 4), PerRequest([500.0, 10.0, 1.0, 1.0]));
    }
}
