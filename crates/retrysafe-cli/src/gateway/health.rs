//! Does the upstream answer when it is asked how it is?
//!
//! Each upstream is asked for one path now and then, over a connection of its own. One that failed several times in a row is
//! unhealthy: requests are refused unsent, and their records say so, so that each may be tried again. Answers from records are still given. It is asked on, and
//! after enough good answers everything is as before.

use std::collections::HashSet;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{Request, StatusCode, header};
use http_body_util::Empty;
use hyper::client::conn::{http1, http2};
use hyper_util::rt::{TokioExecutor, TokioIo};
use retrysafe_core::event;
use retrysafe_core::store::Store;
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::timeout;

use super::Gateway;
use super::connect::Connector;
use super::upstream_state::{Doubts, LiveUpstream, UpstreamHealth};
use crate::config::{Health, Upstream};
use crate::upstream_board::UpstreamBoard;

/// How often somebody looks whether a reload has set checks.
const LOOK_AGAIN: Duration = Duration::from_secs(1);

/// Checks all upstreams for as long as the process runs.
pub(crate) async fn watch<S: Store>(gateway: Arc<Gateway<S>>, board: UpstreamBoard) {
    let mut doubts: Vec<(Arc<UpstreamHealth>, Doubts)> = Vec::new();
    let mut measured: HashSet<String> = HashSet::new();
    loop {
        let live = gateway.live.load_full();
        let checked = live.config.health.as_ref().map_or(&[][..], |_| live.upstreams.as_slice());
        let names = checked.iter().map(|it| it.upstream.to_string()).collect();
        // Nobody knows any more how those are that a reload has taken away.
        for gone in measured.difference(&names) {
            metrics::gauge!(event::UPSTREAM_HEALTHY.name, "upstream" => gone.clone()).set(f64::NAN);
        }
        measured = names;
        let Some(health) = live.config.health.clone() else {
            board.show(Vec::new());
            tokio::time::sleep(LOOK_AGAIN).await;
            continue;
        };
        // A reload may have taken upstreams away.
        doubts.retain(|(of, _)| live.upstreams.iter().any(|it| Arc::ptr_eq(&it.health, of)));
        let mut checks = JoinSet::new();
        for (at, upstream) in live.upstreams.iter().enumerate() {
            let upstream = Arc::clone(upstream);
            let health = health.clone();
            checks.spawn(async move { (at, check(&upstream, &health).await) });
        }
        for (at, ended) in checks.join_all().await {
            let Some(upstream) = live.upstreams.get(at) else { continue };
            let known = doubts.iter().position(|(of, _)| Arc::ptr_eq(of, &upstream.health));
            let place = known.unwrap_or_else(|| {
                doubts.push((Arc::clone(&upstream.health), Doubts::default()));
                doubts.len() - 1
            });
            if let Some((_, doubts)) = doubts.get_mut(place) {
                take(upstream, doubts, ended, &health);
            }
        }
        let shown =
            live.upstreams.iter().map(|it| (it.upstream.to_string(), it.health.is_healthy()));
        board.show(shown.collect());
        tokio::time::sleep(health.every).await;
    }
}

fn take(upstream: &LiveUpstream, doubts: &mut Doubts, ended: Result<(), String>, health: &Health) {
    let name = upstream.upstream.to_string();
    let has_changed = upstream.health.checked(doubts, ended.is_ok(), health);
    let is_healthy = upstream.health.is_healthy();
    metrics::gauge!(event::UPSTREAM_HEALTHY.name, "upstream" => name.clone()).set(if is_healthy {
        1.0
    } else {
        0.0
    });
    match ended {
        Err(why) if has_changed => tracing::error!(
            upstream = name,
            why,
            "upstream_unhealthy: requests to it are refused unsent"
        ),
        Ok(()) if has_changed => {
            tracing::info!(upstream = name, "upstream_healthy: requests are taken again")
        }
        Ok(()) | Err(_) => {}
    }
}

/// Asks an upstream how it is.
async fn check(upstream: &LiveUpstream, health: &Health) -> Result<(), String> {
    let asked = ask(&upstream.connector, &upstream.upstream, &health.path);
    match timeout(health.timeout, asked).await {
        Ok(Ok(status)) if status.is_success() || status.is_redirection() => Ok(()),
        Ok(Ok(status)) => Err(format!("{} answers {status}", health.path)),
        Ok(Err(error)) => Err(error.to_string()),
        Err(_) => Err("no answer in time".into()),
    }
}

/// The task of a connection, which ends with this: nobody waits for an upstream that hangs.
struct CheckTask(AbortHandle);

impl Drop for CheckTask {
    fn drop(&mut self) {
        self.0.abort();
    }
}

async fn ask(connector: &Connector, upstream: &Upstream, path: &str) -> io::Result<StatusCode> {
    let stream = connector.connect().await?;
    let is_http2 = stream.is_http2();
    let scheme = if upstream.tls { "https" } else { "http" };
    let target =
        if is_http2 { format!("{scheme}://{}{path}", upstream.authority) } else { path.to_owned() };
    let mut request = Request::get(target).header(header::USER_AGENT, "retrysafe-health");
    if !is_http2 {
        request = request.header(header::HOST, upstream.authority.as_str());
    }
    let request = request.body(Empty::<Bytes>::new()).map_err(io::Error::other)?;
    let stream = TokioIo::new(stream);
    if is_http2 {
        let (mut sender, connection) =
            http2::handshake(TokioExecutor::new(), stream).await.map_err(io::Error::other)?;
        let _task = CheckTask(tokio::spawn(connection).abort_handle());
        return Ok(sender.send_request(request).await.map_err(io::Error::other)?.status());
    }
    let (mut sender, connection) = http1::handshake(stream).await.map_err(io::Error::other)?;
    let _task = CheckTask(tokio::spawn(connection).abort_handle());
    Ok(sender.send_request(request).await.map_err(io::Error::other)?.status())
}
