//! What does the gateway say about itself to a person in front of a terminal?
//!
//! A few lines that answer what a newcomer asks first: where do I connect, what is protected and for whom, where are records kept,
//! what does a 5xx mean, where is the operators' side, and which file said all that? Machines get one JSON line each instead.

use std::path::Path;

use retrysafe_core::policy::{KeyRule, Mode, OnServerError};

use crate::config::{Anonymous, Config, RouteRules, token};
use crate::output::{self, counted};

/// Below this a line holds either a name or what is said about it.
const WIDTH_MIN: usize = 72;

/// How many routes are shown. `config print` shows all.
const ROUTES_MAX: usize = 8;

/// The lines, for a terminal of this width.
pub(super) fn lines(
    config: &Config,
    file: Option<&Path>,
    durable: &str,
    width: Option<usize>,
) -> String {
    let scheme = if config.tls.is_some() { "https" } else { "http" };
    let mut facts = vec![
        ("callers connect to", format!("{scheme}://{}", config.listen)),
        ("requests go on to", config.upstream.to_string()),
        (
            "configuration",
            file.map_or_else(
                || "no file: flags, variables and defaults (`retrysafe init` writes one)".into(),
                |file| file.display().to_string(),
            ),
        ),
        ("records are kept in", config.store.to_string()),
        ("durable", durable.to_owned()),
    ];
    for route in config.routes.iter().take(ROUTES_MAX) {
        facts.push(("protects", of_route(route, &route.path)));
    }
    let more = config.routes.len().saturating_sub(ROUTES_MAX);
    if more > 0 {
        let more = counted(more, "more route", "more routes");
        facts.push(("", format!("{more}: `retrysafe config print`")));
    }
    for target in config.targets.iter().take(ROUTES_MAX) {
        facts.push(("requests below", format!("{} go on to {}", target.path, target.upstream)));
    }
    let rest = if config.routes.is_empty() { "every path" } else { "every other path" };
    facts.push(("protects", of_route(&config.defaults, rest)));
    if super::is_by_credential(config) {
        facts.push(("note", super::BY_CREDENTIAL.into()));
    }
    facts.extend(operators(config));
    laid_out(&format!("retrysafe {}", env!("CARGO_PKG_VERSION")), &facts, width)
}

/// How wide the terminal is, if there is one and it says so.
pub(super) fn width() -> Option<usize> {
    output::terminal_width()
}

fn operators(config: &Config) -> Vec<(&'static str, String)> {
    let Some(admin) = &config.admin else {
        return vec![("operators", "nowhere: the admin listener is off".into())];
    };
    let mut facts = vec![
        ("operators connect to", format!("http://{}", admin.listen)),
        ("dashboard", super::dashboard(admin)),
    ];
    if admin.token.is_none() {
        let path = token::path(&config.state_folder);
        facts.push(("admin token", format!("in the file {}", path.display())));
    }
    facts
}

/// What holds on a route, in one line.
fn of_route(route: &RouteRules, name: &str) -> String {
    let policy = &route.policy;
    let methods: Vec<&str> = policy.methods.iter().map(|method| method.as_str()).collect();
    if policy.key == KeyRule::Off {
        return format!("nothing on {name}: key = \"off\"");
    }
    let key = match policy.key {
        KeyRule::Required => "with a key, which is required",
        KeyRule::Optional | KeyRule::Off => "with a key",
    };
    let anonymous = match route.anonymous {
        Anonymous::Refused => "",
        Anonymous::Shared => ", all others are one caller",
    };
    let server_error = match policy.on_server_error {
        OnServerError::Release => "not done, a retry runs again",
        OnServerError::Store => "the answer, every retry gets it",
        OnServerError::Unknown => "unknown, a retry never runs again by itself",
    };
    let mode = match policy.mode {
        Mode::Enforce => "",
        Mode::Observe => " (only observed)",
    };
    let methods = methods.join(", ");
    let scope = super::scope(route);
    format!(
        "{methods} {name} {key}{mode}; callers by {scope}{anonymous}; a 5xx means: {server_error}"
    )
}

/// Names and what is said about them, side by side where there is room, else one below the other.
fn laid_out(title: &str, facts: &[(&str, String)], width: Option<usize>) -> String {
    let is_narrow = width.is_some_and(|width| width < WIDTH_MIN);
    let names = facts.iter().map(|(name, _)| name.len()).max().unwrap_or_default();
    let room = width.unwrap_or(usize::MAX).saturating_sub(names + 4);
    let mut text = format!("{title}\n");
    let mut last = "";
    for (name, fact) in facts {
        let shown = if *name == last { "" } else { *name };
        last = name;
        if is_narrow {
            if !shown.is_empty() {
                text += &format!("{shown}:\n");
            }
            let room = width.unwrap_or_default().saturating_sub(2);
            for line in broken(fact, room) {
                text += &format!("  {line}\n");
            }
            continue;
        }
        for (at, line) in broken(fact, room).iter().enumerate() {
            let shown = if at == 0 { shown } else { "" };
            text += &format!("  {shown:<names$}  {line}\n");
        }
    }
    text
}

/// A text broken into lines between words. A word that is longer than a line stays whole: an address is there to be copied.
fn broken(text: &str, room: usize) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for word in text.split(' ') {
        match lines.last_mut() {
            Some(line) if line.chars().count() + 1 + word.chars().count() <= room => {
                line.push(' ');
                line.push_str(word);
            }
            Some(_) | None => lines.push(word.to_owned()),
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{File, file::RouteSettings, resolve};

    fn config(routes: usize) -> Config {
        let route = (0..routes).map(|at| RouteSettings {
            path: Some(format!("/payments/{at}")),
            strict: Some(true),
            ..RouteSettings::default()
        });
        let upstream = Some("http://127.0.0.1:3000".into());
        resolve(&File { upstream, route: route.collect(), ..File::default() }).unwrap()
    }

    #[test]
    fn a_newcomer_reads_what_holds() {
        let told = lines(&config(1), Some("retrysafe.toml".as_ref()), "yes: flushed", Some(100));
        for part in [
            "http://127.0.0.1:8080",
            "http://127.0.0.1:3000",
            "retrysafe.toml",
            "disk:./retrysafe-data",
            "yes: flushed",
            "/payments/0 with a key, which is required",
            "callers by credential",
            "unknown, a retry never",
            "every other path",
            "operators connect to http://127.0.0.1:8081",
            "dashboard http://127.0.0.1:8081/",
            "admin-token",
        ] {
            let words = told.split_whitespace().collect::<Vec<_>>().join(" ");
            assert!(words.contains(part), "lacks {part:?}:\n{told}");
        }
        assert!(told.lines().all(|line| line.chars().count() <= 100), "{told}");
        let none = lines(&config(0), None, "no", None);
        assert!(none.contains("no file") && none.contains("every path"), "{none}");
        assert!(lines(&config(20), None, "no", None).contains("12 more routes:"));
        assert!(lines(&config(9), None, "no", None).contains("1 more route:"));
    }

    #[test]
    fn a_narrow_terminal_gets_narrow_lines_and_whole_addresses() {
        for width in [24, 40, 71] {
            let told = lines(&config(2), None, "yes: every answer is flushed", Some(width));
            let is_whole = |line: &str| line.chars().count() <= width || !line.trim().contains(' ');
            assert!(told.lines().all(is_whole), "{width}:\n{told}");
            assert!(told.contains("http://127.0.0.1:8080"), "{told}");
        }
    }
}
