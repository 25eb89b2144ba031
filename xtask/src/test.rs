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

/// How much of what a failed test has printed is said again at the end.
const LINES_SAID_AGAIN: usize = 20;

pub(crate) fn run() -> Result<ExitCode, Error> {
    install::missing()?;
    let mut total = Tally::default();
    let mut failures = Failures::default();
    for step in STEPS {
        println!("== {}: cargo {}", step.about, step.cargo.join(" "));
        let tally = run_step(step, &mut failures)?;
        total.add(tally);
    }
    // Once more at the end: thousands of lines later nobody finds them.
    for line in &failures.lines {
        println!("{line}");
    }
    println!("{} passed, {} failed, {} skipped", total.passed, total.failed, total.skipped);
    Ok(if total.failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Runs one step and passes its output on as it comes.
fn run_step(step: &Step, failures: &mut Failures) -> Result<Tally, Error> {
    let mut child = cargo().args(step.cargo).stdout(Stdio::piped()).spawn()?;
    let output = child.stdout.take().ok_or("the step has no output")?;
    let mut tally = Tally::default();
    for line in BufReader::new(output).split(b'\n') {
        let line = line?;
        let mut stdout = std::io::stdout().lock();
        stdout.write_all(&line)?;
        stdout.write_all(b"\n")?;
        if let Counted::TestResults = step.counted {
            let line = String::from_utf8_lossy(&line);
            failures.read(&line);
            if let Some(counts) = Tally::read(&line) {
                tally.add(counts);
            }
        }
    }
    let succeeded = child.wait()?.success();
    match step.counted {
        Counted::AsOne if succeeded => tally.passed += 1,
        // A step that fails without a failed test did not compile, or a test took its whole process down.
        Counted::AsOne | Counted::TestResults if !succeeded && tally.failed == 0 => {
            failures.lines.push(format!("failed: cargo {}", step.cargo.join(" ")));
            tally.failed += 1;
        }
        Counted::AsOne | Counted::TestResults => {}
    }
    Ok(tally)
}

/// What the failed tests have printed, as Rust's test harness tells it: a heading for each, and its output below.
#[derive(Debug, Default)]
struct Failures {
    lines: Vec<String>,
    /// How many lines of the present test's output are still said again.
    left: usize,
}

impl Failures {
    fn read(&mut self, line: &str) {
        let heading = line.strip_prefix("---- ").and_then(|rest| rest.strip_suffix(" ----"));
        if let Some(heading) = heading {
            self.lines.push(format!("failed: {}", heading.trim_end_matches(" stdout")));
            self.left = LINES_SAID_AGAIN;
        } else if line == "failures:" {
            self.left = 0;
        } else if self.left > 0 && !line.is_empty() {
            self.lines.push(format!("    {line}"));
            self.left -= 1;
        }
    }
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
    fn what_failed_is_said_again_and_what_passed_is_not() {
        let mut failures = Failures::default();
        let printed = "test a ... ok\ntest b ... FAILED\n\nfailures:\n\n---- m::b stdout ----\n\nno such file\n\nfailures:\n    m::b\n";
        for line in printed.lines() {
            failures.read(line);
        }
        assert_eq!(failures.lines, ["failed: m::b", "    no such file"]);
        for number in 0..100 {
            failures.read(if number == 0 { "---- c stdout ----" } else { "and so on" });
        }
        assert_eq!(failures.lines.len(), 3 + LINES_SAID_AGAIN);
    }

    #[test]
    fn result_lines_are_counted_and_others_are_not() {
        let line = "test result: FAILED. 3 passed; 2 failed; 1 ignored; 0 measured; 9 filtered out; finished in 0.01s";
        assert_eq!(Tally::read(line), Some(Tally { passed: 3, failed: 2, skipped: 1 }));
        assert_eq!(Tally::read("test result::tests::x ... ok"), None);
        assert_eq!(Tally::read("running 3 tests"), None);
    }
}
