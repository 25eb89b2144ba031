//! Is this a server that can keep the promise?
//!
//! Every connection is verified before it is used: a server may have been restarted with other
//! settings, or be a replica by now. One connection carries the commands of many callers at once; it
//! is never asked again for what it may have done. The server's process has a random id that does not
//! change while a connection lives, so what was read here stays true for it.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, Cmd, Pipeline, RedisConnectionInfo, RedisError, Value};
use rustls::ClientConfig;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpStream, UnixStream};

use super::error::ConnectError;
use super::script::{Script, text};
use super::settings::{Address, Login, Purpose, Settings, Topology};
use super::tls;

/// How many commands may wait to be written to one connection. More callers than this wait in line.
const COMMANDS_QUEUED_MAX: usize = 1_024;

/// The first server that can be asked to wait until a replica has flushed.
const WAITAOF_SINCE: (u32, u32) = (7, 2);

/// One verified connection. Clones share it.
#[derive(Clone)]
pub(super) struct Wire {
    connection: MultiplexedConnection,
    facts: Arc<Facts>,
    driver: Arc<Driver>,
}

/// What is known of the server at the other end.
#[derive(Debug, Default)]
pub(super) struct Facts {
    /// Which process, and which line of replication.
    pub(super) identity: String,
    pub(super) durability: Durability,
    /// Whether it can be asked to wait until a replica has flushed.
    pub(super) knows_waitaof: bool,
    /// The digests of our scripts.
    digests: Vec<Vec<u8>>,
}

/// What a server says about the durability of what it acknowledges.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub(super) enum Durability {
    /// It keeps nothing, or seldom a snapshot.
    Nothing,
    /// It flushes every second.
    EverySecond,
    /// It flushes when the system pleases.
    Whenever,
    /// It flushes before it answers.
    Always,
    /// It does not say.
    #[default]
    Unsaid,
}

struct Driver(tokio::task::AbortHandle);

impl Drop for Driver {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl Wire {
    /// Connects to a node that keeps records, and verifies it.
    pub(super) async fn verified(
        settings: &Settings,
        address: &Address,
    ) -> Result<Self, ConnectError> {
        let mut wire = Self::open(settings, address, &settings.login, settings.db).await?;
        match settings.purpose {
            Purpose::Records => wire.facts = Arc::new(wire.examine(settings).await?),
            #[cfg(feature = "postgres")]
            Purpose::Copies => {}
        }
        Ok(wire)
    }

    /// Connects without asking what the server is: for sentinels, and to find a cluster's nodes.
    pub(super) async fn open(
        settings: &Settings,
        address: &Address,
        login: &Login,
        db: i64,
    ) -> Result<Self, ConnectError> {
        let within = connect_within(settings);
        let opening = async {
            match address {
                Address::Unix(path) => {
                    let socket = UnixStream::connect(path).await.map_err(unreachable(address))?;
                    Self::start(socket, login, db).await
                }
                Address::Tcp(host, port) => {
                    let socket = TcpStream::connect((host.as_str(), *port))
                        .await
                        .map_err(unreachable(address))?;
                    socket.set_nodelay(true).map_err(unreachable(address))?;
                    match encryption(settings)? {
                        None => Self::start(socket, login, db).await,
                        Some(config) => {
                            let socket = tls::encrypted(config, host, socket).await?;
                            Self::start(socket, login, db).await
                        }
                    }
                }
            }
        };
        let silence = |_| ConnectError::passing(format!("{address} does not answer in time"));
        tokio::time::timeout(within, opening).await.map_err(silence)?
    }

    async fn start<S>(socket: S, login: &Login, db: i64) -> Result<Self, ConnectError>
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let mut info = RedisConnectionInfo::default().set_db(db).set_skip_set_lib_name();
        if let Some(user) = &login.user {
            info = info.set_username(user);
        }
        if let Some(password) = &login.password {
            info = info.set_password(password);
        }
        // Deadlines are counted by whoever asks.
        let config = AsyncConnectionConfig::new()
            .set_response_timeout(None)
            .set_connection_timeout(None)
            .set_pipeline_buffer_size(COMMANDS_QUEUED_MAX);
        let (connection, driver) =
            MultiplexedConnection::new_with_config(&info, socket, config).await.map_err(refused)?;
        let driver = Arc::new(Driver(tokio::spawn(driver).abort_handle()));
        Ok(Self { connection, facts: Arc::default(), driver })
    }

    /// Whether the connection is known to have ended.
    pub(super) fn is_closed(&self) -> bool {
        self.driver.0.is_finished()
    }

    /// Whether both are the same connection.
    pub(super) fn is_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.driver, &other.driver)
    }

    pub(super) fn facts(&self) -> &Facts {
        &self.facts
    }

    /// Sends one command. An error of the server is a value.
    pub(super) async fn send(&self, command: &Cmd) -> Result<Value, RedisError> {
        self.connection.clone().send_packed_command(command).await
    }

    /// Sends commands in one piece, and gives as many answers. An error of the server is a value.
    pub(super) async fn send_all(&self, commands: &Pipeline) -> Result<Vec<Value>, RedisError> {
        let count = commands.cmd_iter().count();
        self.connection.clone().send_packed_commands(commands, 0, count).await
    }

    /// A command that runs a script.
    pub(super) fn run(&self, script: Script) -> Cmd {
        let digest = self.facts.digests.get(script as usize).map(Vec::as_slice).unwrap_or_default();
        let mut command = redis::cmd("EVALSHA");
        command.arg(digest);
        command
    }

    /// Gives the server all scripts, anew if it has forgotten them.
    pub(super) async fn load_scripts(&self) -> Result<Vec<Vec<u8>>, ConnectError> {
        let mut commands = redis::pipe();
        for script in Script::ALL {
            commands.cmd("SCRIPT").arg("LOAD").arg(script.source());
        }
        let answers = self.send_all(&commands).await.map_err(refused)?;
        let digests: Option<Vec<Vec<u8>>> = answers.into_iter().map(text).collect();
        digests.filter(|digests| digests.len() == Script::ALL.len()).ok_or_else(|| {
            ConnectError::new(
                "the server does not take scripts: this user needs SCRIPT LOAD and EVALSHA",
            )
        })
    }

    /// Asks the server what it is, and refuses one that would forget.
    async fn examine(&self, settings: &Settings) -> Result<Facts, ConnectError> {
        let info = self.info().await?;
        let field = |name: &str| info.get(name).map_or("", String::as_str);
        if field("loading") == "1" {
            return Err(ConnectError::passing("the server is still loading its data"));
        }
        if field("role") != "master" {
            // With sentinels or in a cluster somebody else may be promoted any moment.
            let what = "the server is a replica: what it is told, its master would not know";
            return Err(match settings.topology {
                Topology::Single(_) => ConnectError::new(what),
                Topology::Cluster(_) | Topology::Sentinel { .. } => ConnectError::passing(what),
            });
        }
        let policy = field("maxmemory_policy");
        if policy != "noeviction" {
            return Err(ConnectError::new(format!(
                "the server evicts records when memory is short (maxmemory-policy {policy}), and a \
                 retry of an evicted key would run again: set maxmemory-policy to noeviction"
            )));
        }
        let durability = self.durability(field("aof_enabled") == "1").await?;
        if settings.require_aof_always && durability != Durability::Always {
            return Err(ConnectError::new(
                "the URL says require=aof-always, and the server does not flush before it answers: \
                 set appendonly yes and appendfsync always",
            ));
        }
        self.check_replicas(settings.min_replicas).await?;
        Ok(Facts {
            identity: format!("{}:{}", field("run_id"), field("master_replid")),
            durability,
            knows_waitaof: version_of(field("redis_version")) >= WAITAOF_SINCE,
            digests: self.load_scripts().await?,
        })
    }

    async fn info(&self) -> Result<HashMap<String, String>, ConnectError> {
        let answer = self.send(&redis::cmd("INFO")).await.map_err(refused)?;
        if let Value::ServerError(error) = &answer {
            let what = format!("the server does not answer INFO: {error}");
            return Err(match error.code() {
                "LOADING" | "MASTERDOWN" => ConnectError::passing(what),
                _ => ConnectError::new(what),
            });
        }
        // Connections speak RESP2, so this is plain text.
        let answer = text(answer).unwrap_or_default();
        let text = String::from_utf8_lossy(&answer);
        let fields = text.lines().filter_map(|line| line.split_once(':'));
        Ok(fields.map(|(name, value)| (name.to_owned(), value.trim().to_owned())).collect())
    }

    async fn durability(&self, has_aof: bool) -> Result<Durability, ConnectError> {
        if !has_aof {
            return Ok(Durability::Nothing);
        }
        Ok(match self.config("appendfsync").await?.as_deref() {
            Some("always") => Durability::Always,
            Some("everysec") => Durability::EverySecond,
            Some("no") => Durability::Whenever,
            Some(_) | None => Durability::Unsaid,
        })
    }

    async fn check_replicas(&self, min_replicas: u32) -> Result<(), ConnectError> {
        if min_replicas == 0 {
            return Ok(());
        }
        let told = self.config("min-replicas-to-write").await?;
        let has = told.and_then(|text| text.parse::<u32>().ok()).unwrap_or(0);
        if has >= min_replicas {
            return Ok(());
        }
        Err(ConnectError::new(format!(
            "the URL says min_replicas={min_replicas}, and the server takes writes with {has}: set \
             min-replicas-to-write to {min_replicas}"
        )))
    }

    /// A setting of the server, if this user may ask for it.
    async fn config(&self, name: &str) -> Result<Option<String>, ConnectError> {
        let answer = self.send(redis::cmd("CONFIG").arg("GET").arg(name)).await.map_err(refused)?;
        // This user may not ask, or the server does not know the setting.
        let Value::Array(pair) = answer else { return Ok(None) };
        let value = pair.into_iter().nth(1).and_then(text);
        Ok(value.map(|bytes| String::from_utf8_lossy(&bytes).into_owned()))
    }
}

/// How long a connection may take to be made, its handshake included.
fn connect_within(settings: &Settings) -> Duration {
    settings.deadline.clamp(Duration::from_millis(100), Duration::from_secs(5))
}

fn encryption(settings: &Settings) -> Result<Option<Arc<ClientConfig>>, ConnectError> {
    settings.is_encrypted.then(|| tls::trusting(settings.roots.as_deref())).transpose()
}

fn unreachable(address: &Address) -> impl FnOnce(std::io::Error) -> ConnectError {
    move |error| {
        let what = format!("{address} is out of reach");
        let is_for_good = error.kind() == std::io::ErrorKind::PermissionDenied;
        let told = if is_for_good { ConnectError::new(what) } else { ConnectError::passing(what) };
        told.because(error)
    }
}

/// What an error during the handshake or the examination means.
fn refused(error: RedisError) -> ConnectError {
    let what = "the server refuses the connection";
    let told = match error.code() {
        Some("LOADING" | "MASTERDOWN" | "BUSY") => ConnectError::passing(what),
        Some(_) => ConnectError::new(what),
        None if error.is_io_error() => ConnectError::passing(what),
        None => ConnectError::new(what),
    };
    told.because(error)
}

fn version_of(text: &str) -> (u32, u32) {
    let mut parts = text.split('.').map(|part| part.parse().unwrap_or(0));
    (parts.next().unwrap_or(0), parts.next().unwrap_or(0))
}

impl Durability {
    /// For people: what a crash of the server loses.
    pub(super) fn words(self) -> &'static str {
        match self {
            Self::Nothing => {
                "everything since the last snapshot may be lost when Redis dies (appendonly no)"
            }
            Self::EverySecond => {
                "the last second may be lost when Redis dies (appendfsync everysec)"
            }
            Self::Whenever => {
                "the last half minute may be lost when its machine dies (appendfsync no)"
            }
            Self::Always => "nothing is lost when Redis dies (appendfsync always)",
            Self::Unsaid => {
                "what is lost when Redis dies is not known: this user may not read appendfsync"
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_compared_as_numbers() {
        assert!(version_of("7.0.15") < WAITAOF_SINCE);
        assert!(version_of("7.2.0") >= WAITAOF_SINCE);
        assert!(version_of("10.0") >= WAITAOF_SINCE);
        assert_eq!(version_of("nonsense"), (0, 0));
    }
}
