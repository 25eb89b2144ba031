//! How does the gateway start, reload and stop?

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use metrics_exporter_prometheus::PrometheusHandle;
use retrysafe::stores::any::{AnyStore, WallClock};
use retrysafe::upkeep::Tending;
use retrysafe_core::event;
use retrysafe_core::store::Store;
use tokio::net::TcpListener;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::watch;
use tokio::time::Instant;

use super::Gateway;
use super::descriptors::ConnectionSlots;
use super::files;
use super::listen::Workers;
use super::live::Live;
use super::look_back::{LookedBack, look_back};
use super::open;
use super::request_log::RequestLog;
use super::upkeep;
use crate::Failure;
use crate::admin::{self, Admin};
use crate::config::token;
use crate::config::{self, Config, Flags, Loaded, Secret};
use crate::report;
use crate::telemetry;

/// How often a stop looks whether connections are still open.
const DRAIN_LOOK: Duration = Duration::from_millis(20);

/// How often histograms are tidied, as their library demands.
const METRICS_UPKEEP: Duration = Duration::from_secs(5);

/// Serves until it is told to stop.
///
/// # Errors
///
/// Whatever kept it from starting; or that requests were still running when patience ended.
pub(crate) fn serve(
    flags: &Flags,
    clock: WallClock,
    variables: &BTreeMap<String, String>,
) -> Result<(), Failure> {
    let Loaded { config, warnings, .. } = config::load(flags, variables, files::complaints)?;
    let logging = telemetry::start(&config.log)?;
    warn(&warnings);
    let metrics = telemetry::metrics()?;
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    // Nobody is served before the store is read and verified.
    let Some((store, signals)) = runtime.block_on(open_unless_stopped(&config, clock))? else {
        tracing::info!("stopped before the store was open");
        // Whatever still reads the store ends with the process, as in a crash.
        runtime.shutdown_background();
        return Ok(());
    };
    let request_log = config
        .log
        .requests
        .then(|| RequestLog { format: logging.format, queue: logging.queue.clone() });
    runtime.block_on(async {
        let reload = || {
            config::load(flags, variables, files::complaints).map(
                |Loaded { config, warnings, .. }| {
                    warn(&warnings);
                    config
                },
            )
        };
        let store = Arc::new(store);
        let looked_back = look_back(&config, &store).await?;
        report::store_opened(&config.store, &store);
        run(config, store, &looked_back, signals, request_log, metrics, reload).await
    })
}

/// Opens the store, unless somebody says stop before it is open.
async fn open_unless_stopped(
    config: &Config,
    clock: WallClock,
) -> Result<Option<(AnyStore, Signals)>, Failure> {
    let mut signals = Signals::new()?;
    survive_file_size_limit()?;
    // In a task of its own: to read a large disk store blocks a thread, and a stop must be heard.
    let opening = tokio::spawn(open::open(config.store.clone(), clock, config.store_wait_max));
    tokio::select! {
        opened = opening => Ok(Some((opened??, signals))),
        () = signals.stop() => Ok(None),
    }
}

/// Says what is most likely not meant.
fn warn(warnings: &[String]) {
    for warning in warnings {
        tracing::warn!("{warning}");
    }
}

/// How long the last settles of executions that are given up may take.
const GIVE_UP_MAX: Duration = Duration::from_secs(2);

async fn run<S: Store>(
    config: Config,
    store: Arc<S>,
    looked_back: &LookedBack,
    mut signals: Signals,
    log: Option<RequestLog>,
    metrics: PrometheusHandle,
    reload: impl Fn() -> Result<Config, config::Wrong>,
) -> Result<(), Failure> {
    let drain_delay = config.drain_delay;
    let drain_max = config.drain_max;
    let listener = bind(config.listen).await?;
    let admin_listener = match &config.admin {
        Some(settings) => Some(bind(settings.listen).await?),
        None => None,
    };
    let token = token(&config)?;
    report::at_start(&config);
    let (stop, stopped) = watch::channel(false);
    let (end_admin, admin_ended) = watch::channel(false);
    let threads = config.threads;
    let patience = admin::Patience {
        head_time_max: config.head_time_max,
        write_time_max: config.write_time_max,
    };
    let slots = ConnectionSlots::permitted(threads)?;
    let live = Live::new(config, None)?;
    let first_owner = looked_back.first_owner;
    let gateway = Arc::new(Gateway::new(live, Arc::clone(&store), log, slots, first_owner));
    let admin = Arc::new(Admin::new(store, token, metrics.clone(), gateway.memory.clone()));
    if let Some(listener) = admin_listener {
        let pages = admin::router(Arc::clone(&admin));
        tokio::spawn(admin::serve(listener, pages, patience, admin_ended));
    }
    let mut tending = upkeep::start(&gateway)?;
    tokio::spawn(tidy_metrics(metrics));
    let workers = Workers::start(&gateway, threads, &stopped)?;
    metrics::gauge!(event::RELOADED.name).set(1.0);

    let accepting = workers.accept(&listener, stopped);
    let stopping = async {
        while let Told::Reload = signals.next().await {
            take(&gateway, &reload, &mut tending);
        }
        tracing::info!("stopping: not ready any more");
        admin.stopping();
        tokio::time::sleep(drain_delay).await;
        // The receivers live in the workers; if they are gone, so are the connections.
        let _ = stop.send(true);
    };
    tokio::join!(accepting, stopping);
    drop(listener);
    let left = drain(&gateway, &workers, drain_max).await;
    tending.stop().await;
    let _ = end_admin.send(true);
    let open = workers.open();
    if left > 0 || open > 0 {
        let why = format!("{open} connections and {left} executions were still open");
        tracing::error!(open, left, "stopped before everything had ended");
        return Err(why.into());
    }
    tokio::task::spawn_blocking(move || workers.join()).await?;
    tracing::info!("stopped");
    Ok(())
}

/// Waits until every connection is closed and every execution settled. What has not ended by then is
/// given up, so that its record says at once that nobody knows. Says how many were given up.
async fn drain<S: Store>(gateway: &Gateway<S>, workers: &Workers, patience: Duration) -> usize {
    let deadline = Instant::now() + patience;
    while workers.open() > 0 && Instant::now() < deadline {
        tokio::time::sleep(DRAIN_LOOK).await;
    }
    let left = deadline.saturating_duration_since(Instant::now());
    let drain = gateway.drain();
    let Err(left) = drain.wait(left).await else { return 0 };
    if let Err(open) = drain.give_up(GIVE_UP_MAX).await {
        tracing::warn!(
            open,
            "executions could not be given up: they are unknown when their lease ends"
        );
    }
    left
}

/// Takes a new configuration, or keeps the old one and says why.
fn take<S: Store>(
    gateway: &Arc<Gateway<S>>,
    reload: &impl Fn() -> Result<Config, config::Wrong>,
    tending: &mut Tending,
) {
    let taken = reload().map_err(|wrong| wrong.to_string()).and_then(|config| {
        let old = gateway.live.load_full();
        let fixed = config::needs_restart(&old.config, &config);
        if !fixed.is_empty() {
            return Err(format!("{} cannot change without a restart", fixed.join(", ")));
        }
        gateway.set_live(Arc::new(Live::new(config, Some(&old))?));
        // The tasks take their settings at their start; the old ones end after their present step.
        upkeep::start(gateway).inspect_err(|_| gateway.set_live(old))
    });
    metrics::gauge!(event::RELOADED.name).set(if taken.is_ok() { 1.0 } else { 0.0 });
    match taken {
        Ok(started) => {
            *tending = started;
            tracing::info!("configuration reloaded");
        }
        Err(why) => tracing::error!(why, "configuration kept: the new one is not taken"),
    }
}

async fn bind(address: std::net::SocketAddr) -> Result<TcpListener, Failure> {
    TcpListener::bind(address).await.map_err(|error| format!("{address}: {error}").into())
}

/// The admin token: the one that is set, or the one that is kept beside the store.
fn token(config: &Config) -> Result<Secret, String> {
    match config.admin.as_ref() {
        Some(config::Admin { token: Some(token), .. }) => Ok(token.clone()),
        Some(config::Admin { token: None, .. }) => token::read_or_make(&config.state_folder),
        // Nobody listens.
        None => Ok(Secret(uuid::Uuid::new_v4().simple().to_string())),
    }
}

async fn tidy_metrics(metrics: PrometheusHandle) {
    loop {
        tokio::time::sleep(METRICS_UPKEEP).await;
        metrics.run_upkeep();
    }
}

/// A write past the limit of a file's size (RLIMIT_FSIZE) fails, and whoever writes says so. Unless
/// somebody takes the signal it would end the process.
fn survive_file_size_limit() -> std::io::Result<()> {
    // What takes the signal stays when this is dropped.
    signal(SignalKind::from_raw(rustix::process::Signal::XFSZ.as_raw())).map(drop)
}

enum Told {
    Stop,
    Reload,
}

struct Signals {
    terminate: Signal,
    interrupt: Signal,
    hang_up: Signal,
}

impl Signals {
    fn new() -> std::io::Result<Self> {
        Ok(Self {
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
            hang_up: signal(SignalKind::hangup())?,
        })
    }

    /// Waits until somebody says stop.
    async fn stop(&mut self) {
        while let Told::Reload = self.next().await {
            tracing::info!("there is nothing to reload before the store is open");
        }
    }

    async fn next(&mut self) -> Told {
        tokio::select! {
            _ = self.terminate.recv() => Told::Stop,
            _ = self.interrupt.recv() => Told::Stop,
            _ = self.hang_up.recv() => Told::Reload,
        }
    }
}
