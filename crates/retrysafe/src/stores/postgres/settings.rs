//! What does the URL say?
//!
//! `postgres://user:password@host:5432/database?…`. Parameters of libpq go to the driver, so several
//! hosts and `target_session_attrs=read-write` work as they do there. Ours are:
//!
//! | parameter | default | meaning |
//! | --- | --- | --- |
//! | `deadline` | `5s` | how long one operation may take in all |
//! | `expiry` | `delete` | `keep` moves expired records to `retrysafe.expired` instead |
//! | `audit_days` | `90` | how long transitions are kept |
//! | `migrate` | `auto` | `off`: never change the schema, refuse to start on an old one |
//! | `sslmode` | see below | `disable`, or `require` and above: verified, by name |
//! | `sslrootcert` | the system's | a file of certificates to trust |
//!
//! Without `sslmode`, a connection on this machine is plain and any other one is verified.

use std::path::PathBuf;
use std::time::Duration;

use retrysafe_core::units::parse_duration;
use tokio_postgres::config::{Host, SslMode};

use super::connect::ConnectError;

/// What becomes of records whose retention is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Expiry {
    /// They are deleted.
    Delete,
    /// They move to `retrysafe.expired`, where nothing reads them again but people.
    Keep,
}

#[derive(Clone, Debug)]
pub(super) enum Tls {
    Off,
    /// By the system's certificates, or by those of this file.
    Verified(Option<PathBuf>),
}

#[derive(Clone, Debug)]
pub(super) struct Settings {
    pub(super) config: tokio_postgres::Config,
    pub(super) tls: Tls,
    pub(super) deadline: Duration,
    pub(super) connect_within: Duration,
    pub(super) expiry: Expiry,
    pub(super) audit_days: i32,
    pub(super) migrate: bool,
}

impl Settings {
    pub(super) fn parse(url: &str) -> Result<Self, ConnectError> {
        let (base, query) = url.split_once('?').unwrap_or((url, ""));
        let (mut passed, mut sslmode, mut roots) = (Vec::new(), None, None);
        let (mut deadline, mut expiry) = (Duration::from_secs(5), Expiry::Delete);
        let (mut audit_days, mut migrate) = (90, true);
        for pair in query.split('&').filter(|pair| !pair.is_empty()) {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            let wrong = || ConnectError::new(format!("{name}={value} is not understood"));
            match (name, value) {
                ("deadline", _) => deadline = parse_duration(value).map_err(|_| wrong())?,
                ("expiry", "delete") => expiry = Expiry::Delete,
                ("expiry", "keep") => expiry = Expiry::Keep,
                ("migrate", "auto") => migrate = true,
                ("migrate", "off") => migrate = false,
                ("expiry" | "migrate", _) => return Err(wrong()),
                ("audit_days", _) => audit_days = value.parse().map_err(|_| wrong())?,
                ("sslmode", _) => sslmode = Some(value.to_owned()),
                ("sslrootcert", _) => roots = Some(PathBuf::from(value.replace("%2F", "/"))),
                _ => passed.push(pair),
            }
        }
        let passed = match passed.is_empty() {
            true => base.to_owned(),
            false => format!("{base}?{}", passed.join("&")),
        };
        let mut config: tokio_postgres::Config = passed
            .parse()
            .map_err(|error| ConnectError::because("the URL is not understood", error))?;
        let tls = match sslmode.as_deref() {
            None if is_local(&config) && roots.is_none() => Tls::Off,
            Some("disable") => Tls::Off,
            None | Some("require" | "verify-ca" | "verify-full") => Tls::Verified(roots),
            Some(other) => {
                return Err(ConnectError::new(format!(
                    "sslmode={other} promises nothing: use disable or verify-full"
                )));
            }
        };
        config.ssl_mode(match tls {
            Tls::Off => SslMode::Disable,
            Tls::Verified(_) => SslMode::Require,
        });
        if config.get_application_name().is_none() {
            config.application_name("retrysafe");
        }
        config.keepalives_idle(Duration::from_secs(30));
        config.tcp_user_timeout(Duration::from_secs(10));
        let connect_within = deadline.clamp(Duration::from_millis(500), Duration::from_secs(5));
        config.connect_timeout(connect_within);
        Ok(Self { config, tls, deadline, connect_within, expiry, audit_days, migrate })
    }

    /// What opens a transaction that commits as `sync` says.
    pub(super) fn begin(&self, sync: &str) -> String {
        let ms = |length: Duration| length.as_millis().clamp(1, 3_600_000).to_string();
        include_str!("sql/begin.sql")
            .replace("{sync}", sync)
            .replace("{lock_ms}", &ms(self.lock_within()))
            .replace("{statement_ms}", &ms(self.send_within()))
            .replace("{idle_ms}", &ms(self.deadline))
    }

    /// How long after it was asked an operation may still be sent, and how long the server may then
    /// work on it. Together they fit into the deadline, so that a caller who is told that time is up
    /// seldom has to be told that the write may yet be applied.
    pub(super) fn send_within(&self) -> Duration {
        (self.deadline / 2).max(Duration::from_millis(20))
    }

    /// How long a statement may wait for a lock. Nothing of ours holds one longer than it takes to
    /// flush; a statement that waits longer than this waits for somebody else's transaction.
    pub(super) fn lock_within(&self) -> Duration {
        (self.deadline / 4).max(Duration::from_millis(10))
    }
}

fn is_local(config: &tokio_postgres::Config) -> bool {
    config.get_hosts().iter().all(|host| match host {
        Host::Unix(_) => true,
        Host::Tcp(name) => {
            name == "localhost"
                || name.parse().is_ok_and(|address: std::net::IpAddr| address.is_loopback())
        }
    })
}
