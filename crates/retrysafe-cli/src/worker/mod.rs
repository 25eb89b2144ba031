//! How does the program deliver effects, without any code? (`retrysafe worker`)
//!
//! The library claims effects, marks them before they are sent and keeps how they ended; this room sends them over HTTP and reads the
//! answers by the rules of their kind. From here: the process, from its start to its last word.

mod boot_clock;
mod connect;
mod deliver;
mod exchange;
pub(crate) mod files;
mod networks;
mod pages;
mod pooler;
mod reconcile;
mod sign;
mod turns;
mod unconfigured;

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use metrics_exporter_prometheus::PrometheusHandle;
use retrysafe::outbox::{Delivery, Worker, Working};
use retrysafe::stores::any::{StoreUrl, WallClock};
use retrysafe_core::units::show_duration;
use sqlx::PgPool;
use sqlx::postgres::PgPoolOptions;
use tokio::net::TcpListener;
use tokio::sync::watch;

use crate::Failure;
use crate::admin;
use crate::config::effects::EffectRules;
use crate::config::{self, Flags, WorkerConfig};
use crate::open_store;
use crate::output;
use crate::signals::{Signals, Told};
use crate::telemetry;
use deliver::HttpReceiver;
use pages::WorkerPages;

/// Connections beside two for each kind: the sweeper's, the listener's, its self-test's, the pages', those of lookups and one to
/// spare.
const CONNECTIONS_BESIDE: u32 = 7;

/// How long a statement may wait for a connection.
const ACQUIRE_MAX: Duration = Duration::from_secs(10);

/// Works until it is told to stop. The exit code is 1 if something was left then.
///
/// # Errors
///
/// Whatever kept it from starting.
pub(crate) fn run(
    flags: &Flags,
    is_check: bool,
    variables: &BTreeMap<String, String>,
) -> Result<ExitCode, Failure> {
    let config = config::worker_config(flags, variables, files::complaints)?;
    if is_check {
        let kinds = output::counted(config.effects.len(), "kind", "kinds");
        output::say(&format!("valid: {kinds} of effects"));
        return Ok(ExitCode::SUCCESS);
    }
    let _logging = telemetry::start(&config.log)?;
    let metrics = telemetry::metrics()?;
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    let worked = runtime.block_on(work(config, metrics));
    // A lookup of a name may still wait for its server.
    runtime.shutdown_background();
    worked
}

async fn work(config: WorkerConfig, metrics: PrometheusHandle) -> Result<ExitCode, Failure> {
    let mut signals = Signals::new()?;
    if !is_open_unless_stopped(&config, &mut signals).await? {
        tracing::info!("stopped before the database was there");
        return Ok(ExitCode::SUCCESS);
    }
    let options = config.database.sqlx_options()?;
    tokio::select! {
        refused = pooler::refuse_mixed_statements(&options) => refused?,
        () = signals.stop() => return Ok(ExitCode::SUCCESS),
    }
    let kinds = u32::try_from(config.effects.len()).unwrap_or(u32::MAX);
    let pool = PgPoolOptions::new()
        .max_connections(kinds.saturating_mul(2).saturating_add(CONNECTIONS_BESIDE))
        .acquire_timeout(ACQUIRE_MAX)
        .connect_lazy_with(options);
    let listener = match config.admin {
        Some(address) => Some(bind(address).await?),
        None => None,
    };
    report_at_start(&config);
    let is_stopping = AtomicBool::new(false);
    let pages = Arc::new(WorkerPages { pool: pool.clone(), metrics: metrics.clone(), is_stopping });
    let (end_pages, pages_ended) = watch::channel(false);
    if let Some(listener) = listener {
        let patience = admin::Patience {
            head_time_max: config.head_time_max,
            write_time_max: config.write_time_max,
        };
        let router = pages::router(Arc::clone(&pages));
        tokio::spawn(admin::serve(listener, router, move || patience, pages_ended));
    }
    tokio::spawn(telemetry::tidy_metrics(metrics));
    let names = config.effects.iter().map(|rules| rules.kind.clone()).collect();
    tokio::spawn(unconfigured::watch(pool.clone(), names));
    let logs = config.log.requests;
    let receivers: Vec<Arc<HttpReceiver>> =
        config.effects.into_iter().map(|rules| Arc::new(HttpReceiver::new(rules, logs))).collect();
    let lookups = reconcile::start(&pool, &receivers);
    let working = start(pool, &receivers);
    while let Told::Reload = signals.next().await {
        read_certificates(&receivers);
    }
    // Before it is said, so that whoever reads it finds the page not ready.
    pages.is_stopping.store(true, Ordering::Release);
    tracing::info!("stopping: nothing more is claimed");
    drop(lookups);
    let code = drain(working, &receivers, config.drain_max, &mut signals).await;
    let _ = end_pages.send(true);
    Ok(code)
}

/// Waits for the database, makes its schema ready and looks whether it keeps what it is told; false if somebody said stop.
async fn is_open_unless_stopped(
    config: &WorkerConfig,
    signals: &mut Signals,
) -> Result<bool, Failure> {
    let url = StoreUrl::Postgres(config.database.clone());
    let opening = open_store::open(url, WallClock::Checked, config.store_wait_max);
    tokio::select! {
        opened = opening => opened.map(|_| true),
        () = signals.stop() => Ok(false),
    }
}

async fn bind(address: SocketAddr) -> Result<TcpListener, Failure> {
    TcpListener::bind(address).await.map_err(|error| {
        let what = format!(
            "{address}: {error}. A worker has a listener of its own for health and metrics: give it another address with \
             --admin, such as --admin 127.0.0.1:8082, or --admin off"
        );
        what.into()
    })
}

fn start(pool: PgPool, receivers: &[Arc<HttpReceiver>]) -> Working {
    let mut worker = Worker::new(pool);
    for receiver in receivers {
        let delivering = Arc::clone(receiver);
        let deliver = move |delivery: Delivery| {
            let receiver = Arc::clone(&delivering);
            async move { Ok(receiver.deliver(delivery).await) }
        };
        worker = worker.deliver(&receiver.rules.kind, receiver.rules.receiver, deliver);
    }
    worker.start()
}

/// Says which kinds are delivered, where to, and what their receivers are said to remember.
fn report_at_start(config: &WorkerConfig) {
    tracing::info!(
        version = env!("CARGO_PKG_VERSION"),
        database = %config.database,
        admin = config.admin.map(|address| address.to_string()),
        kinds = config.effects.len(),
        "retrysafe works"
    );
    for rules in &config.effects {
        tracing::info!(
            kind = rules.kind,
            to = %rules.destinations,
            method = %rules.method,
            key_header = %rules.key_header,
            receiver = memory(rules),
            signed = !rules.secret_files.is_empty(),
            lookups = rules.lookup.as_ref().map(|lookup| lookup.schedule.pauses.to_string()),
            certificate = rules.tls.certificate.is_some(),
            allow_networks = ?rules.allow_networks,
            "delivers"
        );
    }
}

/// What a receiver is said to remember, and what follows from that.
fn memory(rules: &EffectRules) -> String {
    match (rules.remembers_keys_for, rules.receiver.resend_for()) {
        (Some(window), Some(resend)) => {
            format!(
                "remembers keys for {}; an effect is sent again for {} at the most",
                show_duration(window),
                show_duration(rounded_down(resend))
            )
        }
        (_, _) => "takes no key; an effect that may have been done is not sent again".into(),
    }
}

/// A length as people say it: whole hours, or else whole minutes.
fn rounded_down(length: Duration) -> Duration {
    let seconds = length.as_secs();
    let unit = if seconds >= 60 * 60 { 60 * 60 } else { 60 };
    if seconds < unit { length } else { Duration::from_secs(seconds / unit * unit) }
}

/// Reads the files of certificates again. Everything else needs a restart, except for secrets, which are read each time.
fn read_certificates(receivers: &[Arc<HttpReceiver>]) {
    for receiver in receivers {
        let kind = &receiver.rules.kind;
        match receiver.tls.read_again() {
            Ok(_) => tracing::info!(kind, "certificates read again"),
            Err(error) => {
                tracing::error!(kind, %error, "certificates kept: the new ones cannot be read");
            }
        }
    }
}

/// Waits until nothing is under way and everything is told; a second signal ends that.
async fn drain(
    working: Working,
    receivers: &[Arc<HttpReceiver>],
    patience: Duration,
    signals: &mut Signals,
) -> ExitCode {
    // It lives until the deliveries are counted: dropped, it ends them.
    let mut stopping = std::pin::pin!(working.stop(patience));
    let is_done = tokio::select! {
        is_done = &mut stopping => is_done,
        () = signals.stop() => false,
    };
    if is_done {
        tracing::info!("stopped");
        return ExitCode::SUCCESS;
    }
    let deliveries: usize = receivers.iter().map(|receiver| receiver.under_way()).sum();
    tracing::error!(
        deliveries,
        "stopped before everything had ended: what was sent and not recorded is found when its lease ends"
    );
    ExitCode::FAILURE
}
