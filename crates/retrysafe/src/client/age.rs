//! How long ago was a call first sent?
//!
//! A server forgets keys, and executes what it has forgotten; so a call has an age past which it is
//! not sent again. No single clock knows that age. The wall clock can be set back. The monotonic
//! clock of this process is gone after a restart, and stands still while the machine sleeps. The
//! time since the machine was started runs through both, and is gone after a reboot. The age is the
//! greatest that any of them shows: a clock that is wrong can end a call early, and makes an old
//! one young only if all of them are wrong together.
//!
//! After a reboot the wall clock alone is left. If it shows a time before the call was written, it
//! was set back, and the age is not known. Set back by less than that, it makes the call look
//! younger than it is: that cannot be seen from here.

use std::fs;
use std::sync::OnceLock;
use std::time::{Duration, SystemTime};

use tokio::time::Instant;

/// When a call was first sent, or about to be, by every clock that could tell.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FirstSent {
    pub(crate) wall: SystemTime,
    pub(crate) boot: Option<BootReading>,
    /// By the monotonic clock of this process, if it was this process that sent it.
    pub(crate) here: Option<Instant>,
}

/// How long a machine had been up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BootReading {
    /// A random number that the machine draws each time it is started.
    pub(crate) boot_id: u128,
    pub(crate) uptime: Duration,
}

impl FirstSent {
    pub(crate) fn now() -> Self {
        Self { wall: SystemTime::now(), boot: BootReading::now(), here: Some(Instant::now()) }
    }

    /// Its age, if any clock can tell.
    pub(crate) fn age(&self) -> Option<Duration> {
        self.age_at(&Self::now())
    }

    fn age_at(&self, now: &Self) -> Option<Duration> {
        let by_wall = now.wall.duration_since(self.wall).ok();
        let by_boot = self.boot.zip(now.boot).and_then(|(then, now)| now.since(then));
        let by_process = self.here.zip(now.here).map(|(then, now)| now.duration_since(then));
        [by_wall, by_boot, by_process].into_iter().flatten().max()
    }
}

impl BootReading {
    #[cfg(target_os = "linux")]
    fn now() -> Option<Self> {
        static BOOT_ID: OnceLock<Option<u128>> = OnceLock::new();
        let boot_id = (*BOOT_ID.get_or_init(|| {
            let text = fs::read_to_string("/proc/sys/kernel/random/boot_id").ok()?;
            u128::from_str_radix(&text.trim().replace('-', ""), 16).ok()
        }))?;
        let text = fs::read_to_string("/proc/uptime").ok()?;
        let seconds = text.split(' ').next()?.parse().ok()?;
        Some(Self { boot_id, uptime: Duration::try_from_secs_f64(seconds).ok()? })
    }

    /// Elsewhere this clock is not read, and the others have to do.
    #[cfg(not(target_os = "linux"))]
    fn now() -> Option<Self> {
        None
    }

    fn since(self, then: Self) -> Option<Duration> {
        if self.boot_id == then.boot_id { self.uptime.checked_sub(then.uptime) } else { None }
    }
}

#[cfg(test)]
mod tests {
    use std::time::UNIX_EPOCH;

    use super::*;

    const HOUR: Duration = Duration::from_secs(3_600);

    /// So many hours by the wall clock and, in this boot, by the machine's own.
    fn at(wall: u32, boot: Option<(u128, u32)>) -> FirstSent {
        let boot = boot.map(|(boot_id, up)| BootReading { boot_id, uptime: HOUR * up });
        FirstSent { wall: UNIX_EPOCH + HOUR * wall, boot, here: None }
    }

    #[test]
    fn the_age_is_the_greatest_that_any_clock_shows() {
        let then = at(100, Some((1, 5)));
        for (now, age, why) in [
            (at(103, Some((1, 8))), Some(3), "the clocks agree"),
            (at(90, Some((1, 30))), Some(25), "the wall clock was set back"),
            (at(101, Some((1, 30))), Some(25), "it was set back by a little"),
            (at(140, Some((1, 6))), Some(40), "it was set forward: old is the safe side"),
            (at(103, Some((2, 8))), Some(3), "after a reboot the wall clock is left"),
            (at(90, Some((2, 8))), None, "and it was set back"),
            (at(90, None), None, "nothing else can tell"),
            (at(90, Some((1, 4))), None, "a clock that goes back tells nothing"),
        ] {
            assert_eq!(then.age_at(&now), age.map(|hours| HOUR * hours), "{why}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn within_one_process_the_age_is_always_known() {
        let then = FirstSent { wall: SystemTime::now() + HOUR, boot: None, ..FirstSent::now() };
        tokio::time::advance(HOUR * 25).await;
        assert_eq!(then.age(), Some(HOUR * 25), "though the wall clock was set back");
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn the_time_since_the_machine_was_started_can_be_read() {
        let then = BootReading::now().unwrap();
        assert!(BootReading::now().unwrap().since(then).is_some());
    }
}
