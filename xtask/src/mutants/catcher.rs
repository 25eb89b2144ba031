//! What must fail when a mutant is planted, and how is it run?

use std::fs::{self, File};
use std::os::unix::process::CommandExt as _;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use super::plant::Workshop;
use crate::Error;

/// How long a test may run. Each takes seconds on healthy code.
const TEST_MAX: Duration = Duration::from_secs(120);

/// How long a simulator may run. It plays thousands of histories if nothing is found.
const SIMULATOR_MAX: Duration = Duration::from_secs(600);

/// A test that does not end with a mutant must end within this part of its time without one. Else the machine is slow, and the
/// mutant is innocent.
const HEALTHY_SHARE: u32 = 4;

/// The simulators. The program `retrysafe`, which only the histories of gateways need, is not compiled with every mutant.
const SIMULATORS: &[&str] = &["-p", "sim", "--no-default-features"];

/// The simulators with the histories of gateways.
const GATEWAYS_TOO: &[&str] = &["-p", "sim"];

/// How often a running catcher is looked at.
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// What must fail when a mutant is planted.
pub(crate) enum Catcher {
    /// The simulator of shipped code, within so many histories.
    Shipped(&'static str),
    /// The same with the histories of gateways.
    Gateway(&'static str),
    /// The simulator of the rules, within so many histories.
    Fast(&'static str),
    /// A test: what `cargo test` is told, and a part of the test's name.
    Test(&'static [&'static str], &'static str),
}

/// Which catchers share a copy of the repository. Two kinds run side by side, because a build seldom keeps two cores busy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Lane {
    Simulators,
    Tests,
}

/// What a catcher said.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Said {
    Nothing,
    Caught,
    /// It failed without a word about what it caught.
    FailedOtherwise,
    NoEnd,
}

impl Lane {
    pub(super) const ALL: [Self; 2] = [Self::Simulators, Self::Tests];

    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Simulators => "simulators",
            Self::Tests => "tests",
        }
    }
}

impl Catcher {
    pub(super) const fn lane(&self) -> Lane {
        match self {
            Self::Shipped(_) | Self::Gateway(_) | Self::Fast(_) => Lane::Simulators,
            Self::Test(..) => Lane::Tests,
        }
    }

    /// Builds what catches, so that a mutant which does not compile is told from one that is caught. True if it was built.
    pub(super) fn build(&self, workshop: &Workshop) -> Result<bool, Error> {
        let mut cargo = match self {
            Self::Shipped(_) | Self::Fast(_) | Self::Gateway(_) => self.cargo(workshop, "build"),
            Self::Test(..) => {
                let mut cargo = self.cargo(workshop, "test");
                cargo.arg("--no-run");
                cargo
            }
        };
        cargo.args(self.target());
        let said = File::create(workshop.said("build"))?;
        Ok(cargo.stdout(Stdio::null()).stderr(said).status()?.success())
    }

    /// Runs what was built.
    pub(super) fn run(&self, workshop: &Workshop) -> Result<Said, Error> {
        let said = workshop.said("run");
        let mut command = self.command(workshop);
        command.stdout(File::create(&said)?).stderr(Stdio::null()).process_group(0);
        let Some(ended) = end_within(self.longest(), command.spawn()?)? else {
            return Ok(Said::NoEnd);
        };
        if ended.success() {
            return Ok(Said::Nothing);
        }
        let is_caught = self.is_in(&fs::read_to_string(&said)?);
        Ok(if is_caught { Said::Caught } else { Said::FailedOtherwise })
    }

    /// Whether it ends quickly on healthy code, on this machine and just now.
    pub(super) fn ends_quickly(&self, workshop: &Workshop) -> Result<bool, Error> {
        let mut command = self.command(workshop);
        command.stdout(Stdio::null()).stderr(Stdio::null()).process_group(0);
        let longest = self.longest() / HEALTHY_SHARE;
        Ok(end_within(longest, command.spawn()?)?.is_some_and(|ended| ended.success()))
    }

    fn command(&self, workshop: &Workshop) -> Command {
        match self {
            Self::Shipped(histories) | Self::Gateway(histories) => {
                self.simulator(workshop, "shipped", histories)
            }
            Self::Fast(histories) => self.simulator(workshop, "run", histories),
            Self::Test(arguments, name) => {
                let mut cargo = self.cargo(workshop, "test");
                cargo.args(*arguments).arg(name);
                cargo
            }
        }
    }

    /// What is compiled.
    const fn target(&self) -> &'static [&'static str] {
        match self {
            Self::Shipped(_) | Self::Fast(_) => SIMULATORS,
            Self::Gateway(_) => GATEWAYS_TOO,
            Self::Test(arguments, _) => arguments,
        }
    }

    fn simulator(&self, workshop: &Workshop, which: &str, histories: &str) -> Command {
        let mut cargo = self.cargo(workshop, "run");
        cargo.args(self.target()).args(["--", which, "--first", "--histories", histories]);
        cargo
    }

    fn cargo(&self, workshop: &Workshop, command: &str) -> Command {
        let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
        let Workshop { folder, target } = workshop;
        cargo.current_dir(folder).env("CARGO_TARGET_DIR", target).stdin(Stdio::null());
        // Every mutant is compiled, and most are caught at once.
        cargo.args([command, "--quiet"]).args(["--config", "profile.dev.debug=false"]);
        for package in ["retrysafe-core", "retrysafe", "retrysafe-cli", "sim"] {
            let level = self.optimised();
            cargo.args(["--config", &format!("profile.dev.package.{package}.opt-level={level}")]);
        }
        cargo
    }

    /// How much our own crates are optimised. A simulator runs for as long as it is built; a test does not.
    const fn optimised(&self) -> u32 {
        match self.lane() {
            Lane::Simulators => 1,
            Lane::Tests => 0,
        }
    }

    const fn longest(&self) -> Duration {
        match self.lane() {
            Lane::Simulators => SIMULATOR_MAX,
            Lane::Tests => TEST_MAX,
        }
    }

    /// Whether the output of a failure says that something was caught. Else it did not even run.
    fn is_in(&self, output: &str) -> bool {
        output.contains(match self.lane() {
            Lane::Simulators => " breaks ",
            Lane::Tests => "test result: FAILED",
        })
    }

    pub(super) fn says(&self) -> String {
        match self {
            Self::Shipped(histories) => format!("`sim shipped`, {histories} histories"),
            Self::Gateway(histories) => {
                format!("`sim shipped` with gateways, {histories} histories")
            }
            Self::Fast(histories) => format!("`sim run`, {histories} histories"),
            Self::Test(_, name) => format!("test `{name}`"),
        }
    }
}

/// Waits for a process, and ends it with its children if it takes too long.
fn end_within(longest: Duration, mut child: Child) -> Result<Option<ExitStatus>, Error> {
    let deadline = Instant::now() + longest;
    while Instant::now() < deadline {
        if let Some(ended) = child.try_wait()? {
            return Ok(Some(ended));
        }
        std::thread::sleep(LOOK_EVERY);
    }
    Command::new("kill").args(["-KILL", "--", &format!("-{}", child.id())]).status()?;
    child.wait()?;
    Ok(None)
}
