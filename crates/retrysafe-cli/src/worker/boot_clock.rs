//! How much time has passed since a moment, the machine's sleep included?

use std::time::Duration;

/// A moment on a clock that runs through suspend.
#[derive(Clone, Copy, Debug)]
pub(super) struct BootMoment(Duration);

impl BootMoment {
    pub(super) fn now() -> Self {
        Self(since_boot())
    }

    pub(super) fn elapsed(self) -> Duration {
        since_boot().saturating_sub(self.0)
    }
}

#[cfg(target_os = "linux")]
fn since_boot() -> Duration {
    let since_boot = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
    // It counts from zero.
    Duration::try_from(since_boot).unwrap_or_default()
}

/// Other systems have no such clock that Rust reaches: there a sleep is not seen.
#[cfg(not(target_os = "linux"))]
fn since_boot() -> Duration {
    use std::sync::OnceLock;
    use std::time::Instant;
    static START: OnceLock<Instant> = OnceLock::new();
    START.get_or_init(Instant::now).elapsed()
}
