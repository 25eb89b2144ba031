//! How is the gateway run inside another program, over connections that are no sockets?
//!
//! Everything from the first byte of a caller's connection to the last byte of the upstream's is the gateway's own: the HTTP of both
//! sides, the front door, routes, scopes, the layer, the proxy and its pool. The other program listens and dials. The
//! simulator does that, with a clock that stands still while anybody works.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use hyper_util::rt::TokioIo;
use retrysafe::layer::Drain;
use retrysafe_core::store::Store;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::watch;

pub use super::connect::{Connecting, UpstreamIo};
use super::connect::{Connector, Dial};
use super::descriptors::ConnectionSlots;
use super::headers::Peer;
use super::live::Live;
use super::{Gateway, Worker, listen};
use crate::config::{self, source};

/// How many connections there may be, more than any simulation opens.
const CONNECTIONS_MAX: usize = 1_000;

/// One worker of a gateway.
pub struct InProcess<S> {
    worker: Arc<Worker<S>>,
    dial: Arc<Dial>,
    stop: watch::Sender<bool>,
}

impl<S> std::fmt::Debug for InProcess<S> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("InProcess").finish_non_exhaustive()
    }
}

impl<S: Store> InProcess<S> {
    /// A gateway with these settings, as they stand in a configuration file. Its owners are numbered from `first_owner` on.
    ///
    /// # Errors
    ///
    /// What is wrong with the settings.
    pub fn new(
        settings: &str,
        store: S,
        first_owner: u64,
        dial: impl Fn() -> Connecting + Send + Sync + 'static,
    ) -> Result<Self, String> {
        let dial: Arc<Dial> = Arc::new(dial);
        let live = live(settings, &dial, None)?;
        let slots = ConnectionSlots::new(CONNECTIONS_MAX);
        let gateway = Arc::new(Gateway::new(live, Arc::new(store), None, slots, first_owner));
        Ok(Self { worker: Arc::new(Worker::new(gateway)), dial, stop: watch::channel(false).0 })
    }

    /// Serves a caller's connection, until it ends.
    ///
    /// # Errors
    ///
    /// If it breaks.
    pub async fn serve(
        &self,
        caller: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    ) -> io::Result<()> {
        let peer = Peer::new([127, 0, 0, 1].into(), false);
        let worker = Arc::clone(&self.worker);
        listen::serve(worker, TokioIo::new(caller), peer, self.stop.subscribe(), false).await
    }

    /// Takes other settings while requests run.
    ///
    /// # Errors
    ///
    /// What is wrong with them.
    pub fn reload(&self, settings: &str) -> Result<(), String> {
        let live = live(settings, &self.dial, Some(&self.worker.live()))?;
        self.worker.gateway.set_live(Arc::new(live));
        Ok(())
    }

    /// Looks after the connections to the upstream, for ever.
    pub async fn tidy(&self) {
        loop {
            tokio::time::sleep(TIDY_EVERY).await;
            self.worker.tidy();
        }
    }

    /// Takes no further request from any connection.
    pub fn stop(&self) {
        self.stop.send_replace(true);
    }

    /// A handle by which a stop waits until every execution is settled.
    pub fn drain(&self) -> Drain {
        self.worker.gateway.drain()
    }
}

/// How often idle connections to the upstream are looked through.
const TIDY_EVERY: Duration = Duration::from_secs(1);

fn live(settings: &str, dial: &Arc<Dial>, former: Option<&Live>) -> Result<Live, String> {
    let source::Source { file, complaints, .. } = source::read(settings);
    if let Some(complaint) = complaints.first() {
        return Err(complaint.to_string());
    }
    let config = config::resolve(&file).map_err(|wrong| format!("{wrong:?}"))?;
    let live = Live::new(config, former)?;
    Ok(live.over(Connector::over(Arc::clone(dial))))
}
