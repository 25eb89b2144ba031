//! How does a newcomer get a `retrysafe.toml`?
//!
//! By answering three questions on a terminal, or by flags. What is written has been checked as `config check` checks it. Nothing
//! is written before the last question is answered, so whoever leaves in the middle leaves nothing behind.

mod draft;
mod questions;

use std::fs::{File, OpenOptions};
use std::io::{self, IsTerminal as _, Write as _};
use std::path::{Path, PathBuf};

use clap::Args;

use crate::Failure;
use crate::config::CONFIG_FILE;
use crate::output;
use draft::{Callers, Draft};

/// What the first configuration shall say.
#[derive(Debug, Args)]
pub(crate) struct Init {
    /// Your API, such as http://127.0.0.1:3000. With this flag nothing is asked.
    #[arg(long, value_name = "URL")]
    upstream: Option<String>,
    /// How callers are told apart: `credential`, `header:NAME`, `cookie:NAME`, `jwt:CLAIM` or `anyone`
    /// [default: credential].
    #[arg(long, value_name = "WHO")]
    callers: Option<Callers>,
    /// With `--callers jwt:CLAIM`: where the issuer of the tokens publishes its keys.
    #[arg(long, value_name = "URL")]
    jwks_url: Option<String>,
    /// A path whose requests must have a key, such as /payments or '/orders/{*rest}'. May be given several times.
    #[arg(long = "route", value_name = "PATH")]
    routes: Vec<String>,
    /// The file to write.
    #[arg(long, short, value_name = "FILE", default_value = CONFIG_FILE)]
    output: PathBuf,
    /// Replace the file if there is one.
    #[arg(long)]
    force: bool,
}

impl Init {
    /// Writes the file.
    ///
    /// # Errors
    ///
    /// What is wrong with an answer, or with the file. Nothing is written then.
    pub(crate) fn run(self) -> Result<(), Failure> {
        // Before anything is asked: nobody likes to answer in vain.
        self.may_write()?;
        let Self { upstream, callers, jwks_url, routes, output, force } = self;
        let draft = match upstream {
            Some(upstream) => {
                let callers = callers.unwrap_or(Callers::Credential);
                Draft { upstream, callers, jwks_url, routes }
            }
            None if io::stdin().is_terminal() => questions::ask(callers, jwks_url, routes)?,
            None => {
                return Err(
                    "there is no terminal to ask on: say --upstream URL, such as --upstream \
                     http://127.0.0.1:3000 (and --callers, --route; see `retrysafe init --help`)"
                        .into(),
                );
            }
        };
        let wrong = draft.complaints();
        if !wrong.is_empty() {
            return Err(wrong.join("\n").into());
        }
        let text = draft.text();
        let written = if force { replace(&output, &text) } else { create(&output, &text) };
        written.map_err(|error| not_written(&output, &error))?;
        let at = output.display();
        let is_usual = output == Path::new(CONFIG_FILE);
        let flag = if is_usual { String::new() } else { format!(" --config {at}") };
        output::say(&format!(
            "{at} is written; its comments explain each line. Now:\n\n  \
             retrysafe config check{flag}\n  retrysafe serve{flag}"
        ));
        Ok(())
    }

    /// Whether the file could be written, as far as that can be told before it is.
    fn may_write(&self) -> Result<(), String> {
        let Self { output, force, .. } = self;
        let at = output.display();
        if output.as_os_str().as_encoded_bytes().contains(&b'\\') {
            return Err(format!(
                "--output: {at} has a backslash, which would be part of the file's name; write / between folders"
            ));
        }
        if output.is_dir() {
            return Err(format!("--output: {at} is a folder; name a file in it"));
        }
        // A link that leads nowhere is something too.
        if output.symlink_metadata().is_ok() && !force {
            return Err(format!(
                "{at} exists, and it is not touched; say --force to replace it, or --output FILE"
            ));
        }
        Ok(())
    }
}

/// Writes a file that is not there yet. Whoever makes it meanwhile wins.
fn create(path: &Path, text: &str) -> io::Result<()> {
    let file = OpenOptions::new().write(true).create_new(true).open(path)?;
    fill(file, text).inspect_err(|_| drop(std::fs::remove_file(path)))
}

/// Puts a whole file in the place of another one, so that a crash leaves the old one or the new one.
fn replace(path: &Path, text: &str) -> io::Result<()> {
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(format!(".{}.new", std::process::id()));
    let new = path.with_file_name(name);
    create(&new, text)?;
    std::fs::rename(&new, path).inspect_err(|_| drop(std::fs::remove_file(&new)))
}

fn fill(mut file: File, text: &str) -> io::Result<()> {
    file.write_all(text.as_bytes())?;
    file.sync_all()
}

fn not_written(path: &Path, error: &io::Error) -> String {
    let at = path.display();
    let cures = [
        (io::ErrorKind::AlreadyExists, "it exists, and is not touched"),
        (io::ErrorKind::NotFound, "there is no such folder; make it first"),
        (
            io::ErrorKind::PermissionDenied,
            "permission denied; go to a folder that you may write to, or say --output FILE",
        ),
        (
            io::ErrorKind::ReadOnlyFilesystem,
            "the folder cannot be written to; go to another one, or say --output FILE",
        ),
    ];
    let cure = cures.iter().find(|(kind, _)| *kind == error.kind());
    let why = cure.map_or_else(|| error.to_string(), |(_, cure)| (*cure).to_owned());
    format!("cannot write {at}: {why}")
}
