//! Which programs are counted?

use std::path::PathBuf;

use crate::{Error, cargo};

/// What is run under callgrind.
pub(super) struct Programs {
    /// The loads of the layer and of the disk store.
    pub counted: PathBuf,
    /// The program `retrysafe`.
    pub gateway: PathBuf,
}

impl Programs {
    /// The programs that the tests run, so that nothing is built for the counts alone.
    pub(super) fn as_tested() -> Result<Self, Error> {
        Self::build(&["test", "--workspace", "--all-features", "--no-run"])
    }

    /// The same, optimised. Built in one go, so that they share what they are made of.
    pub(super) fn optimised() -> Result<Self, Error> {
        Self::build(&["build", "--release", "-p", "counted", "-p", "retrysafe-cli"])
    }

    fn build(arguments: &[&str]) -> Result<Self, Error> {
        let mut build = cargo();
        build.args(arguments).args(["--quiet", "--message-format=json"]);
        let output = build.stderr(std::process::Stdio::inherit()).output()?;
        let lines = String::from_utf8(output.stdout)?;
        let built: Vec<PathBuf> = lines.lines().filter_map(executable).collect();
        let find = |name: &str| {
            let found = built.iter().find(|path| path.file_name().is_some_and(|file| file == name));
            found.cloned().ok_or_else(|| format!("{name} was not built"))
        };
        Ok(Self { counted: find("counted")?, gateway: find("retrysafe")? })
    }
}

/// The path of a program that cargo says it has built.
fn executable(line: &str) -> Option<PathBuf> {
    let message: serde_json::Value = serde_json::from_str(line).ok()?;
    message.get("executable")?.as_str().map(PathBuf::from)
}
