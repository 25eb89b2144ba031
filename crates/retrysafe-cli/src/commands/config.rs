//! What do `config check`, `print` and `schema` do?

use std::collections::BTreeMap;
use std::process::ExitCode;

use super::audit::{Audit, audit};
use crate::Failure;
use crate::args::ConfigCommand;
use crate::config::{self, Complaint, File, Loaded};
use crate::gateway;
use crate::gateway::live::Live;
use crate::output;
use crate::worker;

/// The exit code of a configuration that is valid and leaves operations of the API unguarded.
const UNGUARDED: u8 = 3;

/// Does it.
///
/// # Errors
///
/// Everything that is wrong with the configuration.
pub(crate) fn run(
    command: ConfigCommand,
    variables: &BTreeMap<String, String>,
) -> Result<ExitCode, Failure> {
    match command {
        ConfigCommand::Check { configured, openapi } => {
            let Loaded { config, file, warnings, .. } =
                config::load(&configured.flags(), variables, try_files)?;
            for warning in warnings {
                output::complain(&format!("warning: {warning}"));
            }
            let routes = config.routes.len();
            let audit = openapi.map(|document| audit(&config, &document)).transpose()?;
            // Whatever a start needs beside the files, such as the system's authorities.
            Live::new(config, None)?;
            let file = file.map_or_else(
                || "no file, flags and variables alone".into(),
                |file| file.display().to_string(),
            );
            let routes = output::counted(routes, "route", "routes");
            output::say(&format!("valid: {routes} and the defaults ({file})"));
            if let Some(Audit { operations, unguarded }) = audit {
                let what = "operations that change something are not guarded";
                output::say(&format!("{unguarded} of {operations} {what}"));
                return Ok(if unguarded > 0 { UNGUARDED.into() } else { ExitCode::SUCCESS });
            }
        }
        ConfigCommand::Print(configured) => {
            let Loaded { whole, .. } = config::load(&configured.flags(), variables, try_files)?;
            output::say(&toml::to_string(&whole)?);
        }
        ConfigCommand::Schema => output::json(&config::source::schema()),
    }
    Ok(ExitCode::SUCCESS)
}

/// What is wrong with the files that the configuration names, for the gateway and for a worker.
fn try_files(file: &File) -> Vec<Complaint> {
    let mut wrong = gateway::files::complaints(file);
    wrong.extend(worker::files::complaints(file));
    wrong
}
