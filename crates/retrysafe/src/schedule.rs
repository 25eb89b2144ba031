//! When is somebody asked about what nobody knows?
//!
//! A schedule is data, and reads as people say it: `10s, 1m, 5×5m, 4×30m, 4×6h`. Each entry is a pause. The first one begins when
//! the record became unknown, every other one at the lookup before it; `5×5m` stands for five lookups, five minutes apart. When
//! all of them are used up, a person must decide.

use std::error::Error;
use std::fmt;
use std::num::NonZeroU32;
use std::str::FromStr;
use std::time::Duration;

use retrysafe_core::record::{Happened, Record, Standing, State};
use retrysafe_core::store::{Filter, Query};
use retrysafe_core::time::Time;
use retrysafe_core::units;

/// How many lookups a schedule may have. What a thousand lookups did not find is not found by asking.
pub const LOOKUPS_MAX: usize = 1_000;

/// How many lookups are under way at once unless it is set: one that hangs does not hold up the others, and a
/// provider that was down is not met by all of them.
const LOOKUPS_AT_ONCE: usize = 8;

/// How many records one page of a scan holds.
const PAGE: usize = 256;

/// The pauses between lookups.
///
/// ```
/// use std::time::Duration;
/// use retrysafe::upkeep::LookupPauses;
///
/// let pauses: LookupPauses = "30s, 2m, 2x5m".parse()?;
/// assert_eq!(pauses.to_string(), "30s, 2m, 2×5m");
/// assert_eq!(pauses.lookups(), 4);
/// // The third lookup, counted from the moment at which the record became unknown, if none is late.
/// assert_eq!(pauses.time_of(2), Some(Duration::from_secs(30 + 120 + 300)));
/// # Ok::<(), retrysafe::upkeep::PausesError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LookupPauses(Vec<Duration>);

/// Why a text is not a schedule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PausesError(String);

impl fmt::Display for PausesError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl Error for PausesError {}

impl LookupPauses {
    /// Pauses, one for each lookup. None if there are none, or more than [`LOOKUPS_MAX`].
    pub fn new(pauses: Vec<Duration>) -> Option<Self> {
        (1..=LOOKUPS_MAX).contains(&pauses.len()).then_some(Self(pauses))
    }

    /// The pauses between these times, which count from the moment at which a record became unknown, and rise. None if there are
    /// none, or more than [`LOOKUPS_MAX`].
    pub fn between(times: &[Duration]) -> Option<Self> {
        let before = [Duration::ZERO].into_iter().chain(times.iter().copied());
        Self::new(
            times.iter().zip(before).map(|(time, before)| time.saturating_sub(before)).collect(),
        )
    }

    /// How many lookups there are.
    pub fn lookups(&self) -> usize {
        self.0.len()
    }

    /// When a lookup comes, counted from zero, after the record became unknown, if none before it is late.
    pub fn time_of(&self, lookup: usize) -> Option<Duration> {
        let pauses = self.0.get(..=lookup)?;
        Some(pauses.iter().copied().fold(Duration::ZERO, Duration::saturating_add))
    }

    fn pause_before(&self, lookup: u32) -> Option<Duration> {
        self.0.get(usize::try_from(lookup).ok()?).copied()
    }
}

impl FromStr for LookupPauses {
    type Err = PausesError;

    fn from_str(text: &str) -> Result<Self, PausesError> {
        let mut pauses: Vec<Duration> = Vec::new();
        for entry in text.split(',').map(str::trim) {
            let (count, pause) = read_entry(entry)?;
            if pauses.len().saturating_add(count) > LOOKUPS_MAX {
                return Err(PausesError(format!(
                    "has more than {LOOKUPS_MAX} lookups; what so many did not find is a person's to decide"
                )));
            }
            if pause.is_zero() && (count > 1 || !pauses.is_empty()) {
                return Err(PausesError(format!(
                    "{entry:?}: only the first pause may be nothing; the others keep the provider from being asked without end"
                )));
            }
            if let Some(before) = pauses.last().filter(|before| **before > pause) {
                return Err(PausesError(format!(
                    "{entry:?} is shorter than the {} before it: each entry is the pause after the lookup before it, and pauses do \
                     not become shorter",
                    units::show_duration(*before)
                )));
            }
            pauses.extend(std::iter::repeat_n(pause, count));
        }
        Self::new(pauses).ok_or_else(|| PausesError("has no lookups".into()))
    }
}

/// `5m` or `5×5m`.
fn read_entry(entry: &str) -> Result<(usize, Duration), PausesError> {
    let wrong = |what: &dyn fmt::Display| PausesError(format!("{entry:?}: {what}"));
    if entry.is_empty() {
        return Err(PausesError("has an empty entry; write it such as 30s, 2m, 5×5m".into()));
    }
    let (count, length) = match entry.split_once(['×', 'x']) {
        Some((count, length)) => (count.trim(), length.trim()),
        None => ("1", entry),
    };
    let count = count.parse::<usize>().ok().filter(|count| *count > 0);
    let count = count.ok_or_else(|| wrong(&"before × stands a whole number from 1 on"))?;
    let pause = units::parse_duration(length).map_err(|error| wrong(&error))?;
    Ok((count, pause))
}

impl fmt::Display for LookupPauses {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, same) in self.0.chunk_by(|one, next| one == next).enumerate() {
            if at > 0 {
                f.write_str(", ")?;
            }
            if same.len() > 1 {
                write!(f, "{}×", same.len())?;
            }
            f.write_str(
                &same.first().map(|pause| units::show_duration(*pause)).unwrap_or_default(),
            )?;
        }
        Ok(())
    }
}

/// When to ask, how fast, and what counts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Schedule {
    /// As many lookups as there are pauses; afterwards a record is dead-lettered.
    pub pauses: LookupPauses,
    /// How often records that are due are looked for.
    pub look_every: Duration,
    /// How long one lookup may take.
    pub lookup_max: Duration,
    /// Where a reconciler's `absence` says that "not found" is proof: how long a record must have
    /// been seen as unknown before it is. At least the lease, within which its owner may still
    /// send, plus the longest that a request can be on its way until the downstream shows it.
    pub settle_time: Duration,
    /// How many lookups are under way at once.
    pub at_once: usize,
    /// How many lookups begin in a second. As many as are due unless it is set.
    pub per_second: Option<NonZeroU32>,
    /// Only records of this route.
    pub route: Option<Box<str>>,
}

impl Default for Schedule {
    fn default() -> Self {
        let minutes = |minutes: u64| Duration::from_secs(minutes * 60);
        let mut pauses = vec![Duration::from_secs(10), minutes(1)];
        for (count, pause) in [(5, minutes(5)), (4, minutes(30)), (4, minutes(6 * 60))] {
            pauses.extend(std::iter::repeat_n(pause, count));
        }
        Self {
            pauses: LookupPauses(pauses),
            look_every: Duration::from_secs(5),
            lookup_max: Duration::from_secs(30),
            settle_time: minutes(60),
            at_once: LOOKUPS_AT_ONCE,
            per_second: None,
            route: None,
        }
    }
}

/// Where an unknown record stands on its schedule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LookupTurn {
    Due,
    Later,
    DeadLettered,
    /// It is not unknown any more.
    Decided,
}

impl Schedule {
    pub(crate) fn turn(&self, record: &Record, now: Time) -> LookupTurn {
        match &record.state {
            State::Unknown { since, lookups, .. } => {
                self.turn_of(*lookups, *since, last_lookup(record), now)
            }
            State::InProgress { .. } | State::Completed { .. } | State::FailedRetryable { .. } => {
                LookupTurn::Decided
            }
        }
    }

    /// The turn of something that is unknown since then, after so many lookups, the last of which was then.
    pub(crate) fn turn_of(
        &self,
        lookups: u32,
        since: Time,
        last: Option<Time>,
        now: Time,
    ) -> LookupTurn {
        let Some(pause) = self.pauses.pause_before(lookups) else {
            return LookupTurn::DeadLettered;
        };
        let planned = usize::try_from(lookups).ok().and_then(|at| self.pauses.time_of(at));
        let is_planned = planned.is_some_and(|after| now.since(since) >= after);
        // A process that was down does not ask again and again to catch up: half the pause is left between two lookups. Not the whole
        // one, so that lookups which come a little late do not drift.
        let has_paused = last.is_none_or(|last| now.since(last) >= pause / 2);
        if is_planned && has_paused { LookupTurn::Due } else { LookupTurn::Later }
    }

    pub(crate) fn is_last_lookup(&self, record: &Record) -> bool {
        match &record.state {
            State::Unknown { lookups, .. } => *lookups as usize + 1 >= self.pauses.lookups(),
            State::InProgress { .. } | State::Completed { .. } | State::FailedRetryable { .. } => {
                false
            }
        }
    }

    pub(crate) fn query(&self) -> Query {
        let standing = Some(Standing::Unknown);
        let route = self.route.clone();
        Query { filter: Filter { standing, route, ..Filter::default() }, after: None, limit: PAGE }
    }

    /// How long to wait between the beginnings of two lookups.
    pub(crate) fn gap(&self) -> Duration {
        self.per_second.map_or(Duration::ZERO, |number| Duration::from_secs(1) / number.get())
    }
}

/// When the present attempt was asked about last.
fn last_lookup(record: &Record) -> Option<Time> {
    let mut lookups = record.timeline.iter().rev().filter(|moment| {
        moment.fence == record.fence && matches!(moment.what, Happened::LookedUp(_))
    });
    lookups.next().map(|moment| moment.at)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn a_schedule_reads_as_people_say_it_and_is_said_back() {
        for (text, shown, lookups) in [
            ("30s, 2m, 5×5m, 4×30m, 4×6h", "30s, 2m, 5×5m, 4×30m, 4×6h", 15),
            ("30s,2m,5x5m", "30s, 2m, 5×5m", 7),
            ("5m, 5m, 5m", "3×5m", 3),
            ("0s, 400ms", "0s, 400ms", 2),
            (" 1 × 90s ", "90s", 1),
            ("1000×1s", "1000×1s", 1_000),
        ] {
            let pauses: LookupPauses = text.parse().unwrap();
            assert_eq!((pauses.to_string().as_str(), pauses.lookups()), (shown, lookups), "{text}");
            assert_eq!(shown.parse::<LookupPauses>().unwrap(), pauses);
        }
        let default = Schedule::default().pauses;
        assert_eq!(default.to_string(), "10s, 1m, 5×5m, 4×30m, 4×6h");
    }

    #[test]
    fn a_schedule_that_makes_no_sense_says_why() {
        for (text, why) in [
            ("", "empty entry"),
            ("5m,", "empty entry"),
            ("0×5m", "from 1 on"),
            ("-1×5m", "from 1 on"),
            ("×5m", "from 1 on"),
            ("999999×1s", "more than 1000 lookups"),
            ("18446744073709551615×1s, 5×1s", "more than 1000 lookups"),
            ("99999999999999999999×1s", "from 1 on"),
            ("5m, 1m", "pauses do not become shorter"),
            ("1s, 0s", "only the first pause may be nothing"),
            ("2×0s", "only the first pause may be nothing"),
            ("5", "length of time"),
            ("5×", "length of time"),
            ("2×2×5m", "length of time"),
            ("daily", "length of time"),
        ] {
            let error = text.parse::<LookupPauses>().unwrap_err().to_string();
            assert!(error.contains(why), "{text}: {error}");
        }
        assert_eq!(LookupPauses::new(vec![]), None);
        assert_eq!(LookupPauses::new(vec![SECOND; LOOKUPS_MAX + 1]), None);
    }

    #[test]
    fn each_entry_is_a_pause_after_the_lookup_before_it() {
        let pauses: LookupPauses = "10s, 1m, 2×5m".parse().unwrap();
        let times: Vec<u64> =
            (0..4).filter_map(|at| pauses.time_of(at)).map(|time| time.as_secs()).collect();
        assert_eq!(times, [10, 70, 370, 670]);
        assert_eq!(pauses.time_of(4), None);
        let again =
            LookupPauses::between(&times.iter().map(|s| SECOND * *s as u32).collect::<Vec<_>>());
        assert_eq!(again, Some(pauses.clone()));
        let schedule = Schedule { pauses, ..Schedule::default() };
        let since = Time::from_ms(1_000_000);
        let turn = |lookups, last: Option<u64>, now: u64| {
            let at = |seconds: u64| since.plus(SECOND * u32::try_from(seconds).unwrap());
            schedule.turn_of(lookups, since, last.map(at), at(now))
        };
        assert_eq!(turn(0, None, 9), LookupTurn::Later);
        assert_eq!(turn(0, None, 10), LookupTurn::Due);
        assert_eq!(turn(1, Some(10), 69), LookupTurn::Later);
        assert_eq!(turn(1, Some(12), 70), LookupTurn::Due, "a late lookup does not shift the next");
        // Down for an hour: what was missed is not asked at once, one lookup after the other.
        assert_eq!(turn(1, None, 3_600), LookupTurn::Due);
        assert_eq!(turn(2, Some(3_600), 3_605), LookupTurn::Later);
        assert_eq!(turn(2, Some(3_600), 3_750), LookupTurn::Due);
        assert_eq!(turn(4, Some(3_750), 99_999), LookupTurn::DeadLettered);
    }
}
