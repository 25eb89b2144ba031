//! What does a payment provider do to those who call it?
//!
//! Whatever the examples must survive: it is slow, it resets connections, it fails after it has charged the card, it forgets
//! keys, it takes none. It counts what it has really done, so that a test can say "one charge per ride". Loopback only.
//!
//! | request | what it does |
//! | --- | --- |
//! | `POST /charges` with `{"ride": "…", "cents": 1200}` | charges, once per `Idempotency-Key` that it remembers |
//! | `POST /receipts` with `{"ride": "…", "text": "…"}` | mails a receipt, once per `Idempotency-Key` that it remembers |
//! | `GET /charges`, `GET /charges/RIDE` | says what was charged and mailed, in all and for one ride |
//! | `PUT /modes/RIDE` with `{"mode": "slow", "ms": 500, "times": 1}` | sets what happens to that ride's next requests; `*` is every ride |
//! | `GET /held/RIDE`, `POST /release/RIDE` | waits until a request of that ride is held; lets it go on |
//! | `PUT /connections` with `{"reset": 1}` | resets the next connections before anything is read |
//! | `PUT /settings` with `{"takes_keys": true, "remembers_ms": 1000}` | changes what it takes and remembers |
//! | `POST /forget` | forgets every key at once |

mod ledger;
mod modes;
mod serve;

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::net::TcpListener;
use tokio::sync::Notify;
use tokio::task::AbortHandle;

pub use ledger::{ChargedRide, Settings, Totals};
pub use modes::{Mode, ModeChange};

use ledger::Ledger;
use modes::Modes;

/// A provider that listens. It ends when this is dropped.
#[derive(Debug)]
pub struct PaymentProvider {
    address: SocketAddr,
    desk: Arc<Desk>,
    serving: AbortHandle,
}

/// What all connections share.
#[derive(Debug, Default)]
struct Desk {
    state: Mutex<DeskState>,
    /// Somebody is held, or was let go.
    changed: Notify,
}

#[derive(Debug, Default)]
struct DeskState {
    ledger: Ledger,
    modes: Modes,
    /// How many requests of each ride are being worked on.
    at_work: HashMap<String, u32>,
}

impl PaymentProvider {
    /// Listens on this address, which must be of this machine alone.
    ///
    /// # Errors
    ///
    /// If the address is not a loopback address, or is taken.
    pub async fn start(address: SocketAddr, settings: Settings) -> std::io::Result<Self> {
        if !address.ip().is_loopback() {
            return Err(std::io::Error::other("the provider listens on loopback addresses only"));
        }
        let listener = TcpListener::bind(address).await?;
        let address = listener.local_addr()?;
        let desk = Arc::new(Desk::default());
        desk.state().ledger.settings = settings;
        let serving = tokio::spawn(serve::accept(listener, Arc::clone(&desk))).abort_handle();
        Ok(Self { address, desk, serving })
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Sets what happens to the next requests of a ride; `*` is every ride.
    pub fn set_mode(&self, ride: &str, change: ModeChange) {
        self.desk.state().modes.set(ride, change);
    }

    /// Resets the next connections before anything is read.
    pub fn reset_connections(&self, count: u32) {
        self.desk.state().modes.resets = count;
    }

    /// Waits until a request of this ride is held.
    pub async fn held(&self, ride: &str) {
        self.desk.until(|state| state.modes.is_held(ride)).await;
    }

    /// Lets the held requests of this ride go on.
    pub fn release(&self, ride: &str) {
        self.desk.release(ride);
    }

    /// Waits until no request of this ride is being worked on.
    pub async fn idle(&self, ride: &str) {
        self.desk.until(|state| !state.at_work.contains_key(ride)).await;
    }

    /// Changes what it takes and remembers.
    pub fn set(&self, settings: Settings) {
        self.desk.state().ledger.settings = settings;
    }

    /// Forgets every key.
    pub fn forget_keys(&self) {
        self.desk.state().ledger.forget_keys();
    }

    /// What was charged for a ride.
    pub fn ride(&self, ride: &str) -> ChargedRide {
        self.desk.state().ledger.ride(ride)
    }

    /// What was charged in all.
    pub fn totals(&self) -> Totals {
        self.desk.state().ledger.totals()
    }
}

impl Drop for PaymentProvider {
    fn drop(&mut self) {
        self.serving.abort();
    }
}

impl Desk {
    fn state(&self) -> MutexGuard<'_, DeskState> {
        // Nothing panics while it is held; and what a test counts is told even then.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn release(&self, ride: &str) {
        self.state().modes.release(ride);
        self.changed.notify_waiters();
    }

    fn begins_work(&self, ride: &str) {
        *self.state().at_work.entry(ride.to_owned()).or_default() += 1;
    }

    fn ends_work(&self, ride: &str) {
        let mut state = self.state();
        let left = state.at_work.get(ride).map_or(0, |count| count.saturating_sub(1));
        if left == 0 {
            state.at_work.remove(ride);
        } else {
            state.at_work.insert(ride.to_owned(), left);
        }
        drop(state);
        self.changed.notify_waiters();
    }

    /// Waits until this holds.
    async fn until(&self, holds: impl Fn(&DeskState) -> bool) {
        loop {
            let mut changed = std::pin::pin!(self.changed.notified());
            changed.as_mut().enable();
            if holds(&self.state()) {
                return;
            }
            changed.await;
        }
    }
}
