//! How long may an upstream's answer pause?
//!
//! Time counts only while the answer's next piece is waited for. A caller who reads slowly does not
//! ask for the next piece, so its slowness is not the upstream's.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::time::{Instant, Sleep, sleep_until};

/// The bounds of an answer's pauses.
pub(crate) struct Silence {
    pause_max: Duration,
    timer: Option<Pin<Box<Sleep>>>,
    is_counting: bool,
}

impl Silence {
    /// At most `pause_max` between two pieces.
    pub(crate) fn new(pause_max: Duration) -> Self {
        Self { pause_max, timer: None, is_counting: false }
    }

    /// The next piece has come.
    pub(crate) fn broken(&mut self) {
        self.is_counting = false;
    }

    /// The next piece is waited for: ready once that has taken too long.
    pub(crate) fn poll_too_long(&mut self, context: &mut Context<'_>) -> Poll<()> {
        // A pause so long that no clock shows its end is no bound.
        let Some(end) = Instant::now().checked_add(self.pause_max) else { return Poll::Pending };
        let timer = self.timer.get_or_insert_with(|| Box::pin(sleep_until(end)));
        if !self.is_counting {
            self.is_counting = true;
            timer.as_mut().reset(end);
        }
        timer.as_mut().poll(context)
    }
}
