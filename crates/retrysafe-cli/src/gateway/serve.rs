//! How does the gateway start, reload and stop?

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use metrics_exporter_prometheus::PrometheusHandle;
use retrysafe::stores::any::{AnyStore, WallClock};
use retrysafe::stores::postgres::PostgresStore;
use retrysafe::upkeep::Tending;
use retrysafe_core::event;
use retrysafe_core::store::Store;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;
use tokio::time::Instant;

use super::Gateway;
use super::descriptors::ConnectionSlots;
use super::files;
use super::health;
use super::listen::Workers;
use super::live::Live;
use super::look_back::look_back;
use super::lookup_desk::GatewayDesk;
use super::request_log::RequestLog;
use super::reserved_address::{ReservedAddress, ReservedAddresses};
use super::upkeep;
use crate::Failure;
use crate::admin::{self, Admin, Operators, Settings, StoreFacts};
use crate::config::token;
use crate::config::{self, Config, Flags, Loaded, Secret};
use crate::dashboard;
use crate::open_store;
use crate::otel::{self, Tracer};
use crate::report::StartReport;
use crate::signals::{Signals, Told};
use crate::store::{durability, kind};
use crate::telemetry;
use crate::upstream_board::UpstreamBoard;

/// How often a stop looks whether connections are still open.
const DRAIN_LOOK: Duration = Duration::from_millis(20);

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
    let loaded = config::load(flags, variables, files::complaints)?;
    let settings = Settings::of(&loaded);
    let Loaded { config, file, warnings, .. } = loaded;
    let logging = telemetry::start(&config.log)?;
    warn(&warnings);
    let metrics = telemetry::metrics()?;
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    // Before the store, so that a start that must fail makes no files.
    let addresses = ReservedAddresses::take(&config)?;
    // Nobody is served before the store is read and verified.
    let Some((store, signals)) = runtime.block_on(open_unless_stopped(&config, clock))? else {
        tracing::info!("stopped before the store was open");
        // Whatever still reads the store ends with the process, as in a crash.
        runtime.shutdown_background();
        return Ok(());
    };
    let tracer = {
        // Whoever sends spans is a task.
        let _entered = runtime.enter();
        otel::start(variables)
    };
    let request_log = config.log.requests.then(|| RequestLog {
        format: logging.format,
        queue: logging.queue.clone(),
        fields: config.log.fields.as_slice().into(),
    });
    runtime.block_on(async {
        let reload = || {
            config::load(flags, variables, files::complaints)
                .inspect(|Loaded { warnings, .. }| warn(warnings))
        };
        let store = Arc::new(store);
        let looked_back = look_back(&config, &store).await?;
        let report = StartReport::store_opened(
            logging.format,
            logging.queue.clone(),
            file,
            &config.store,
            &store,
        );
        let outbox = store.outbox().cloned();
        let facts = StoreFacts {
            kind: kind(&config.store),
            url: config.store.to_string(),
            durable: durability(&config.store, &store).into_owned(),
            started_at: Timestamp::now(),
            left_running: looked_back.left_running,
            census: looked_back.census,
        };
        let shown = ShownFacts { store: facts, settings };
        let first_owner = looked_back.first_owner;
        let served = run(
            config,
            addresses,
            store,
            outbox,
            first_owner,
            shown,
            &report,
            signals,
            request_log,
            tracer.clone(),
            metrics,
            reload,
        );
        let served = served.await;
        if let Some(tracer) = tracer {
            tracer.flush().await;
        }
        served
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
    let opening =
        tokio::spawn(open_store::open(config.store.clone(), clock, config.store_wait_max));
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

/// What operators are shown of the store and of the configuration.
struct ShownFacts {
    store: StoreFacts,
    settings: Settings,
}

#[expect(clippy::too_many_arguments, reason = "what a gateway is made of")]
async fn run<S: Store>(
    config: Config,
    addresses: ReservedAddresses,
    store: Arc<S>,
    outbox: Option<PostgresStore>,
    first_owner: u64,
    shown: ShownFacts,
    report: &StartReport,
    mut signals: Signals,
    log: Option<RequestLog>,
    tracer: Option<Tracer>,
    metrics: PrometheusHandle,
    reload: impl Fn() -> Result<Loaded, config::Wrong>,
) -> Result<(), Failure> {
    let listener = addresses.callers.listen()?;
    let admin_listener = addresses.operators.map(ReservedAddress::listen).transpose()?;
    let operators = operators(&config)?;
    report.at_start(&config);
    let (stop, stopped) = watch::channel(false);
    let (end_admin, admin_ended) = watch::channel(false);
    let threads = config.threads;
    let slots = ConnectionSlots::permitted(threads)?;
    let live = Live::new(config, None)?;
    let gateway = Gateway::new(live, Arc::clone(&store), log, slots, first_owner);
    let gateway = Arc::new(gateway.with_inbox(outbox.clone()).with_tracer(tracer));
    let desk = Arc::new(GatewayDesk { gateway: Arc::clone(&gateway) });
    let memory = gateway.memory.clone();
    let board = UpstreamBoard::default();
    let admin = Admin::new(store, outbox, operators, Some(desk), metrics.clone(), memory);
    let admin = admin.with_webhooks(Arc::clone(&gateway.webhooks));
    let ShownFacts { store: facts, settings } = shown;
    let admin = admin.with_facts(facts, settings);
    let admin = admin.with_upstreams(board.clone());
    let admin = Arc::new(admin.with_tally(gateway.tally.clone()));
    tokio::spawn(health::watch(Arc::clone(&gateway), board));
    if let Some(listener) = admin_listener {
        let api = admin::router(Arc::clone(&admin));
        let pages = api.clone().merge(dashboard::router(api));
        let gateway = Arc::clone(&gateway);
        let patience = move || admin_patience(&gateway);
        tokio::spawn(admin::serve(listener, pages, patience, admin_ended));
    }
    let mut tending = upkeep::start(&gateway)?;
    tokio::spawn(telemetry::tidy_metrics(metrics));
    let workers = Workers::start(&gateway, threads, &stopped)?;

    let accepting = workers.accept(&listener, stopped);
    let stopping = async {
        while let Told::Reload = signals.next().await {
            take(&gateway, &admin, &reload, &mut tending);
        }
        tracing::info!("stopping: not ready any more");
        admin.stopping();
        tokio::time::sleep(gateway.live.load().config.drain_delay).await;
        // The receivers live in the workers; if they are gone, so are the connections.
        let _ = stop.send(true);
    };
    tokio::join!(accepting, stopping);
    drop(listener);
    let drain_max = gateway.live.load().config.drain_max;
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

/// How long connections of operators may be slow, by the configuration that holds.
fn admin_patience<S: Store>(gateway: &Gateway<S>) -> admin::Patience {
    let live = gateway.live.load();
    let Config { head_time_max, write_time_max, .. } = live.config;
    admin::Patience { head_time_max, write_time_max }
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
    admin: &Admin<S>,
    reload: &impl Fn() -> Result<Loaded, config::Wrong>,
    tending: &mut Tending,
) {
    let taken = reload().map_err(|wrong| wrong.to_string()).and_then(|loaded| {
        let settings = admin.settings().reloaded(&loaded);
        let config = loaded.config;
        let old = gateway.live.load_full();
        let fixed = config::needs_restart(&old.config, &config);
        if !fixed.is_empty() {
            return Err(format!("{} cannot change without a restart", fixed.join(", ")));
        }
        let operators = operators(&config)?;
        gateway.set_live(Arc::new(Live::new(config, Some(&old))?));
        // The tasks take their settings at their start; the old ones end after their present step.
        let started = upkeep::start(gateway).inspect_err(|_| gateway.set_live(old))?;
        admin.set_operators(operators);
        for waiting in settings.waiting() {
            tracing::warn!(
                setting = waiting,
                "this setting has changed, and holds after a restart"
            );
        }
        admin.set_settings(settings);
        Ok(started)
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

/// Who may ask the admin listener: with the token that is set, or that is kept beside the store, and with those that have names.
fn operators(config: &Config) -> Result<Operators, String> {
    let Some(config::Admin { token, tokens, .. }) = config.admin.as_ref() else {
        // Nobody listens.
        let nobodys = Secret(uuid::Uuid::new_v4().simple().to_string());
        return Ok(Operators::new(&nobodys, &[]));
    };
    let admin = match token {
        Some(token) => token.clone(),
        None => token::read_or_make(&config.state_folder)?,
    };
    Ok(Operators::new(&admin, tokens))
}

/// A write past the limit of a file's size (RLIMIT_FSIZE) fails, and whoever writes says so. Unless
/// somebody takes the signal it would end the process.
fn survive_file_size_limit() -> std::io::Result<()> {
    // What takes the signal stays when this is dropped.
    signal(SignalKind::from_raw(rustix::process::Signal::XFSZ.as_raw())).map(drop)
}
