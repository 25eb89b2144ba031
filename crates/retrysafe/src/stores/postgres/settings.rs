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
//! | `quarantine` | `10m`; the gateway takes its longest `lease_max` if that is longer | how long nothing new is granted after a fail-over that may have lost commits |
//! | `failover` | `hold` | `continue`: nothing is held after a fail-over, whatever it has lost |
//! | `migrate` | `auto` | `off`: never change the schema, refuse to start on an old one |
//! | `sslmode` | see below | `disable`, or `require` and above: verified, by name |
//! | `sslrootcert` | the system's | a file of certificates to trust |
//!
//! Without `sslmode`, a connection on this machine is plain and any other one is verified.
//!
//! A URL holds a password. It is shown as its hosts, its database and our own parameters, put
//! together anew; and what cannot be read is not repeated, because a password whose special
//! characters were not written as `%XX` may end up anywhere.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use retrysafe_core::units::parse_duration;
use tokio_postgres::config::{Host, SslMode};

use super::fault::ConnectError;

/// What becomes of records whose retention is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Expiry {
    /// They are deleted.
    Delete,
    /// They move to `retrysafe.expired`, where nothing reads them again but people.
    Keep,
}

/// A URL that was understood. Whether the server is there is not known yet.
#[derive(Clone)]
pub struct PostgresUrl {
    text: String,
    pub(super) settings: Box<Settings>,
    /// The URL for people.
    shown: String,
    is_quarantine_given: bool,
}

/// How long nothing new is granted after a fail-over, unless the URL says otherwise.
const QUARANTINE: Duration = Duration::from_secs(10 * 60);

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
    /// How long nothing new is granted after a fail-over that may have lost commits. None: it goes on.
    pub(super) hold_for: Option<Duration>,
}

impl PartialEq for PostgresUrl {
    fn eq(&self, other: &Self) -> bool {
        self.text == other.text
    }
}

impl Eq for PostgresUrl {}

impl fmt::Display for PostgresUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.shown)
    }
}

impl fmt::Debug for PostgresUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.shown)
    }
}

impl FromStr for PostgresUrl {
    type Err = ConnectError;

    fn from_str(url: &str) -> Result<Self, ConnectError> {
        let (base, query) = url.split_once('?').unwrap_or((url, ""));
        if !["postgres://", "postgresql://"].iter().any(|scheme| base.starts_with(scheme)) {
            return Err(ConnectError::new("the URL does not begin with postgres://"));
        }
        if base.matches('@').count() > 1 || query.contains('@') {
            return Err(ConnectError::new(
                "the URL has an @ too many: in a password, write it as %40, and ? as %3F",
            ));
        }
        let (mut passed, mut own) = (Vec::new(), Vec::new());
        let (mut sslmode, mut roots) = (None, None);
        let (mut deadline, mut expiry) = (Duration::from_secs(5), Expiry::Delete);
        let (mut audit_days, mut migrate) = (90, true);
        let (mut quarantine, mut goes_on) = (None, false);
        for pair in query.split('&').filter(|pair| !pair.is_empty()) {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            let wrong = || ConnectError::new(format!("the URL's {name} is not understood"));
            own.push(pair);
            match (name, value) {
                ("deadline", _) => deadline = parse_duration(value).map_err(|_| wrong())?,
                ("expiry", "delete") => expiry = Expiry::Delete,
                ("expiry", "keep") => expiry = Expiry::Keep,
                ("migrate", "auto") => migrate = true,
                ("migrate", "off") => migrate = false,
                ("quarantine", _) => {
                    quarantine = Some(parse_duration(value).map_err(|_| wrong())?);
                }
                ("failover", "hold") => goes_on = false,
                ("failover", "continue") => goes_on = true,
                ("expiry" | "migrate" | "failover", _) => return Err(wrong()),
                ("audit_days", _) => {
                    audit_days = value.parse::<u16>().map_err(|_| wrong())?.max(1).into();
                }
                ("sslmode", _) => sslmode = Some(value.to_owned()),
                ("sslrootcert", _) => roots = Some(PathBuf::from(value.replace("%2F", "/"))),
                _ => passed.extend(own.pop()),
            }
        }
        let passed = if passed.is_empty() {
            base.to_owned()
        } else {
            format!("{base}?{}", passed.join("&"))
        };
        let mut config: tokio_postgres::Config = passed
            .parse()
            .map_err(|error| ConnectError::because("the URL is not understood", error))?;
        if config.get_hosts().is_empty() {
            return Err(ConnectError::new("the URL names no host"));
        }
        let tls = match sslmode.as_deref() {
            None if is_local(&config) && roots.is_none() => Tls::Off,
            Some("disable") => Tls::Off,
            None | Some("require" | "verify-ca" | "verify-full") => Tls::Verified(roots),
            Some(_) => {
                return Err(ConnectError::new(
                    "this sslmode promises nothing: use disable or verify-full",
                ));
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
        let shown = shown(&config, &own);
        let settings = Settings {
            config,
            tls,
            deadline,
            connect_within,
            expiry,
            audit_days,
            migrate,
            hold_for: (!goes_on).then_some(quarantine.unwrap_or(QUARANTINE)),
        };
        let settings = Box::new(settings);
        Ok(Self {
            text: url.to_owned(),
            settings,
            shown,
            is_quarantine_given: quarantine.is_some(),
        })
    }
}

impl PostgresUrl {
    /// How long nothing new is granted after a fail-over that may have lost commits; nothing if it is
    /// to go on whatever was lost.
    pub fn quarantine(&self) -> Option<Duration> {
        self.settings.hold_for
    }

    /// Makes the quarantine as long as an execution may take, unless the URL says how long it is.
    #[must_use]
    pub fn outlasting(mut self, lease_max: Duration) -> Self {
        if let (false, Some(hold_for)) = (self.is_quarantine_given, &mut self.settings.hold_for) {
            *hold_for = lease_max.max(*hold_for);
        }
        self
    }

    /// The same, and the schema is never changed.
    #[must_use]
    pub fn without_migration(mut self) -> Self {
        self.settings.migrate = false;
        self
    }
}

/// Hosts, database and our own parameters. A user's name is left out with the password.
fn shown(config: &tokio_postgres::Config, own: &[&str]) -> String {
    let ports = config.get_ports();
    let port = |at: usize| ports.get(at).or(ports.first()).copied().unwrap_or(5432);
    let hosts = config.get_hosts().iter().enumerate().map(|(at, host)| match host {
        Host::Tcp(name) if name.contains(':') => format!("[{name}]:{}", port(at)),
        Host::Tcp(name) => format!("{name}:{}", port(at)),
        Host::Unix(folder) => folder.display().to_string(),
    });
    let hosts = hosts.collect::<Vec<_>>().join(",");
    let database = config.get_dbname().unwrap_or_default();
    let query = if own.is_empty() { String::new() } else { format!("?{}", own.join("&")) };
    format!("postgres://…@{hosts}/{database}{query}")
}

impl Settings {
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

    /// How long a batch may wait for a lock. Nothing of ours holds one longer than it takes to flush;
    /// a batch that waits longer than this waits for somebody else's transaction, and everybody in it
    /// does.
    pub(super) fn lock_within(&self) -> Duration {
        (self.deadline / 40).clamp(Duration::from_millis(10), Duration::from_millis(250))
    }
}

impl Settings {
    /// Whether every host has a name.
    pub(super) fn is_named(&self) -> bool {
        self.config.get_hosts().iter().all(|host| match host {
            Host::Tcp(_) => true,
            Host::Unix(_) => false,
        })
    }
}

fn is_local(config: &tokio_postgres::Config) -> bool {
    // Where both are given, the address is what is connected to.
    config.get_hostaddrs().iter().all(std::net::IpAddr::is_loopback)
        && config.get_hosts().iter().all(|host| match host {
            Host::Unix(_) => true,
            Host::Tcp(name) => {
                name == "localhost"
                    || name.parse().is_ok_and(|address: std::net::IpAddr| address.is_loopback())
            }
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_is_shown_without_what_is_secret() {
        for (url, shown) in [
            ("postgres://u:secret@h/d", "postgres://…@h:5432/d"),
            ("postgresql://h:6000/d?password=secret&user=u", "postgres://…@h:6000/d"),
            (
                "postgres://u:secret@one,two:7/d?expiry=keep&options=secret&deadline=2s",
                "postgres://…@one:5432,two:7/d?expiry=keep&deadline=2s",
            ),
            ("postgres://u:secret@%2Frun%2Fpg/d", "postgres://…@/run/pg/d"),
            ("postgres://u:secret@[::1]/d", "postgres://…@[::1]:5432/d"),
        ] {
            let read: PostgresUrl = url.parse().unwrap();
            assert_eq!((read.to_string(), format!("{read:?}")), (shown.into(), shown.into()));
        }
    }

    #[test]
    fn what_is_wrong_is_named_and_a_password_is_not_repeated() {
        for (url, what) in [
            ("postgres://u:se@secret@h/d", "%40"),
            ("postgres://u:se@secret/secret@h/d", "%40"),
            ("postgres://u:se?secret@h/d", "%40"),
            ("postgres://u:se?deadline=secret@h/d", "%40"),
            ("postgres:u:secret@h/d", "begin with"),
            ("host=h password=secret", "begin with"),
            ("postgres://u:secret@/d", "no host"),
            ("postgres://u:secret@h:x/d", "port"),
            ("postgres://u:secret@h/d?deadline=soon", "deadline"),
            ("postgres://u:secret@h/d?expiry=never", "expiry"),
            ("postgres://u:secret@h/d?failover=maybe", "failover"),
            ("postgres://u:secret@h/d?quarantine=long", "quarantine"),
            ("postgres://u:secret@h/d?sslmode=prefer", "sslmode"),
            ("postgres://u:secret@h/d?deadlin=5s", "deadlin"),
        ] {
            let told = url.parse::<PostgresUrl>().unwrap_err();
            let told = format!("{told} {told:?}");
            assert!(told.contains(what) && !told.contains("secret"), "{url}: {told}");
        }
    }

    #[test]
    fn a_quarantine_that_nobody_gave_is_as_long_as_an_execution() {
        let hour = Duration::from_secs(3_600);
        for (query, quarantine) in [
            ("", Some(hour)),
            ("?quarantine=1m", Some(Duration::from_secs(60))),
            ("?quarantine=2h", Some(2 * hour)),
            ("?failover=hold", Some(hour)),
            ("?failover=continue", None),
            ("?failover=continue&quarantine=2h", None),
        ] {
            let url: PostgresUrl = format!("postgres://h/d{query}").parse().unwrap();
            assert_eq!(url.outlasting(hour).quarantine(), quarantine, "{query}");
        }
        let url: PostgresUrl = "postgres://h/d".parse().unwrap();
        assert_eq!(url.outlasting(Duration::from_secs(1)).quarantine(), Some(QUARANTINE));
    }

    #[test]
    fn a_connection_off_this_machine_is_verified() {
        let is_plain = |url: &str| {
            let read: PostgresUrl = url.parse().unwrap();
            matches!(read.settings.tls, Tls::Off)
        };
        for url in ["postgres://localhost/d", "postgres://127.0.0.1/d", "postgres://%2Frun/d"] {
            assert!(is_plain(url), "{url}");
            assert!(!is_plain(&format!("{url}?sslmode=require")), "{url}");
        }
        for url in ["postgres://db/d", "postgres://localhost,db/d", "postgres://10.0.0.1/d"] {
            assert!(!is_plain(url), "{url}");
            assert!(is_plain(&format!("{url}?sslmode=disable")), "{url}");
        }
    }
}
