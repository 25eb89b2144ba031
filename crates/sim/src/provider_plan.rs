//! How does a provider tell what it did?
//!
//! A share of the histories is about reconciliation over a virtual month. What a lookup shows is behind what was done, by
//! another length each time, so that lookups contradict one another; some fail. The provider also reports its effects by itself: early,
//! late, twice, out of order or never, and again until it is told that its report is kept. Reconcilers ask by a schedule,
//! and what the schedule could not decide is a dead letter.

use std::fmt;

use retrysafe_core::policy::Absence;

use crate::chance::Chance;

const SECOND: u64 = 1_000;
const MINUTE: u64 = 60 * SECOND;
const HOUR: u64 = 60 * MINUTE;
const DAY: u64 = 24 * HOUR;

/// Within how long the keys of a history are used for the first time.
pub const MONTH_MS: u64 = 30 * DAY;

/// After which pauses a reconciler asks: 30 s, 2 m, 5 × 5 m, 4 × 30 m, 4 × 6 h.
pub const SCHEDULE_MS: [u64; 15] = [
    30 * SECOND,
    2 * MINUTE,
    5 * MINUTE,
    5 * MINUTE,
    5 * MINUTE,
    5 * MINUTE,
    5 * MINUTE,
    30 * MINUTE,
    30 * MINUTE,
    30 * MINUTE,
    30 * MINUTE,
    6 * HOUR,
    6 * HOUR,
    6 * HOUR,
    6 * HOUR,
];

/// What a history with such a provider is made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProviderPlan {
    /// By how much a lookup may be behind what was done.
    pub lag_max_ms: u64,
    /// Whether it can be asked at all. Some providers only report.
    pub has_lookups: bool,
    /// How many lookups of a hundred fail, or say that they do not know yet.
    pub silent_percent: u64,
    /// How many effects of a hundred the provider reports by itself.
    pub reports_percent: u64,
    /// How many of its reports of a hundred are lost on their way.
    pub lost_percent: u64,
    /// How often it sends a report that nobody acknowledges.
    pub tries_max: u8,
    /// How long records are kept.
    pub ttl_ms: u64,
    /// After how many lookups a record is a dead letter.
    pub lookups_max: u32,
}

impl ProviderPlan {
    /// A plan by chance, for leases of this length. An absence that is proof waits for whatever a lookup may be behind, so
    /// that is not long then.
    pub fn draw(chance: &mut Chance, lease_ms: u64, absence: Absence) -> Self {
        let lag_most = match absence {
            Absence::Proof => 10 * lease_ms,
            Absence::Inconclusive => 2 * DAY,
        };
        Self {
            lag_max_ms: chance.scaled(100, lag_most),
            has_lookups: chance.percent(75),
            silent_percent: chance.below(50),
            reports_percent: chance.pick(100, &[0, 50, 80]),
            lost_percent: chance.below(60),
            tries_max: chance.between(1, 6) as u8,
            ttl_ms: chance.scaled(HOUR, 7 * DAY),
            lookups_max: chance.between(3, 10) as u32,
        }
    }

    /// After how long a report is sent again that was sent so often: minutes at first, then days.
    pub fn resend_ms(&self, tries: u8) -> u64 {
        MINUTE << (2 * u32::from(tries.min(6)))
    }
}

impl fmt::Display for ProviderPlan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { lag_max_ms, silent_percent, reports_percent, lost_percent, tries_max, .. } =
            self;
        let has_lookups = self.has_lookups;
        write!(
            f,
            "provider=(lookups={has_lookups} lag_max={lag_max_ms}ms silent={silent_percent}% reports={reports_percent}% lost={lost_percent}% tries_max={tries_max})"
        )
    }
}
