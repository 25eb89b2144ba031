//! Does an API keep the promise of its Idempotency-Key? A checker for anybody's HTTP API.
//!
//! It knows nothing about what is behind the URL: it sends a request of the user's own, again and
//! again, in the ways in which clients really repeat requests, and judges the answers. What it will
//! send is told first, and nothing is sent without `--yes` or a word from the user.
//!
//! [`request`] is what to send, [`probe`] sends it, [`cases`] judges, [`report`] tells.

mod cases;
mod openapi;
pub(crate) mod probe;
mod report;
pub(crate) mod request;

use std::io::{BufRead as _, IsTerminal as _};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::Args;

use probe::Probe;
use request::Template;

use crate::output::{complain, say};

/// Checks the Idempotency-Key of any HTTP API, from outside.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Check {
    /// The operation to check, such as http://127.0.0.1:8080/payments
    url: Option<String>,
    /// Read the requests from a file (see docs/check.md)
    #[arg(long, value_name = "FILE", conflicts_with = "url")]
    template: Option<PathBuf>,
    /// The method of the operation
    #[arg(long, short = 'X', default_value = "POST")]
    method: String,
    /// The header that holds the key
    #[arg(long, value_name = "NAME", value_parser = request::header_name, default_value = "Idempotency-Key")]
    key_header: http::HeaderName,
    /// A header of every request, such as 'Authorization: Bearer a'
    #[arg(long, short = 'H', value_name = "NAME: VALUE")]
    header: Vec<String>,
    /// The body; {{uuid}}, {{int}} and {{now}} are filled in once per logical request; @FILE reads it
    #[arg(
        long,
        short = 'd',
        value_name = "TEXT",
        default_value = r#"{"check":"{{uuid}}","amount":{{int}}}"#
    )]
    body: String,
    /// A header that makes it another caller's request; enables the isolation check
    #[arg(long, value_name = "NAME: VALUE")]
    second_caller: Vec<String>,
    /// The path of another covered operation that takes the same body
    #[arg(long, value_name = "PATH")]
    other_path: Option<String>,
    /// A header with which the operation takes a second or more
    #[arg(long, value_name = "NAME: VALUE")]
    slow: Vec<String>,
    /// A header or a body with which the operation answers 4xx
    #[arg(long, value_name = "BODY")]
    client_error: Option<String>,
    /// A header with which the operation answers 5xx on the first execution and succeeds on the next
    #[arg(long, value_name = "NAME: VALUE")]
    server_error: Vec<String>,
    /// A path whose JSON array lists what the operation creates, so that effects can be counted
    #[arg(long, value_name = "PATH")]
    list: Option<String>,
    /// Where in that JSON the array is, as a JSON pointer such as /data; the whole answer unless it is set
    #[arg(long, value_name = "POINTER", default_value = "")]
    list_pointer: String,
    /// A header of the same caller after its credential was refreshed, such as 'Authorization: Bearer new'
    #[arg(long, value_name = "NAME: VALUE")]
    refreshed_credential: Vec<String>,
    /// The same operation at another node of the API
    #[arg(long, value_name = "URL")]
    second_url: Option<String>,
    /// How long the API says that it remembers a key, such as 5s; the check waits for its end
    #[arg(long, value_name = "LENGTH", value_parser = request::ttl)]
    ttl: Option<Duration>,
    /// A shell command that kills the API and starts it again; it runs twice
    #[arg(long, value_name = "COMMAND")]
    restart_command: Option<String>,
    /// How many duplicates are sent at once
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u16).range(2..=100))]
    parallel: u16,
    /// The most requests per second, apart from the duplicates that must be simultaneous
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u16).range(1..=1000))]
    rate: u16,
    /// How long an answer may take, in seconds
    #[arg(long, default_value_t = 15)]
    timeout: u64,
    /// Report on every state-changing operation of an OpenAPI document (JSON) instead
    #[arg(long, value_name = "FILE")]
    openapi: Option<PathBuf>,
    /// Show what would be sent, and send nothing
    #[arg(long)]
    dry_run: bool,
    /// Do not ask before sending
    #[arg(long, short = 'y')]
    yes: bool,
    /// Print the report as JSON
    #[arg(long)]
    json: bool,
    /// Write the report as Markdown to a file as well
    #[arg(long, value_name = "FILE")]
    markdown: Option<PathBuf>,
}

const EXAMPLES: &str = "Examples:
  retrysafe check http://127.0.0.1:8080/payments --yes -H 'Authorization: Bearer me'
  retrysafe check https://api.test/charges -H 'Authorization: Bearer sk_test' \\
      --second-caller 'Authorization: Bearer sk_other' --list /charges --list-pointer /data
  retrysafe check http://127.0.0.1:8080 --openapi api.json --dry-run

Exit code: 0 no fault found, 1 a fault was found, 2 the check could not be made.";

/// Why a check could not be made.
#[derive(Debug)]
pub(crate) struct CannotCheck(pub(crate) String);

impl std::fmt::Display for CannotCheck {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl Check {
    /// Runs the check and says how the program ends.
    pub(crate) async fn run(self) -> ExitCode {
        match self.checked().await {
            Ok(code) => code,
            Err(CannotCheck(why)) => {
                complain(&format!("retrysafe check: {why}"));
                ExitCode::from(2)
            }
        }
    }

    async fn checked(self) -> Result<ExitCode, CannotCheck> {
        let template = self.template()?;
        let probe = Probe::new(Duration::from_secs(self.timeout.max(1)), self.rate);
        if let Some(file) = &self.openapi {
            let operations = crate::openapi::operations(file).map_err(CannotCheck)?;
            let plan = openapi::plan(&operations, &template);
            if !self.may_send(&plan)? {
                return Ok(ExitCode::SUCCESS);
            }
            let covered = openapi::enumerate(&operations, &template, &probe).await;
            let exit = openapi::print(&covered, self.json);
            return Ok(exit);
        }
        let plan = cases::plan(&template, self.parallel);
        if !self.may_send(&plan)? {
            return Ok(ExitCode::SUCCESS);
        }
        let report = cases::run(&template, &probe, self.parallel, !self.json).await?;
        if let Some(file) = &self.markdown {
            std::fs::write(file, report.markdown())
                .map_err(|error| CannotCheck(format!("{}: {error}", file.display())))?;
        }
        if self.json {
            say(&report.json());
        } else {
            say(report.text().trim_end());
        }
        Ok(if report.has_fault() { ExitCode::from(1) } else { ExitCode::SUCCESS })
    }

    fn template(&self) -> Result<Template, CannotCheck> {
        match (&self.template, &self.url) {
            (Some(file), _) => Template::read(file),
            (None, None) => {
                Err(CannotCheck("name the operation's URL, or a file with --template".into()))
            }
            (None, Some(url)) => {
                let mut template = Template::new(url, &self.method, &self.body)?;
                template.key_header = self.key_header.clone();
                template.headers.extend(request::headers(&self.header)?);
                template.second_caller = request::headers(&self.second_caller)?;
                template.slow = request::headers(&self.slow)?;
                template.server_error = request::headers(&self.server_error)?;
                template.client_error = self.client_error.clone();
                template.other_path = self.other_path.clone();
                template.list = self.list.clone();
                template.list_pointer = self.list_pointer.clone();
                template.refreshed_credential = request::headers(&self.refreshed_credential)?;
                let second_url = self.second_url.as_deref();
                template.second_url = second_url.map(request::http_url).transpose()?;
                template.ttl = self.ttl;
                template.restart_command = self.restart_command.clone();
                Ok(template)
            }
        }
    }

    /// Tells what will be sent, and asks unless that was answered on the command line.
    fn may_send(&self, plan: &str) -> Result<bool, CannotCheck> {
        // A report in JSON has standard output for itself.
        if self.dry_run || !self.json {
            say(plan.trim_end());
        }
        if self.dry_run {
            return Ok(false);
        }
        if self.yes {
            return Ok(true);
        }
        if !std::io::stdin().is_terminal() {
            return Err(CannotCheck("nobody to ask whether to send this: say --yes".into()));
        }
        complain("Send these requests? [y/N]");
        let mut word = String::new();
        let _ = std::io::stdin().lock().read_line(&mut word);
        Ok(matches!(word.trim(), "y" | "Y" | "yes"))
    }
}
