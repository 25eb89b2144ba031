//! How much time has passed, the machine's sleep included?
//!
//! An `Instant` stands still while the machine is suspended; a lease in a store elsewhere does not. An
//! owner that slept through its lease must not send, so the check before sending asks this clock.

use std::time::Duration;

use tokio::time::Instant;

/// A moment on a clock that runs through suspend, and on the clock of the runtime, which a simulator moves.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BootMoment {
    since_boot: Duration,
    instant: Instant,
}

impl BootMoment {
    pub(crate) fn now() -> Self {
        Self { since_boot: since_boot(), instant: Instant::now() }
    }

    /// How long ago it was, by the clock that says longer.
    pub(crate) fn elapsed(self) -> Duration {
        since_boot().saturating_sub(self.since_boot).max(self.instant.elapsed())
    }
}

#[cfg(not(test))]
fn since_boot() -> Duration {
    read()
}

/// In tests the machine sleeps between two looks at the clock, for as long as the test says.
#[cfg(test)]
fn since_boot() -> Duration {
    tests::SLEPT.with(|slept| slept.set(slept.get() + tests::NAP.get()));
    read() + tests::SLEPT.get()
}

#[cfg(target_os = "linux")]
fn read() -> Duration {
    let since_boot = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
    // It counts from zero.
    Duration::try_from(since_boot).unwrap_or_default()
}

/// Other systems have no such clock that Rust reaches: there a sleep is not seen.
#[cfg(not(target_os = "linux"))]
fn read() -> Duration {
    use std::sync::OnceLock;
    use std::time::Instant;
    static START: OnceLock<Instant> = OnceLock::new();
    START.get_or_init(Instant::now).elapsed()
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::convert::Infallible;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::time::Duration;

    use bytes::Bytes;
    use http::{Request, Response, StatusCode};
    use http_body_util::Full;
    use retrysafe_core::Policy;
    use tower::{ServiceExt as _, service_fn};
    use tower_layer::Layer as _;

    use crate::layer::IdempotencyLayer;
    use crate::stores::memory::MemoryStore;

    thread_local! {
        /// How long the machine sleeps between two looks at the clock.
        pub(super) static NAP: Cell<Duration> = const { Cell::new(Duration::ZERO) };
        pub(super) static SLEPT: Cell<Duration> = const { Cell::new(Duration::ZERO) };
    }

    #[tokio::test]
    async fn an_owner_that_slept_through_its_lease_does_not_send() {
        let runs = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&runs);
        let handler = service_fn(move |_: Request<_>| {
            counted.fetch_add(1, Ordering::AcqRel);
            async { Ok::<_, Infallible>(Response::new(Full::new(Bytes::from_static(b"done")))) }
        });
        let service = IdempotencyLayer::new(MemoryStore::default()).layer(handler);
        let ask = || {
            let request = Request::post("/").header("idempotency-key", "k");
            service.clone().oneshot(request.body(Full::<Bytes>::default()).unwrap())
        };
        NAP.set(Policy::default().lease);
        assert_eq!(ask().await.unwrap().status(), StatusCode::SERVICE_UNAVAILABLE);
        assert_eq!(runs.load(Ordering::Acquire), 0, "nothing was sent");
        NAP.set(Duration::ZERO);
        assert_eq!(ask().await.unwrap().status(), StatusCode::OK, "the key is free");
        assert_eq!(runs.load(Ordering::Acquire), 1);
    }
}
