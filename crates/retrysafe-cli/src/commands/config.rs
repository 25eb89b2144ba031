//! What do `config check`, `print` and `schema` do?

use std::collections::BTreeMap;

use crate::args::ConfigCommand;
use crate::config::{self, Loaded};
use crate::gateway::live::Live;
use crate::gateway::serve::Failure;
use crate::output;

/// Does it.
///
/// # Errors
///
/// Everything that is wrong with the configuration.
pub(crate) fn run(
    command: ConfigCommand,
    variables: &BTreeMap<String, String>,
) -> Result<(), Failure> {
    match command {
        ConfigCommand::Check(configured) => {
            let Loaded { config, warnings, .. } = config::load(&configured.flags(), variables)?;
            for warning in warnings {
                output::complain(&format!("warning: {warning}"));
            }
            let routes = config.routes.len();
            // Whatever a start needs beside the files, such as the system's authorities.
            Live::new(config)?;
            output::say(&format!("valid: {routes} routes and the defaults"));
        }
        ConfigCommand::Print(configured) => {
            let Loaded { whole, .. } = config::load(&configured.flags(), variables)?;
            output::say(&toml::to_string(&whole)?);
        }
        ConfigCommand::Schema => output::json(&config::source::schema()),
    }
    Ok(())
}
