//! What does the gateway say about itself when it starts?
//!
//! What is protected and how, where records are kept and how safe they are there, and where to
//! connect: an operator should not have to guess which rules hold.

use retrysafe::stores::any::{AnyStore, StoreUrl};
use retrysafe_core::units::show_duration;

use crate::config::token;
use crate::config::{Config, RouteRules, ScopePart, file};
use crate::store::durability;

/// Says where records are kept, as soon as they can be.
pub(crate) fn store_opened(url: &StoreUrl, store: &AnyStore) {
    tracing::info!(store = %url, durable = %durability(url, store), "records are kept");
}

/// Says it, line by line.
pub(crate) fn at_start(config: &Config) {
    tracing::info!(
        version = env!("CARGO_PKG_VERSION"),
        listen = %config.listen,
        tls = config.tls.is_some(),
        upstream = %config.upstream.authority,
        threads = config.threads,
        "retrysafe serves"
    );
    for route in config.routes.iter().chain([&config.defaults]) {
        protects(route);
    }
    let by_credential = |route: &RouteRules| route.scope.contains(&ScopePart::Credential);
    if config.routes.iter().chain([&config.defaults]).any(by_credential) {
        tracing::info!(
            "a caller is known by its credential: whoever refreshes an opaque token is another caller, and \
             its retry runs again; set scope = [\"jwt:sub\"] and [jwt], or scope = [\"header:NAME\"]"
        );
    }
    let Some(admin) = &config.admin else {
        tracing::info!("the admin listener is off");
        return;
    };
    tracing::info!(listen = %admin.listen, "operators connect");
    if !admin.listen.ip().is_loopback() {
        tracing::warn!("the admin listener can be reached from other machines, without TLS");
    }
    if admin.token.is_none() {
        let path = token::path(&config.state_folder);
        tracing::info!(
            token_file = %path.display(),
            "the admin token stands in this file; set admin.token to choose another one"
        );
    }
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
