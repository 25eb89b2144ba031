//! What do `config check`, `print` and `schema` do?

use std::collections::BTreeMap;

use crate::args::ConfigCommand;
use crate::config;
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
            let (config, _) = config::load(&configured.flags(), variables)?;
            // Certificates and keys are read too: a check that passes must start.
            let routes = config.routes.len();
            Live::new(config)?;
            output::say(&format!("valid: {routes} routes and the defaults"));
        }
        ConfigCommand::Print(configured) => {
            let (_, whole) = config::load(&configured.flags(), variables)?;
            output::say(&toml::to_string(&whole)?);
        }
        ConfigCommand::Schema => output::json(&config::source::schema()),
    }
    Ok(())
}
