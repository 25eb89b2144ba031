//! What does the gateway say about itself when it starts?
//!
//! What is protected and how, where records are kept and how safe they are there, and where to
//! connect: an operator should not have to guess which rules hold.

mod terminal;

use std::path::PathBuf;

use retrysafe::stores::any::{AnyStore, StoreUrl};
use retrysafe_core::units::show_duration;

use crate::config::token;
use crate::config::{Admin, Config, LogFormat, RouteRules, ScopePart, file};
use crate::log_queue::{Haste, LogQueue};
use crate::store::durability;

/// What is said at the start, and to whom.
pub(crate) struct StartReport {
    format: LogFormat,
    queue: LogQueue,
    /// The configuration file, if there is one.
    file: Option<PathBuf>,
    /// How safe records are where they are kept.
    durable: String,
}

impl StartReport {
    /// Says where records are kept, as soon as they can be; to a person, together with the rest.
    pub(crate) fn store_opened(
        format: LogFormat,
        queue: LogQueue,
        file: Option<PathBuf>,
        url: &StoreUrl,
        store: &AnyStore,
    ) -> Self {
        let durable = durability(url, store).into_owned();
        if format == LogFormat::Json {
            tracing::info!(store = %url, durable, "records are kept");
        }
        Self { format, queue, file, durable }
    }

    /// Says what holds.
    pub(crate) fn at_start(&self, config: &Config) {
        match self.format {
            // Who wants to read of errors alone does not want this either.
            LogFormat::Human if tracing::enabled!(tracing::Level::INFO) => {
                let file = self.file.as_deref();
                let lines = terminal::lines(config, file, &self.durable, terminal::width());
                self.queue.put(lines.as_bytes(), Haste::Now);
            }
            LogFormat::Human => {}
            LogFormat::Json => self.line_by_line(config),
        }
        if config.admin.as_ref().is_some_and(|admin| !admin.listen.ip().is_loopback()) {
            tracing::warn!("the admin listener can be reached from other machines, without TLS");
        }
    }

    fn line_by_line(&self, config: &Config) {
        let file = self.file.as_ref().map(|file| file.display().to_string());
        tracing::info!(
            version = env!("CARGO_PKG_VERSION"),
            config = file.as_deref().unwrap_or("none"),
            listen = %config.listen,
            tls = config.tls.is_some(),
            upstream = %config.upstream.authority,
            threads = config.threads,
            "retrysafe serves"
        );
        for route in config.routes.iter().chain([&config.defaults]) {
            protects(route);
        }
        if is_by_credential(config) {
            tracing::info!("{BY_CREDENTIAL}");
        }
        let Some(admin) = &config.admin else {
            tracing::info!("the admin listener is off");
            return;
        };
        tracing::info!(listen = %admin.listen, dashboard = dashboard(admin), "operators connect");
        if admin.token.is_none() {
            let path = token::path(&config.state_folder);
            tracing::info!(
                token_file = %path.display(),
                "the admin token stands in this file; set admin.token to choose another one"
            );
        }
    }
}

/// Where the dashboard is.
fn dashboard(admin: &Admin) -> String {
    format!("http://{}/", admin.listen)
}

/// What whoever tells callers apart by their credentials should know.
const BY_CREDENTIAL: &str = "a caller is known by its credential: whoever refreshes an opaque token is another caller, and its \
                             retry runs again; set scope = [\"jwt:sub\"] and [jwt], or scope = [\"header:NAME\"]";

fn is_by_credential(config: &Config) -> bool {
    let by_credential = |route: &RouteRules| route.scope.contains(&ScopePart::Credential);
    config.routes.iter().chain([&config.defaults]).any(by_credential)
}

fn protects(route: &RouteRules) {
    let policy = &route.policy;
    let methods: Vec<&str> = policy.methods.iter().map(|method| method.as_str()).collect();
    tracing::info!(
        route = route.path,
        methods = methods.join(","),
        scope = scope(route),
        anonymous = name(route.anonymous),
        key = name(file::KeyRule::from(policy.key)),
        on_server_error = name(file::OnServerError::from(policy.on_server_error)),
        on_store_error = name(file::OnStoreError::from(policy.on_store_error)),
        mode = name(file::Mode::from(policy.mode)),
        ttl = show_duration(policy.ttl),
        strict = route.is_strict(),
        "protects"
    );
}

/// A route's scope as it is written in the file.
fn scope(route: &RouteRules) -> String {
    let parts: Vec<String> = route.scope.iter().map(ToString::to_string).collect();
    parts.join(", ")
}

/// A setting's value as it is written in the file.
fn name(value: impl serde::Serialize) -> String {
    match serde_json::to_value(value) {
        Ok(serde_json::Value::String(name)) => name,
        Ok(other) => other.to_string(),
        Err(_) => String::new(),
    }
}
