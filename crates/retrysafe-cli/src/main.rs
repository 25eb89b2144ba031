//! The program `retrysafe`: a gateway that makes any HTTP API safe to retry.

mod admin;
mod config;
mod gateway;
mod report;
mod store;
mod telemetry;

fn main() {
    let variables = std::env::vars().collect();
    let config = std::env::args().nth(3).map(Into::into);
    let flags = config::Flags { config, ..Default::default() };
    if let Err(e) = gateway::serve::serve(&flags, &variables) {
        eprintln!("{e}");
        std::process::exit(1);
    }
}
