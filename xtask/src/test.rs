//! Does everything hold? Runs every test of the repository and counts them.
//!
//! The steps are the list below. What they need is installed first; whatever server a test needs it starts itself, on
//! a free port and in a temporary folder. A server that cannot be had is a failure, never a silent skip.

use std::io::{BufRead, BufReader, Write};
use std::process::{ExitCode, Stdio};

use crate::{Error, cargo, install};

/// All there is to run, in order.
const STEPS: &[Step] = &[
    Step {
        about: "unit, integration and documentation tests of every crate",
        cargo: &["test", "--workspace", "--all-features", "--no-fail-fast"],
        counted: Counted::TestResults,
    },
    Step {
        about: "simulated histories with faults, judged by the checker",
        cargo: &["run", "--release", "--quiet", "-p", "sim", "--", "run", "--histories", "500000"],
        counted: Counted::AsOne,
    },
    Step {
        about: "simulated histories of the crate that ships, judged by the same checker",
        cargo: &[
            "run",
            "--release",
            "--quiet",
            "-p",
            "sim",
            "--",
            "shipped",
            "--histories",
            "20000",
        ],
        counted: Counted::AsOne,
    },
    Step {
        about: "the museum: every planted fault must be found",
        cargo: &["run", "--release", "--quiet", "-p", "sim", "--", "museum"],
        counted: Counted::AsOne,
    },
];

struct Step {
    about: &'static str,
    /// What cargo is asked to do.
    cargo: &'static [&'static str],
    counted: Counted,
}

/// How a step tells what passed.
enum Counted {
    /// By the `test result:` lines of Rust's test harness.
    TestResults,
    /// As one test, by its exit.
    AsOne,
}

#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
struct Tally {
    passed: u64,
    failed: u64,
    skipped: u64,
}

pub(crate) fn run() -> Result<ExitCode, Error> {
    install::missing()?;
    let mut total = Tally::default();
    for step in STEPS {
        println!("== {}: cargo {}", step.about, step.cargo.join(" "));
        let tally = run_step(step)?;
        total.add(tally);
    }
    println!("{} passed, {} failed, {} skipped", total.passed, total.failed, total.skipped);
    Ok(if total.failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Runs one step and passes its output on as it comes.
fn run_step(step: &Step) -> Result<Tally, Error> {
    let mut child = cargo().args(step.cargo).stdout(Stdio::piped()).spawn()?;
    let output = child.stdout.take().ok_or("the step has no output")?;
    let mut tally = Tally::default();
    for line in BufReader::new(output).split(b'\n') {
        let line = line?;
        let mut stdout = std::io::stdout().lock();
        stdout.write_all(&line)?;
        stdout.write_all(b"\n")?;
        if let Counted::TestResults = step.counted
            && let Some(counts) = Tally::read(&String::from_utf8_lossy(&line))
        {
            tally.add(counts);
        }
    }
    let succeeded = child.wait()?.success();
    match step.counted {
        Counted::AsOne if succeeded => tally.passed += 1,
        // A step that fails without a failed test did not compile, or a test took its whole process down.
        Counted::AsOne | Counted::TestResults if !succeeded && tally.failed == 0 => {
            tally.failed += 1;
        }
        Counted::AsOne | Counted::TestResults => {}
    }
    Ok(tally)
}

impl Tally {
    fn add(&mut self, other: Self) {
        self.passed += other.passed;
        self.failed += other.failed;
        self.skipped += other.skipped;
    }

    /// Reads a line such as `test result: ok. 3 passed; 0 failed; 1 ignored; 0 measured; …`.
    fn read(line: &str) -> Option<Self> {
        let (_, counts) = line.trim().strip_prefix("test result: ")?.split_once(". ")?;
        let mut tally = Self::default();
        for count in counts.split("; ") {
            let (number, what) = count.split_once(' ')?;
            match what {
                "passed" => tally.passed = number.parse().ok()?,
                "failed" => tally.failed = number.parse().ok()?,
                "ignored" => tally.skipped = number.parse().ok()?,
                _ => {}
            }
        }
        Some(tally)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn result_lines_are_counted_and_others_are_not() {
        let line = "test result: FAILED. 3 passed; 2 failed; 1 ignored; 0 measured; 9 filtered out; finished in 0.01s";
        assert_eq!(Tally::read(line), Some(Tally { passed: 3, failed: 2, skipped: 1 }));
        assert_eq!(Tally::read("test result::tests::x ... ok"), None);
        assert_eq!(Tally::read("running 3 tests"), None);
    }
}
