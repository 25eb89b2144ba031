//! Is this a server that can keep the promise?
//!
//! Every connection is verified before it is used, the hundredth as strictly as the first: a server
//! may have been restarted with other settings, restored from a copy, or demoted meanwhile. Nothing
//! is left behind in a session, so that a pooler may hand every transaction to another backend: each
//! transaction says anew how it waits and how it commits.

use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::sync::OnceCell;
use tokio_postgres::config::{SslMode, SslNegotiation};
use tokio_postgres::error::{Severity, SqlState};
use tokio_postgres::tls::{MakeTlsConnect, TlsConnect};
use tokio_postgres::{AsyncMessage, Client, Connection, NoTls, Socket, Statement};

use super::backend::{Noting, Plain, ToldBackend};
use super::fault::ConnectError;
use super::identity::Identity;
use super::settings::{Settings, Tls};
use super::tls;

/// The oldest server whose functions we use: `ATTACH PARTITION` without a strong lock, timeouts per
/// statement of a batch.
const SERVER_VERSION_MIN: i32 = 130_000;

/// One verified connection.
pub(super) struct Wire {
    pub(super) client: Client,
    /// How many warnings the server has sent. There are none in what we do, except for one: "the
    /// wait for the standby was cancelled".
    pub(super) warnings: Arc<AtomicU64>,
    /// What opens a transaction of several statements.
    pub(super) begin: String,
    /// How a transaction commits.
    pub(super) sync: &'static str,
    /// Which cluster it is, and on which timeline.
    pub(super) system: String,
    pub(super) timeline: u32,
    driver: tokio::task::AbortHandle,
    /// How a request to cancel is sent.
    connector: Connector,
    /// Which backend we were told at the beginning.
    told: ToldBackend,
    /// Whether the backend is ours alone, so that statements may be prepared by name.
    pub(super) is_direct: bool,
    pub(super) named: Named,
}

/// What a server is found to be.
struct Verified {
    sync: &'static str,
    is_direct: bool,
    system: String,
    timeline: u32,
}

/// How a connection is made.
#[derive(Clone)]
enum Connector {
    /// Plain, over a socket of this machine that has no name to verify.
    Unnoted,
    Plain(Noting<Plain>),
    Encrypted(Noting<tls::Connector>),
}

/// Statements that are prepared by name on one connection, once they are needed.
#[derive(Default)]
pub(super) struct Named {
    pub(super) write: OnceCell<Statement>,
    pub(super) load: OnceCell<Statement>,
}

/// How long a cancelled statement may take to answer.
const CANCEL_WITHIN: Duration = Duration::from_secs(1);

impl Drop for Wire {
    fn drop(&mut self) {
        // A connection that is given up while it waits must not hold its socket until the server
        // deigns to answer.
        self.driver.abort();
    }
}

impl Wire {
    /// Connects without asking what the server is. For migrations, which come before verification.
    pub(super) async fn open(settings: &Settings) -> Result<Self, ConnectError> {
        let told = ToldBackend::default();
        let connect = async {
            let connector = match &settings.tls {
                Tls::Off if settings.is_named() => {
                    Connector::Plain(Noting { inner: Plain, told: told.clone() })
                }
                Tls::Off => Connector::Unnoted,
                Tls::Verified(roots) => {
                    let inner = tls::connector(roots.as_deref())?;
                    Connector::Encrypted(Noting { inner, told: told.clone() })
                }
            };
            let config = &settings.config;
            let mut wire = match &connector {
                Connector::Unnoted => Self::start(config, NoTls).await?,
                Connector::Plain(noting) => {
                    // The driver hands its socket only to what it takes for encryption that begins
                    // at once. Nothing is encrypted.
                    let mut config = config.clone();
                    config.ssl_mode(SslMode::Require).ssl_negotiation(SslNegotiation::Direct);
                    Self::start(&config, noting.clone()).await?
                }
                Connector::Encrypted(noting) => Self::start(config, noting.clone()).await?,
            };
            (wire.connector, wire.told) = (connector, told);
            Ok(wire)
        };
        match tokio::time::timeout(settings.connect_within, connect).await {
            Ok(wire) => wire,
            Err(_) => Err(ConnectError::silence()),
        }
    }

    /// Connects, and refuses a server that cannot keep the promise.
    pub(super) async fn verified(
        settings: &Settings,
        identity: &Identity,
    ) -> Result<Self, ConnectError> {
        let mut wire = Self::open(settings).await?;
        let check = wire.verify(identity);
        match tokio::time::timeout(settings.connect_within, check).await {
            Ok(Ok(Verified { sync, is_direct, system, timeline })) => {
                wire.begin = settings.begin(sync);
                (wire.sync, wire.is_direct) = (sync, is_direct);
                (wire.system, wire.timeline) = (system, timeline);
            }
            Ok(Err(refused)) => return Err(refused),
            Err(_) => return Err(ConnectError::silence()),
        }
        Ok(wire)
    }

    async fn start<T>(config: &tokio_postgres::Config, tls: T) -> Result<Self, ConnectError>
    where
        T: MakeTlsConnect<Socket>,
        T::TlsConnect: TlsConnect<Socket>,
        T::Stream: Send + 'static,
    {
        let (client, connection) = config
            .connect(tls)
            .await
            .map_err(|error| ConnectError::because("cannot connect to PostgreSQL", error))?;
        let warnings = Arc::new(AtomicU64::new(0));
        let driver = tokio::spawn(drive(connection, Arc::clone(&warnings))).abort_handle();
        Ok(Self {
            client,
            warnings,
            begin: String::new(),
            sync: "on",
            system: String::new(),
            timeline: 0,
            driver,
            connector: Connector::Unnoted,
            told: ToldBackend::default(),
            is_direct: false,
            named: Named::default(),
        })
    }

    async fn verify(&self, identity: &Identity) -> Result<Verified, ConnectError> {
        let asked = self.client.query_typed_one(include_str!("sql/server.sql"), &[]).await;
        let row = asked
            .map_err(|error| ConnectError::because("cannot ask the server's settings", error))?;
        let told = |error| ConnectError::because("the server's settings cannot be read", error);
        let version: i32 = row.try_get(0).map_err(told)?;
        if version < SERVER_VERSION_MIN {
            return Err(ConnectError::new("PostgreSQL 13 or newer is needed"));
        }
        if row.try_get(1).map_err(told)? {
            return Err(ConnectError::new(
                "this server is a standby: it cannot be written to. Name the primary, or all hosts \
                 with target_session_attrs=read-write",
            ));
        }
        if row.try_get::<_, &str>(2).map_err(told)? != "on" {
            return Err(ConnectError::new(
                "fsync is off: a crash of the server would forget what was promised. Set fsync = on",
            ));
        }
        let sync = match row.try_get(3).map_err(told)? {
            "off" => {
                return Err(ConnectError::new(
                    "synchronous_commit is off for this database, role or connection: a crash would \
                     forget what was promised. Set synchronous_commit = on",
                ));
            }
            "remote_apply" => "remote_apply",
            _ => "on",
        };
        if let Some(tables) = row.try_get::<_, Option<&str>>(6).map_err(told)? {
            return Err(ConnectError::new(format!(
                "unlogged tables are emptied by a crash: ALTER TABLE ... SET LOGGED for {tables}"
            )));
        }
        let timeline = row.try_get::<_, Option<&str>>(5).map_err(told)?;
        let timeline = timeline.and_then(|hex| u32::from_str_radix(hex, 16).ok()).unwrap_or(0);
        let system: String = row.try_get(4).map_err(told)?;
        identity.admit(&system, timeline)?;
        let is_direct = self.told.is(row.try_get(7).map_err(told)?);
        Ok(Verified { sync, is_direct, system, timeline })
    }

    /// Waits for an answer as long as this, and then has the server cancel the statement. None: the
    /// server does not answer at all.
    ///
    /// The limit is kept here and not by the server: a statement cannot set its own, and a setting of
    /// the session would be lost behind a pooler.
    pub(super) async fn within<T>(
        &self,
        patience: Duration,
        asked: impl Future<Output = Result<T, tokio_postgres::Error>>,
    ) -> Option<Result<T, tokio_postgres::Error>> {
        let mut asked = pin!(asked);
        if let Ok(answer) = tokio::time::timeout(patience, &mut asked).await {
            return Some(answer);
        }
        let cancel = async {
            let token = self.client.cancel_token();
            match &self.connector {
                Connector::Unnoted => token.cancel_query(NoTls).await,
                Connector::Plain(noting) => token.cancel_query(noting.clone()).await,
                Connector::Encrypted(noting) => token.cancel_query(noting.clone()).await,
            }
        };
        // One that cannot be sent is as good as one that is not answered.
        let answered = async { tokio::join!(cancel, asked).1 };
        tokio::time::timeout(CANCEL_WITHIN, answered).await.ok()
    }

    pub(super) fn warned(&self) -> u64 {
        self.warnings.load(Ordering::Acquire)
    }
}

/// Moves the connection's bytes and counts its warnings until it ends.
async fn drive<S, T>(mut connection: Connection<S, T>, warnings: Arc<AtomicU64>)
where
    S: tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin,
    T: tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin,
{
    while let Some(message) = poll_fn(|context| connection.poll_message(context)).await {
        match message {
            Ok(AsyncMessage::Notice(notice)) => {
                // The message itself is in the server's language; its severity is not.
                // A server that is killed warns too, and the connection ends with it.
                if notice.parsed_severity() == Some(Severity::Warning)
                    && *notice.code() != SqlState::CRASH_SHUTDOWN
                {
                    warnings.fetch_add(1, Ordering::AcqRel);
                    tracing::warn!(code = notice.code().code(), "{}", notice.message());
                }
            }
            Ok(_) => {}
            Err(error) => {
                tracing::debug!(%error, "the connection to PostgreSQL ended");
                return;
            }
        }
    }
}

/// The longest pause between two attempts to connect.
pub(super) const RECONNECT_MAX: Duration = Duration::from_millis(500);
