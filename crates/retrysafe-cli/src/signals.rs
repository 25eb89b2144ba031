//! What is a process told from outside?

use tokio::signal::unix::{Signal, SignalKind, signal};

/// What it is told.
pub(crate) enum Told {
    Stop,
    Reload,
}

/// Whoever tells it.
pub(crate) struct Signals {
    terminate: Signal,
    interrupt: Signal,
    hang_up: Signal,
}

impl Signals {
    /// # Errors
    ///
    /// If the system does not let us hear.
    pub(crate) fn new() -> std::io::Result<Self> {
        Ok(Self {
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
            hang_up: signal(SignalKind::hangup())?,
        })
    }

    /// Waits until somebody says stop.
    pub(crate) async fn stop(&mut self) {
        while let Told::Reload = self.next().await {
            tracing::info!("there is nothing to reload now");
        }
    }

    pub(crate) async fn next(&mut self) -> Told {
        tokio::select! {
            _ = self.terminate.recv() => Told::Stop,
            _ = self.interrupt.recv() => Told::Stop,
            _ = self.hang_up.recv() => Told::Reload,
        }
    }
}
