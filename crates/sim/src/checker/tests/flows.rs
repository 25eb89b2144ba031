//! Can the checker fail about flows?
//!
//! One flow of a transaction, a charge and a last transaction, written by hand; and for every promise about
//! flows a history that breaks it. Key 0, fence 1, charge 0, unless a story says otherwise.

use retrysafe_core::record::Standing as S;

use super::{LEASE_MS, Story, TTL_MS};
use crate::checker::{Checker, Sometimes};
use crate::flow_plan::FlowPlan;
use crate::history::{
    Act, By, Class, Entry, FlowSeen, Found, MarkSeen, NONE, Role, STORE_EPOCH_MS, What, Wrote,
};
use crate::invariant::Invariant as I;

/// How long the provider remembers, and how long the mark of these stories lasts.
const WINDOW_MS: u64 = 60_000;
const REPEATABLE_MS: u64 = 50_000;
/// The digest of the charge's bytes, and of others.
const BYTES: u8 = 2;
const OTHER_BYTES: u8 = 102;
/// What the transactions leave and answer.
const ROW: u16 = 1_025;
const ANSWER: u16 = 1_026;

fn seen(phase: u8, output: u16, mark: Option<MarkSeen>) -> FlowSeen {
    FlowSeen { key: 0, version: 1, phase, output, mark }
}

fn mark(set_by: u32, until: Option<u64>) -> MarkSeen {
    MarkSeen { set_by, digest: BYTES, until }
}

/// The mark of the stories: a time far from over.
fn remembered(set_by: u32) -> MarkSeen {
    mark(set_by, Some(STORE_EPOCH_MS + REPEATABLE_MS))
}

impl Story {
    fn of_flow(window_ms: Option<u64>) -> Self {
        Self::new().under(|rules| rules.flow = Some(FlowPlan::of_tests(window_ms, LEASE_MS)))
    }

    /// A write to the flow's record, and how far the flow is after it.
    fn moves(
        mut self,
        role: Role,
        act: Act,
        (standing, fence, body): (S, u32, u16),
        until: u64,
        after: Option<FlowSeen>,
    ) -> Self {
        self.version += 1;
        self.log.extend(after.map(|seen| Entry { at: self.now, what: What::Flow(seen) }));
        let now = STORE_EPOCH_MS + self.now + 10;
        let (version, by) = (self.version, By { gateway: 0, epoch: 1, role });
        let status = if standing == S::Completed { 201 } else { 0 };
        self.then(What::Wrote(Wrote {
            key: 0,
            by,
            act,
            standing,
            print: 0,
            version,
            fence,
            status,
            body,
            now,
            until,
        }))
    }

    /// When the lease of the last grant ends.
    fn lease_until(&self) -> u64 {
        let is_grant = |entry: &&Entry| {
            matches!(&entry.what, What::Wrote(Wrote { act: Act::Inserted | Act::Began, .. }))
        };
        match self.log.iter().rfind(is_grant).map(|entry| &entry.what) {
            Some(What::Wrote(wrote)) => wrote.until,
            _ => 0,
        }
    }

    /// A step of the owner.
    fn advances(self, fence: u32, after: FlowSeen) -> Self {
        let until = self.lease_until();
        let role = Role::Owner { fence };
        self.moves(role, Act::Advanced, (S::InProgress, fence, NONE), until, Some(after))
    }

    fn writes_rows(self, phase: u8) -> Self {
        self.then(What::Rows { key: 0, phase, rows: 2 })
    }

    /// From the begin to the mark.
    fn comes_to_call(self, mark: MarkSeen) -> Self {
        self.calls(0, 0, 0)
            .begins(0, 0)
            .advances(1, seen(0, NONE, None))
            .writes_rows(0)
            .advances(1, seen(1, ROW, None))
            .advances(1, seen(1, ROW, Some(mark)))
    }

    fn charges(self, charge: u16, fence: u32, digest: u8) -> Self {
        let (key, phase, gateway, epoch) = (0, 1, 0, 1);
        self.then(What::ChargeSent { charge, key, phase, fence, digest, gateway, epoch })
    }

    fn completes(self, fence: u32) -> Self {
        let until = STORE_EPOCH_MS + self.now + 20 + TTL_MS;
        self.writes_rows(2).moves(
            Role::Owner { fence },
            Act::Settled,
            (S::Completed, fence, ANSWER),
            until,
            None,
        )
    }

    /// The lease is over, and connection 1 goes on where the flow is, under the next fence.
    fn taken_over(self, at: FlowSeen) -> Self {
        let story = self.later(LEASE_MS).calls(1, 1, 0);
        let (fence, until) = (story.version + 1, STORE_EPOCH_MS + story.now + 10 + LEASE_MS);
        story
            .moves(
                Role::Begin { conn: 1 },
                Act::Began,
                (S::InProgress, fence, NONE),
                until,
                Some(at),
            )
            .acknowledged(1, fence)
    }

    /// The sweeper doubts it under this mark.
    fn doubted_at(self, mark: MarkSeen) -> Self {
        let story = self.later(LEASE_MS);
        let now = STORE_EPOCH_MS + story.now + 10;
        let after = Some(seen(1, ROW, Some(mark)));
        story.moves(Role::Sweeper, Act::Doubted, (S::Unknown, 1, NONE), now, after)
    }

    fn judged_by(self, evidence: Found, standing: S, after: Option<FlowSeen>) -> Self {
        let fence = self.version + 1;
        let now = STORE_EPOCH_MS + self.now + 10;
        let until = if standing == S::InProgress { now } else { now + TTL_MS };
        let role = Role::Judge { fence: 1, evidence };
        self.moves(role, Act::Resolved, (standing, fence, NONE), until, after)
    }
}

/// A charge that is made, with its result kept; its phase is over.
fn charged() -> Story {
    Story::of_flow(Some(WINDOW_MS))
        .comes_to_call(remembered(1))
        .charges(0, 1, BYTES)
        .then(What::ChargeMade { charge: 0 })
        .advances(1, seen(2, 0, None))
}

#[test]
fn good_flows_are_accepted() {
    let whole = charged().completes(1).hears(0, 0, Class::First, 201, ANSWER);
    let resumed = Story::of_flow(Some(WINDOW_MS))
        .comes_to_call(remembered(1))
        .charges(0, 1, BYTES)
        .then(What::ChargeMade { charge: 0 })
        .taken_over(seen(1, ROW, Some(remembered(1))))
        .charges(1, 5, BYTES)
        .advances(5, seen(2, 0, None))
        .completes(5)
        .hears(1, 1, Class::First, 201, ANSWER);
    let unkeyed = Story::of_flow(None)
        .comes_to_call(mark(1, None))
        .charges(0, 1, BYTES)
        .then(What::ChargeMade { charge: 0 })
        .doubted_at(mark(1, None))
        .judged_by(Found::Effect, S::InProgress, Some(seen(2, 0, None)));
    // An operator who is wrong has released the first charge.
    let released = Story::of_flow(None)
        .comes_to_call(mark(1, None))
        .charges(0, 1, BYTES)
        .doubted_at(mark(1, None))
        .judged_by(Found::OperatorSaysNot, S::FailedRetryable, Some(seen(1, ROW, None)))
        .taken_over(seen(1, ROW, None))
        .then(What::ChargeMade { charge: 0 });
    for (name, story) in
        [("whole", whole), ("resumed", resumed), ("unkeyed", unkeyed), ("released", released)]
    {
        assert_eq!(story.judged(), [], "{name}");
    }
}

/// A history that breaks a promise about flows.
pub(super) fn bad_flow(invariant: I) -> Story {
    let calling = |window_ms| {
        Story::of_flow(window_ms).comes_to_call(match window_ms {
            Some(_) => remembered(1),
            None => mark(1, None),
        })
    };
    match invariant {
        // The provider has forgotten the key, and makes the charge a second time.
        I::F1 => calling(Some(WINDOW_MS))
            .charges(0, 1, BYTES)
            .then(What::ChargeMade { charge: 0 })
            .taken_over(seen(1, ROW, Some(remembered(1))))
            .charges(1, 5, BYTES)
            .then(What::ChargeMade { charge: 1 }),
        I::F2 => charged().advances(1, seen(1, ROW, None)),
        // Who has sent does not release.
        I::F3 => calling(Some(WINDOW_MS)).charges(0, 1, BYTES).moves(
            Role::Owner { fence: 1 },
            Act::Settled,
            (S::FailedRetryable, 1, NONE),
            u64::MAX,
            Some(seen(1, ROW, None)),
        ),
        I::F4 => calling(Some(WINDOW_MS)).later(LEASE_MS).charges(0, 1, BYTES),
        I::F5 => calling(Some(WINDOW_MS)).charges(0, 1, OTHER_BYTES),
        I::F6 => calling(None).charges(0, 1, BYTES).taken_over(seen(1, ROW, Some(mark(1, None)))),
        I::F7 => {
            let story = calling(Some(WINDOW_MS)).later(10 * TTL_MS);
            let now = STORE_EPOCH_MS + story.now;
            story.then(What::Reaped { key: 0, now })
        }
        // The phase after the charge is missing.
        I::F8 => calling(None)
            .charges(0, 1, BYTES)
            .then(What::ChargeMade { charge: 0 })
            .doubted_at(mark(1, None))
            .judged_by(Found::Effect, S::Completed, None),
        I::F9 => Story::of_flow(Some(WINDOW_MS))
            .calls(0, 0, 0)
            .begins(0, 0)
            .advances(1, FlowSeen { version: 2, ..seen(0, NONE, None) }),
        // The rows of a phase are there, and its recovery point is not.
        _ => Story::of_flow(Some(WINDOW_MS))
            .calls(0, 0, 0)
            .begins(0, 0)
            .advances(1, seen(0, NONE, None))
            .writes_rows(0)
            .then(What::NotConnected { call: 0 }),
    }
}

#[test]
fn further_ways_to_break_a_promise_about_flows_are_rejected_too() {
    let calling = || Story::of_flow(Some(WINDOW_MS)).comes_to_call(remembered(1));
    let unkeyed = || Story::of_flow(None).comes_to_call(mark(1, None)).charges(0, 1, BYTES);
    for (name, invariant, story) in [
        ("a recovery point without rows", I::S28, {
            let started = Story::of_flow(None).calls(0, 0, 0).begins(0, 0);
            started.advances(1, seen(0, NONE, None)).advances(1, seen(1, ROW, None))
        }),
        ("the rows of a phase twice", I::S28, charged().writes_rows(0)),
        ("half of a phase's rows", I::S28, {
            charged().then(What::Rows { key: 0, phase: 2, rows: 1 })
        }),
        ("a phase that is left out", I::F2, {
            let started = Story::of_flow(None).calls(0, 0, 0).begins(0, 0);
            started.advances(1, seen(0, NONE, None)).advances(1, seen(2, ROW, None))
        }),
        ("a former owner that advances", I::S11, {
            let other = calling().taken_over(seen(1, ROW, Some(remembered(1))));
            other
                .charges(0, 5, BYTES)
                .then(What::ChargeMade { charge: 0 })
                .advances(1, seen(2, 0, None))
        }),
        ("a transaction from unknown", I::F2, {
            let unknown = Story::of_flow(None).calls(0, 0, 0).begins(0, 0).later(LEASE_MS);
            unknown
                .writes(0, Role::Sweeper, Act::Doubted, S::Unknown, 1)
                .advances(1, seen(0, NONE, None))
        }),
        ("a takeover of a live lease", I::S10, {
            let story = calling().calls(1, 1, 0);
            let (fence, until) = (story.version + 1, STORE_EPOCH_MS + story.now + LEASE_MS);
            let after = Some(seen(1, ROW, Some(remembered(1))));
            story.moves(
                Role::Begin { conn: 1 },
                Act::Began,
                (S::InProgress, fence, NONE),
                until,
                after,
            )
        }),
        ("a withdrawn takeover that frees the record", I::F3, {
            let taken = calling().taken_over(seen(1, ROW, Some(remembered(1))));
            let after = Some(seen(1, ROW, None));
            taken.moves(
                Role::Withdraw,
                Act::Settled,
                (S::FailedRetryable, 5, NONE),
                u64::MAX,
                after,
            )
        }),
        ("a released flow that has forgotten its phases", I::F2, {
            let role = Role::Owner { fence: 1 };
            calling().moves(role, Act::Settled, (S::FailedRetryable, 1, NONE), u64::MAX, None)
        }),
        ("a call without a key that is sent again", I::F6, {
            unkeyed().taken_over(seen(1, ROW, Some(mark(1, None)))).charges(1, 5, BYTES)
        }),
        ("a result that no charge has", I::F8, calling().advances(1, seen(2, 7, None))),
        ("proof that is contradicted", I::S12, {
            let burnt = unkeyed()
                .doubted_at(mark(1, None))
                .then(What::Burnt { key: 0, fence: 1 })
                .judged_by(Found::Burnt, S::FailedRetryable, Some(seen(1, ROW, None)));
            burnt.then(What::ChargeMade { charge: 0 })
        }),
        ("an answer that the record does not hold", I::S5, {
            charged().completes(1).answers(0, Class::First, 201, ROW)
        }),
    ] {
        let judged = story.judged();
        assert!(judged.contains(&invariant), "{name}: {judged:?}");
    }
}

#[test]
fn what_flows_have_reached_is_noticed() {
    let mut checker = Checker::new();
    let story = Story::of_flow(Some(WINDOW_MS))
        .comes_to_call(remembered(1))
        .taken_over(seen(1, ROW, Some(remembered(1))))
        .then(What::ChargeNotSent { key: 0, phase: 1, fence: 5 });
    let reached = checker.judge(story.rules, &story.log).reached;
    assert!(reached.has(Sometimes::FlowResumedCall));
    assert!(reached.has(Sometimes::FlowNotSentByAnother));
    assert!(!reached.has(Sometimes::FlowResumedPhase));
}
