//! What does the URL say?
//!
//! | URL | meaning |
//! | --- | --- |
//! | `redis://USER:PASSWORD@HOST:6379/DB` | one server |
//! | `rediss://…` | the same, encrypted and verified |
//! | `redis+unix:///run/redis.sock` | the same, on this machine |
//! | `redis-cluster://HOST:PORT,HOST:PORT` (`rediss-cluster:`) | a cluster, found through any of these nodes |
//! | `redis+sentinel://HOST:PORT,HOST:PORT/NAME/DB` (`rediss+sentinel:`) | the master of this name |
//!
//! | parameter | default | meaning |
//! | --- | --- | --- |
//! | `deadline` | `5s` | how long one operation may take in all |
//! | `prefix` | `retrysafe` | how every key of ours begins |
//! | `quarantine` | `10m` | how long nothing new is granted after the server changed; at least `lease_max` |
//! | `require` | | `aof-always`: refuse a server that acknowledges before it has flushed |
//! | `wait` | | `N,TIMEOUT`: a write counts once N replicas have it |
//! | `min_replicas` | | refuse a server that takes writes with fewer replicas than this |
//! | `db` | `0` | the database, where the path does not name it |
//! | `sslrootcert` | the system's | a file of certificates to trust |
//! | `sentinel_user`, `sentinel_password` | | for the sentinels, if they ask for it |
//!
//! A URL holds a password. It is shown as its hosts and our own parameters, put together anew, and
//! what cannot be read is not repeated.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use retrysafe_core::units::parse_duration;

use super::error::ConnectError;

/// The longest prefix of keys. It stands in every key, so it is paid for with every record.
const PREFIX_BYTES_MAX: usize = 64;

/// A URL that was understood. Whether the server is there is not known yet.
#[derive(Clone)]
pub struct RedisUrl {
    pub(super) settings: Box<Settings>,
    text: String,
    shown: String,
}

/// Where a server listens.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) enum Address {
    Tcp(String, u16),
    Unix(PathBuf),
}

/// How the servers are found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Topology {
    Single(Address),
    Cluster(Vec<Address>),
    Sentinel { sentinels: Vec<Address>, name: String },
}

/// What a Redis is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Purpose {
    /// It decides: it must not forget.
    Records,
    /// It keeps copies of what a database has decided.
    #[cfg(feature = "postgres")]
    Copies,
}

/// How many replicas must have a write before it counts, and how long that may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct WaitFor {
    pub(super) replicas: u32,
    pub(super) within: Duration,
}

#[derive(Clone, Debug)]
pub(super) struct Settings {
    pub(super) purpose: Purpose,
    pub(super) topology: Topology,
    pub(super) is_encrypted: bool,
    pub(super) roots: Option<PathBuf>,
    pub(super) login: Login,
    pub(super) sentinel_login: Login,
    pub(super) db: i64,
    pub(super) prefix: String,
    pub(super) deadline: Duration,
    pub(super) quarantine: Duration,
    pub(super) require_aof_always: bool,
    pub(super) wait: Option<WaitFor>,
    pub(super) min_replicas: u32,
}

/// A user and a password, if the server asks for them.
#[derive(Clone, Default, PartialEq, Eq)]
pub(super) struct Login {
    pub(super) user: Option<String>,
    pub(super) password: Option<String>,
}

impl fmt::Debug for Login {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Login")
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(host, port) if host.contains(':') => write!(f, "[{host}]:{port}"),
            Self::Tcp(host, port) => write!(f, "{host}:{port}"),
            Self::Unix(path) => write!(f, "{}", path.display()),
        }
    }
}

impl PartialEq for RedisUrl {
    fn eq(&self, other: &Self) -> bool {
        self.text == other.text
    }
}

impl Eq for RedisUrl {}

impl fmt::Display for RedisUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.shown)
    }
}

impl fmt::Debug for RedisUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.shown)
    }
}

impl RedisUrl {
    /// The schemes that this store understands.
    pub const SCHEMES: [&str; 7] = [
        "redis",
        "rediss",
        "redis+unix",
        "redis-cluster",
        "rediss-cluster",
        "redis+sentinel",
        "rediss+sentinel",
    ];

    /// How long nothing new is granted after the server changed.
    pub fn quarantine(&self) -> Duration {
        self.settings.quarantine
    }
}

impl FromStr for RedisUrl {
    type Err = ConnectError;

    fn from_str(url: &str) -> Result<Self, ConnectError> {
        let (base, query) = url.split_once('?').unwrap_or((url, ""));
        let (scheme, rest) = base
            .split_once("://")
            .filter(|(scheme, _)| Self::SCHEMES.contains(scheme))
            .ok_or_else(|| ConnectError::new("the URL does not begin with redis://"))?;
        if rest.matches('@').count() > 1 || query.contains('@') {
            return Err(ConnectError::new(
                "the URL has an @ too many: in a password, write it as %40, and ? as %3F",
            ));
        }
        let (login, place) = rest.split_once('@').unwrap_or(("", rest));
        let mut settings = Settings {
            purpose: Purpose::Records,
            topology: Topology::Cluster(Vec::new()),
            is_encrypted: scheme.starts_with("rediss"),
            roots: None,
            login: login_of(login)?,
            sentinel_login: Login::default(),
            db: 0,
            prefix: "retrysafe".into(),
            deadline: Duration::from_secs(5),
            quarantine: Duration::from_secs(10 * 60),
            require_aof_always: false,
            wait: None,
            min_replicas: 0,
        };
        for pair in query.split('&').filter(|pair| !pair.is_empty()) {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            settings.set(name, value)?;
        }
        settings.place(scheme, place)?;
        if settings.wait.is_some_and(|wait| wait.within > settings.deadline / 2) {
            return Err(ConnectError::new(
                "the URL's wait takes longer than half of its deadline: make deadline longer",
            ));
        }
        let shown = shown(scheme, &settings, query);
        Ok(Self { settings: Box::new(settings), text: url.into(), shown })
    }
}

impl Settings {
    fn set(&mut self, name: &str, value: &str) -> Result<(), ConnectError> {
        let wrong = || ConnectError::new(format!("the URL's {name} is not understood"));
        match (name, value) {
            ("deadline", _) => self.deadline = parse_duration(value).map_err(|_| wrong())?,
            ("quarantine", _) => self.quarantine = parse_duration(value).map_err(|_| wrong())?,
            ("prefix", _) => {
                let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.:".contains(&byte);
                let fits = (1..=PREFIX_BYTES_MAX).contains(&value.len());
                if !fits || !value.bytes().all(is_plain) {
                    return Err(wrong());
                }
                self.prefix = value.into();
            }
            ("require", "aof-always") => self.require_aof_always = true,
            ("wait", _) => self.wait = Some(wait_of(value).ok_or_else(wrong)?),
            ("min_replicas", _) => self.min_replicas = value.parse().map_err(|_| wrong())?,
            ("db", _) => self.db = value.parse().map_err(|_| wrong())?,
            ("sslrootcert", _) => self.roots = Some(decoded(value).ok_or_else(wrong)?.into()),
            ("sentinel_user", _) => {
                self.sentinel_login.user = Some(decoded(value).ok_or_else(wrong)?);
            }
            ("sentinel_password", _) => {
                self.sentinel_login.password = Some(decoded(value).ok_or_else(wrong)?);
            }
            // A password whose `?` was not written as %3F would stand here.
            _ => return Err(ConnectError::new("the URL has a parameter that is not understood")),
        }
        Ok(())
    }

    /// Reads what stands between scheme and parameters.
    fn place(&mut self, scheme: &str, place: &str) -> Result<(), ConnectError> {
        let wrong = |what: &str| ConnectError::new(format!("the URL's {what} is not understood"));
        if scheme == "redis+unix" {
            let path = decoded(place).filter(|path| path.starts_with('/'));
            self.topology = Topology::Single(Address::Unix(
                path.ok_or_else(|| wrong("path of a socket"))?.into(),
            ));
            return Ok(());
        }
        let (hosts, path) = place.split_once('/').unwrap_or((place, ""));
        let is_sentinel = scheme.ends_with("+sentinel");
        let port = if is_sentinel { 26_379 } else { 6_379 };
        let addresses: Option<Vec<Address>> =
            hosts.split(',').map(|host| address_of(host, port)).collect();
        let addresses = addresses.ok_or_else(|| wrong("host or port"))?;
        let named = path.split_once('/').unwrap_or((path, ""));
        let (name, db) = if is_sentinel { named } else { ("", path) };
        if !db.is_empty() {
            self.db = db.parse().map_err(|_| wrong("database, a number,"))?;
        }
        self.topology = if is_sentinel {
            if name.is_empty() {
                return Err(ConnectError::new(
                    "the URL names no master: redis+sentinel://HOST:26379/NAME",
                ));
            }
            Topology::Sentinel { sentinels: addresses, name: name.into() }
        } else if scheme.ends_with("-cluster") {
            if self.db != 0 {
                return Err(ConnectError::new("a cluster has no databases but 0"));
            }
            Topology::Cluster(addresses)
        } else {
            let [address]: [Address; 1] = addresses.try_into().map_err(|_| {
                ConnectError::new(
                    "the URL has several hosts: use redis-cluster: or redis+sentinel:",
                )
            })?;
            Topology::Single(address)
        };
        Ok(())
    }
}

fn login_of(text: &str) -> Result<Login, ConnectError> {
    let (user, password) = text.split_once(':').unwrap_or((text, ""));
    let read = |text: &str| {
        if text.is_empty() {
            return Ok(None);
        }
        decoded(text).map(Some).ok_or_else(|| {
            ConnectError::new("the URL's user or password is not understood: write % as %25")
        })
    };
    Ok(Login { user: read(user)?, password: read(password)? })
}

fn address_of(text: &str, port: u16) -> Option<Address> {
    let (host, port) = match text.strip_prefix('[') {
        Some(rest) => {
            let (host, rest) = rest.split_once(']')?;
            (host, rest.strip_prefix(':').map_or(Some(port), |port| port.parse().ok())?)
        }
        None => match text.split_once(':') {
            Some((host, port)) => (host, port.parse().ok()?),
            None => (text, port),
        },
    };
    (!host.is_empty()).then(|| Address::Tcp(host.into(), port))
}

fn wait_of(text: &str) -> Option<WaitFor> {
    let (replicas, within) = text.split_once(',')?;
    let wait = WaitFor { replicas: replicas.parse().ok()?, within: parse_duration(within).ok()? };
    (wait.replicas > 0 && !wait.within.is_zero()).then_some(wait)
}

/// A text in which `%XX` stands for a byte.
fn decoded(text: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        bytes.push(match byte {
            b'%' => {
                let digits = [rest.next()?, rest.next()?];
                u8::from_str_radix(std::str::from_utf8(&digits).ok()?, 16).ok()?
            }
            plain => plain,
        });
    }
    String::from_utf8(bytes).ok()
}

fn shown(scheme: &str, settings: &Settings, query: &str) -> String {
    let join = |addresses: &[Address]| {
        addresses.iter().map(ToString::to_string).collect::<Vec<_>>().join(",")
    };
    let place = match &settings.topology {
        Topology::Single(Address::Unix(path)) => path.display().to_string(),
        Topology::Single(address) => format!("{address}/{}", settings.db),
        Topology::Cluster(nodes) => join(nodes),
        Topology::Sentinel { sentinels, name } => {
            format!("{}/{name}/{}", join(sentinels), settings.db)
        }
    };
    let own: Vec<&str> = query
        .split('&')
        .filter(|pair| !pair.is_empty() && !pair.starts_with("sentinel_"))
        .collect();
    let mark = if own.is_empty() { "" } else { "?" };
    let secret = if settings.login == Login::default() { "" } else { "…@" };
    format!("{scheme}://{secret}{place}{mark}{}", own.join("&"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_is_shown_without_what_is_secret() {
        for (url, shown) in [
            ("redis://h", "redis://h:6379/0"),
            ("redis://u:secret@h:7/3", "redis://…@h:7/3"),
            ("rediss://:secret@[::1]?wait=1,50ms", "rediss://…@[::1]:6379/0?wait=1,50ms"),
            ("redis+unix:///run/r%20s.sock?db=2", "redis+unix:///run/r s.sock?db=2"),
            ("redis-cluster://secret@a,b:7", "redis-cluster://…@a:6379,b:7"),
            (
                "redis+sentinel://a,b:7/main/1?sentinel_password=secret&deadline=2s",
                "redis+sentinel://a:26379,b:7/main/1?deadline=2s",
            ),
        ] {
            let read: RedisUrl = url.parse().unwrap();
            assert_eq!((read.to_string(), format!("{read:?}")), (shown.into(), shown.into()));
            assert!(!format!("{:?}", read.settings).contains("secret"));
        }
    }

    #[test]
    fn what_is_wrong_is_named_and_a_password_is_not_repeated() {
        for (url, what) in [
            ("redis://u:se@secret@h", "%40"),
            ("redis://u:se?secret@h", "%40"),
            ("redis:u:secret@h", "begin with"),
            ("redis://u:se%secret@h", "%25"),
            ("redis://u:secret@", "host"),
            ("redis://u:secret@h:x", "port"),
            ("redis://u:secret@h/x", "database"),
            ("redis://u:secret@a,b", "several hosts"),
            ("redis-cluster://u:secret@a/1", "databases"),
            ("redis+sentinel://u:secret@a", "names no master"),
            ("redis+unix://secret", "socket"),
            ("redis://u:secret@h?deadline=soon", "deadline"),
            ("redis://u:secret@h?wait=1", "wait"),
            ("redis://u:secret@h?wait=0,1s", "wait"),
            ("redis://u:secret@h?wait=1,3s", "deadline"),
            ("redis://u:secret@h?require=hope", "parameter"),
            ("redis://u:secret@h?prefix={x}", "prefix"),
            ("redis://u:secret@h?secret", "parameter"),
        ] {
            let told = url.parse::<RedisUrl>().unwrap_err();
            let told = format!("{told} {told:?}");
            assert!(told.contains(what) && !told.contains("secret"), "{url}: {told}");
        }
    }

    #[test]
    fn user_and_password_are_decoded() {
        let read: RedisUrl = "redis://us%3Aer:p%40ss%3F@h".parse().unwrap();
        let login = Login { user: Some("us:er".into()), password: Some("p@ss?".into()) };
        assert!(read.settings.login == login);
        let read: RedisUrl = "redis://:only@h".parse().unwrap();
        assert!(read.settings.login == Login { user: None, password: Some("only".into()) });
    }
}
