//! What happens to a request, and who has said so?

use std::collections::{HashMap, HashSet};

use serde::Deserialize;

/// What happens to a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Deserialize)]
#[serde(tag = "mode", rename_all = "snake_case")]
pub enum Mode {
    /// It is charged and answered.
    #[default]
    Well,
    /// It is charged, and answered after this long.
    Slow {
        /// In milliseconds.
        ms: u64,
    },
    /// It is read and answered 503; nothing is charged.
    FailBeforeCharging,
    /// It is charged, and answered 500.
    FailAfterCharging,
    /// It is read, and the connection is reset; nothing is charged.
    ResetBeforeCharging,
    /// It is charged, and the connection is reset.
    ResetAfterCharging,
    /// The card is declined.
    Decline,
    /// "This key is in use".
    KeyInUse,
    /// It is read, and waits to be released; then it is charged and answered.
    HoldBeforeCharging,
    /// It is charged, and waits to be released; then it is answered.
    HoldAfterCharging,
}

/// What happens to the next requests of a ride.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
pub struct ModeChange {
    /// What happens to them.
    #[serde(flatten)]
    pub mode: Mode,
    /// To how many; none is all.
    pub times: Option<u32>,
}

impl Mode {
    /// This happens to one request.
    pub const fn once(self) -> ModeChange {
        ModeChange { mode: self, times: Some(1) }
    }

    /// This happens to every request.
    pub const fn always(self) -> ModeChange {
        ModeChange { mode: self, times: None }
    }
}

#[derive(Debug, Default)]
pub(crate) struct Modes {
    /// How many connections are reset before anything is read.
    pub(crate) resets: u32,
    by_ride: HashMap<String, ModeChange>,
    held: HashSet<String>,
}

impl Modes {
    pub(crate) fn set(&mut self, ride: &str, change: ModeChange) {
        self.by_ride.insert(ride.to_owned(), change);
    }

    /// What happens to a request of this ride now.
    pub(crate) fn take(&mut self, ride: &str) -> Mode {
        let name = if self.by_ride.contains_key(ride) { ride } else { "*" };
        let Some(change) = self.by_ride.get_mut(name) else { return Mode::Well };
        let mode = change.mode;
        if let Some(times) = &mut change.times {
            *times = times.saturating_sub(1);
            if *times == 0 {
                self.by_ride.remove(name);
            }
        }
        mode
    }

    /// Whether the next connection is reset.
    pub(crate) fn take_reset(&mut self) -> bool {
        let is_reset = self.resets > 0;
        self.resets = self.resets.saturating_sub(1);
        is_reset
    }

    pub(crate) fn hold(&mut self, ride: &str) {
        self.held.insert(ride.to_owned());
    }

    pub(crate) fn is_held(&self, ride: &str) -> bool {
        self.held.contains(ride)
    }

    pub(crate) fn release(&mut self, ride: &str) {
        self.held.remove(ride);
    }
}
