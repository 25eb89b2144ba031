//! From which due time on does a claim look for effects?
//!
//! PostgreSQL keeps the index entry of an effect that was claimed until the next vacuum, and a claim that begins at the oldest
//! entry walks past all of them: a minute of a busy outbox is hundreds of thousands. So a claim begins a little before
//! where the last one found its first effect.
//!
//! That is a hint and never the truth: an effect may become visible below it. So everything is looked at once a second, and before
//! a claim says that there is nothing.

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use tokio::time::Instant;

/// How far below the last claim's first effect the next one begins. An effect is given its time when it is staged, and is seen when
/// its transaction commits. If that takes no longer than this, the effect is claimed at once.
const STAGING_TIME_MS: i64 = 5_000;

/// How long an effect below the floor may wait.
const WHOLE_LOOK_EVERY: Duration = Duration::from_secs(1);

/// How many effects of lanes are remembered. More than a worker has under way; some may be left over from leases that were lost.
const IN_LANES_MAX: usize = 10_000;

/// Where claims begin, for each kind.
#[derive(Debug, Default)]
pub(super) struct ClaimFloors {
    by_kind: HashMap<Box<str>, Floor>,
    /// Effects with a lane that were claimed. The end of one frees the next of its lane, which has been due for long.
    in_lanes: HashSet<i64>,
    /// How often the end of such an effect was told.
    lane_ends: u64,
}

#[derive(Debug)]
struct Floor {
    due_from_ms: i64,
    whole_look_at: Instant,
}

/// Where one claim begins.
#[derive(Clone, Copy, Debug)]
pub(super) struct ClaimStart {
    /// From which due time on; 0 for everything.
    pub due_from_ms: i64,
    /// `ClaimFloors::lane_ends` at the start of the claim. If that has changed since, the claim may have missed what was freed.
    lane_ends: u64,
}

impl ClaimFloors {
    /// Where the next claim of this kind begins.
    pub(super) fn start(&self, kind: &str, now: Instant) -> ClaimStart {
        let floor = self.by_kind.get(kind).filter(|floor| now < floor.whole_look_at);
        let due_from_ms = floor.map_or(0, |floor| floor.due_from_ms);
        ClaimStart { due_from_ms, lane_ends: self.lane_ends }
    }

    /// A claim that has begun there has found this to be due first.
    pub(super) fn found(&mut self, kind: &str, start: ClaimStart, first_due_ms: i64, now: Instant) {
        if start.lane_ends != self.lane_ends {
            return;
        }
        let due_from_ms = first_due_ms.saturating_sub(STAGING_TIME_MS);
        if start.due_from_ms == 0 {
            let whole_look_at = now + WHOLE_LOOK_EVERY;
            self.by_kind.insert(kind.into(), Floor { due_from_ms, whole_look_at });
        } else if let Some(floor) = self.by_kind.get_mut(kind) {
            floor.due_from_ms = due_from_ms;
        }
    }

    /// A claim that has begun there has found nothing. True if there may be something below: then the next claim of the kind looks at everything,
    /// and is to be made now.
    pub(super) fn found_nothing(&mut self, kind: &str, start: ClaimStart) -> bool {
        self.by_kind.remove(kind);
        start.due_from_ms > 0
    }

    /// An effect with a lane was claimed.
    pub(super) fn claimed_in_lane(&mut self, id: i64) {
        if self.in_lanes.len() >= IN_LANES_MAX {
            self.in_lanes.clear();
        }
        self.in_lanes.insert(id);
    }

    /// The server was told of these ends. If a lane goes on with another effect, the next claim finds it.
    pub(super) fn ended(&mut self, ids: impl Iterator<Item = i64>) {
        let in_lanes = &mut self.in_lanes;
        if ids.filter(|id| in_lanes.remove(id)).count() > 0 {
            self.by_kind.clear();
            self.lane_ends += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DUE: i64 = 1_000_000;

    /// Floors after a claim over everything, and when that was.
    fn after_whole_look() -> (ClaimFloors, Instant) {
        let now = Instant::now();
        let mut floors = ClaimFloors::default();
        let whole = floors.start("mail", now);
        assert_eq!(whole.due_from_ms, 0, "the first claim looks at everything");
        floors.found("mail", whole, DUE, now);
        (floors, now)
    }

    #[test]
    fn a_claim_goes_on_a_little_before_where_the_last_one_has_found_something() {
        let (mut floors, now) = after_whole_look();
        let start = floors.start("mail", now);
        assert_eq!(start.due_from_ms, DUE - STAGING_TIME_MS);
        floors.found("mail", start, DUE + 700, now);
        assert_eq!(floors.start("mail", now).due_from_ms, DUE + 700 - STAGING_TIME_MS);
        assert_eq!(floors.start("fax", now).due_from_ms, 0, "each kind has its own");
    }

    #[test]
    fn everything_is_looked_at_once_a_second_however_many_claims_there_are() {
        let (mut floors, begun) = after_whole_look();
        let mut now = begun;
        while now < begun + WHOLE_LOOK_EVERY {
            let start = floors.start("mail", now);
            assert!(start.due_from_ms > 0, "a second is not over");
            floors.found("mail", start, DUE, now);
            now += WHOLE_LOOK_EVERY / 10;
        }
        assert_eq!(floors.start("mail", now).due_from_ms, 0);
    }

    // A worker that finds nothing sleeps for up to five seconds.
    #[test]
    fn nobody_says_that_there_is_nothing_before_everything_was_looked_at() {
        let (mut floors, now) = after_whole_look();
        let start = floors.start("mail", now);
        assert!(floors.found_nothing("mail", start), "there may be something below");
        let whole = floors.start("mail", now);
        assert_eq!(whole.due_from_ms, 0);
        assert!(!floors.found_nothing("mail", whole), "everything was looked at");
    }

    // The next effect of a lane was staged long ago, and is ready from the end of the one before it on. Whoever looked for it above
    // the floor would find it a second later, and so would each one after it.
    #[test]
    fn after_the_end_of_an_effect_with_a_lane_everything_is_looked_at() {
        let (mut floors, now) = after_whole_look();
        floors.claimed_in_lane(7);
        floors.ended([6].into_iter());
        assert!(floors.start("mail", now).due_from_ms > 0, "it has no lane");
        floors.ended([6, 7].into_iter());
        let whole = floors.start("mail", now);
        assert_eq!(whole.due_from_ms, 0);
        floors.found("mail", whole, DUE, now);
        floors.ended([7].into_iter());
        assert!(floors.start("mail", now).due_from_ms > 0, "its end was told before");
    }

    #[test]
    fn a_claim_beside_the_end_of_an_effect_with_a_lane_leaves_no_floor() {
        let (mut floors, begun) = after_whole_look();
        let now = begun + WHOLE_LOOK_EVERY;
        let whole = floors.start("mail", now);
        floors.claimed_in_lane(7);
        floors.ended([7].into_iter());
        floors.found("mail", whole, DUE, now);
        assert_eq!(floors.start("mail", now).due_from_ms, 0);
    }

    #[test]
    fn lanes_of_lost_leases_do_not_fill_the_memory() {
        let mut floors = ClaimFloors::default();
        for id in 0..3 * i64::try_from(IN_LANES_MAX).unwrap() {
            floors.claimed_in_lane(id);
        }
        assert!(floors.in_lanes.len() <= IN_LANES_MAX);
    }
}
