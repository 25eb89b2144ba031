//! Can the checker fail?
//!
//! Histories written by hand: a good one is accepted, and for every invariant there is one that
//! breaks it and must be rejected for it. A checker that says yes to everything does not get past
//! this page.

mod effects;
mod flows;

use retrysafe_core::policy::{Absence, OnServerError};
use retrysafe_core::record::Standing;

use super::{Checker, Rules, Sometimes};
use crate::history::{
    Act, By, CallEnd, Class, Entry, Found, NONE, OUTSIDE, Role, STORE_EPOCH_MS, SaidSo,
    SettleHeard, What, Wrote,
};
use crate::invariant::Invariant;
use crate::options::{NAMES, Profile};

const LEASE_MS: u64 = 1_000;
const TTL_MS: u64 = 10_000;

fn rules() -> Rules {
    Rules {
        profile: Profile::Durable,
        on_server_error: OnServerError::Release,
        absence: Absence::Inconclusive,
        settle_ms: 5_000,
        lease_ms: LEASE_MS,
        ttl_ms: TTL_MS,
        operator: true,
        fails_open: false,
        lease_max_ms: u64::MAX,
        settles_for_ms: u64::MAX,
        quarantine_ms: 0,
        by_gateways: false,
        flow: None,
        effects: None,
    }
}

/// A history as it is written down, one entry every ten milliseconds.
#[derive(Clone)]
struct Story {
    rules: Rules,
    now: u64,
    version: u32,
    log: Vec<Entry>,
}

impl Story {
    fn new() -> Self {
        let story = Self { rules: rules(), now: 0, version: 0, log: Vec::new() };
        story
            .then(What::Booted { gateway: 0, epoch: 1 })
            .then(What::Booted { gateway: 1, epoch: 1 })
    }

    fn under(mut self, change: impl FnOnce(&mut Rules)) -> Self {
        change(&mut self.rules);
        self
    }

    fn then(mut self, what: What) -> Self {
        self.now += 10;
        self.log.push(Entry { at: self.now, what });
        self
    }

    fn later(mut self, ms: u64) -> Self {
        self.now += ms;
        self
    }

    /// A write with the next version and a lease or retention as long as it should be.
    fn writes(self, key: u8, role: Role, act: Act, standing: Standing, fence: u32) -> Self {
        self.writes_body(key, role, act, standing, fence, NONE)
    }

    fn writes_body(
        mut self,
        key: u8,
        role: Role,
        act: Act,
        standing: Standing,
        fence: u32,
        body: u16,
    ) -> Self {
        self.version += 1;
        let now = STORE_EPOCH_MS + self.now + 10;
        let until = match standing {
            Standing::InProgress => now + LEASE_MS,
            Standing::Completed | Standing::FailedRetryable => now + TTL_MS,
            Standing::Unknown => now,
        };
        let (version, print) = (self.version, 0);
        let by = By { gateway: 0, epoch: 1, role };
        let status = if standing == Standing::Completed { 201 } else { 0 };
        self.then(What::Wrote(Wrote {
            key,
            by,
            act,
            standing,
            print,
            version,
            fence,
            status,
            body,
            now,
            until,
        }))
    }

    fn calls(self, call: u16, conn: u16, key: u8) -> Self {
        self.then(What::Called { call, key, print: 0 }).invokes(call, conn, key)
    }

    fn invokes(self, call: u16, conn: u16, key: u8) -> Self {
        self.then(What::Invoked { call, conn, key, print: 0, gateway: 0 })
    }

    /// A first begin, whose fence is the next version.
    fn begins(self, conn: u16, key: u8) -> Self {
        let fence = self.version + 1;
        self.writes(key, Role::Begin { conn }, Act::Inserted, Standing::InProgress, fence)
            .acknowledged(conn, fence)
    }

    /// A begin of a record that was released.
    fn begins_again(self, conn: u16, key: u8) -> Self {
        let fence = self.version + 1;
        self.writes(key, Role::Begin { conn }, Act::Began, Standing::InProgress, fence)
            .acknowledged(conn, fence)
    }

    fn acknowledged(self, conn: u16, fence: u32) -> Self {
        self.then(What::Begun { conn, gateway: 0, epoch: 1, fence })
    }

    fn sends(self, conn: u16, key: u8, fence: u32) -> Self {
        self.then(What::Sent { conn, key, fence, gateway: 0, epoch: 1 })
    }

    fn runs(self, exec: u16, key: u8, fence: u32) -> Self {
        self.then(What::Ran { exec, key, fence, print: 0 })
    }

    fn replies(self, exec: u16, status: u16) -> Self {
        self.then(What::Replied {
            exec,
            status,
            said: SaidSo::Nothing,
            large: false,
            slow: false,
            head: 0,
        })
        .then(What::GotAnswer { exec, whole: true })
    }

    /// Sends, takes effect and has an answer.
    fn executes(self, conn: u16, key: u8, fence: u32, exec: u16, status: u16) -> Self {
        self.sends(conn, key, fence)
            .runs(exec, key, fence)
            .then(What::Effect { exec })
            .replies(exec, status)
    }

    fn asks_to_settle(self, fence: u32, standing: Standing, body: u16) -> Self {
        self.then(What::SettleAsked { fence, standing, body })
    }

    fn settles(self, key: u8, fence: u32, standing: Standing, body: u16) -> Self {
        self.asks_to_settle(fence, standing, body)
            .writes_body(key, Role::Owner { fence }, Act::Settled, standing, fence, body)
            .then(What::SettleHeard { fence, heard: SettleHeard::Done })
    }

    fn answers(self, conn: u16, class: Class, status: u16, body: u16) -> Self {
        let retry_after = match class {
            Class::InProgress | Class::Unknown | Class::Unavailable | Class::Unreachable => 1,
            Class::First
            | Class::Replay
            | Class::Gone
            | Class::Released
            | Class::Doubtful
            | Class::Unprotected
            | Class::Mismatch => 0,
        };
        self.then(What::Answered { conn, class, status, body, retry_after, head: 0 })
    }

    fn hears(self, call: u16, conn: u16, class: Class, status: u16, body: u16) -> Self {
        self.answers(conn, class, status, body)
            .then(What::Heard { call, conn, class, status, body })
            .then(What::CallEnded { call, end: CallEnd::Done })
    }

    fn ends(self) -> Self {
        self.then(What::Healed).then(What::Ended)
    }

    fn judged(&self) -> Vec<Invariant> {
        let mut checker = Checker::new();
        let judgement = checker.judge(self.rules, &self.log);
        judgement.violations.iter().map(|violation| violation.invariant).collect()
    }
}

/// One request, executed and answered: connection 0, key 0, fence 1, execution 0.
fn executed() -> Story {
    Story::new()
        .calls(0, 0, 0)
        .begins(0, 0)
        .executes(0, 0, 1, 0, 201)
        .settles(0, 1, Standing::Completed, 0)
        .hears(0, 0, Class::First, 201, 0)
}

/// One request whose outcome is unknown: connection 0, key 0, fence 1, execution 0, no effect.
fn doubted() -> Story {
    Story::new()
        .calls(0, 0, 0)
        .begins(0, 0)
        .sends(0, 0, 1)
        .runs(0, 0, 1)
        .then(What::GaveUp { exec: 0 })
        .settles(0, 1, Standing::Unknown, NONE)
        .answers(0, Class::Unknown, 504, NONE)
}

/// The doubted request after a verdict by this evidence, under fence 3.
fn resolved(story: Story, evidence: Found, standing: Standing) -> Story {
    let role = Role::Judge { fence: 1, evidence };
    let fence = story.version + 1;
    story.writes(0, role, Act::Resolved, standing, fence)
}

#[test]
fn good_histories_are_accepted() {
    let replayed = executed().calls(1, 1, 0).hears(1, 1, Class::Replay, 201, 0);
    let next_generation = executed()
        .later(TTL_MS)
        .calls(1, 1, 0)
        .begins(1, 0)
        .executes(1, 0, 3, 1, 201)
        .settles(0, 3, Standing::Completed, 1)
        .hears(1, 1, Class::First, 201, 1);
    let burnt = doubted().then(What::Burnt { key: 0, fence: 1 });
    let burnt = resolved(burnt, Found::Burnt, Standing::FailedRetryable)
        .calls(1, 1, 0)
        .begins_again(1, 0)
        .executes(1, 0, 4, 1, 201)
        .settles(0, 4, Standing::Completed, 1)
        .hears(1, 1, Class::First, 201, 1);
    // A 5xx that took effect is released by this policy: the second effect is permitted.
    let released = Story::new()
        .calls(0, 0, 0)
        .begins(0, 0)
        .executes(0, 0, 1, 0, 500)
        .settles(0, 1, Standing::FailedRetryable, NONE)
        .answers(0, Class::Released, 500, 0)
        .calls(1, 1, 0)
        .begins_again(1, 0)
        .executes(1, 0, 3, 1, 201)
        .settles(0, 3, Standing::Completed, 1)
        .hears(1, 1, Class::First, 201, 1);
    for (name, story) in [
        ("executed", executed()),
        ("replayed", replayed),
        ("next generation", next_generation),
        ("burnt", burnt),
        ("released", released),
    ] {
        assert_eq!(story.ends().judged(), [], "{name}");
    }
}

/// A history that breaks an invariant, for every one that is judged.
fn bad_history(invariant: Invariant) -> Story {
    use Invariant as I;
    use Standing as S;
    match invariant {
        // A 404 does not permit a second effect.
        I::S1 => Story::new()
            .calls(0, 0, 0)
            .begins(0, 0)
            .executes(0, 0, 1, 0, 404)
            .settles(0, 1, S::FailedRetryable, NONE)
            .calls(1, 1, 0)
            .begins_again(1, 0)
            .executes(1, 0, 3, 1, 201)
            .settles(0, 3, S::Completed, 1),
        I::S2 => {
            Story::new().calls(0, 0, 0).begins(0, 0).sends(0, 0, 1).runs(0, 0, 1).runs(1, 0, 1)
        }
        // The grant is there, its acknowledgement is not.
        I::S3 => Story::new()
            .calls(0, 0, 0)
            .writes(0, Role::Begin { conn: 0 }, Act::Inserted, S::InProgress, 1)
            .sends(0, 0, 1),
        I::S4 => Story::new().calls(0, 0, 0).begins(0, 0).executes(0, 0, 1, 0, 201).answers(
            0,
            Class::First,
            201,
            0,
        ),
        I::S5 => executed().calls(1, 1, 0).hears(1, 1, Class::Replay, 200, 0),
        I::S6 => executed().calls(1, 1, 0).hears(1, 1, Class::Replay, 201, 7),
        I::S7 => Story::new().calls(0, 0, 0).begins(0, 0).sends(0, 0, 1).then(What::Ran {
            exec: 0,
            key: 0,
            fence: 1,
            print: 1,
        }),
        I::S8 => executed().calls(1, 1, NAMES).hears(1, 1, Class::Replay, 201, 0),
        I::S9 => doubted().calls(1, 1, 0).begins_again(1, 0),
        I::S10 => Story::new().calls(0, 0, 0).begins(0, 0).later(LEASE_MS).begins_again(0, 0),
        I::S11 => Story::new().calls(0, 0, 0).begins(0, 0).writes(
            0,
            Role::Owner { fence: 9 },
            Act::Renewed,
            S::InProgress,
            1,
        ),
        I::S12 => Story::new()
            .calls(0, 0, 0)
            .begins(0, 0)
            .executes(0, 0, 1, 0, 201)
            .asks_to_settle(1, S::Completed, 0)
            .then(What::SettleHeard {
                fence: 1,
                heard: SettleHeard::Lost { contradiction: false },
            }),
        I::S13 => resolved(doubted(), Found::Burnt, S::FailedRetryable),
        I::S14 => Story::new()
            .calls(0, 0, 0)
            .then(What::BeginFailed { conn: 0, ambiguous: true })
            .sends(0, 0, 1),
        I::S15 => Story::new()
            .calls(0, 0, 0)
            .begins(0, 0)
            .executes(0, 0, 1, 0, 201)
            .asks_to_settle(1, S::Completed, 0)
            .then(What::SettleHeard { fence: 1, heard: SettleHeard::Failed { ambiguous: true } })
            .sends(0, 0, 1),
        I::S16 => Story::new()
            .calls(0, 0, 0)
            .begins(0, 0)
            .sends(0, 0, 1)
            .runs(0, 0, 1)
            .then(What::Replied {
                exec: 0,
                status: 201,
                said: SaidSo::Nothing,
                large: false,
                slow: false,
                head: 0,
            })
            .then(What::GotAnswer { exec: 0, whole: false })
            .settles(0, 1, S::Completed, 0),
        I::S17 => Story::new()
            .calls(0, 0, 0)
            .begins(0, 0)
            .sends(0, 0, 1)
            .runs(0, 0, 1)
            .then(What::Replied {
                exec: 0,
                status: 201,
                said: SaidSo::Nothing,
                large: true,
                slow: false,
                head: 0,
            })
            .then(What::GotAnswer { exec: 0, whole: true })
            .settles(0, 1, S::Completed, 0),
        I::S19 => Story::new()
            .calls(0, 0, 0)
            .begins(0, 0)
            .sends(0, 0, 1)
            .then(What::Disconnected { conn: 0 })
            .later(LEASE_MS)
            .writes(0, Role::Sweeper, Act::Doubted, S::Unknown, 1),
        I::S20 => Story::new()
            .calls(0, 0, 0)
            .begins(0, 0)
            .sends(0, 0, 1)
            .runs(0, 0, 1)
            .then(What::Panicked { exec: 0 })
            .then(What::GotPanic { exec: 0 })
            .settles(0, 1, S::FailedRetryable, NONE),
        I::S21 => Story::new().calls(0, 0, 0).begins(0, 0).executes(0, 0, 1, 0, 201).settles(
            0,
            1,
            S::FailedRetryable,
            NONE,
        ),
        I::S22 => {
            let story = executed();
            let now = STORE_EPOCH_MS + story.now;
            story.then(What::Reaped { key: 0, now })
        }
        I::S23 => replay_after_the_end(),
        I::S24 => Story::new().calls(0, 0, 0).begins(0, 0).writes(
            0,
            Role::Sweeper,
            Act::Doubted,
            S::Unknown,
            1,
        ),
        I::S25 => Story::new()
            .under(|rules| (rules.profile, rules.quarantine_ms) = (Profile::FailOver, LEASE_MS))
            .then(What::FailedOver)
            .later(LEASE_MS / 2)
            .calls(0, 0, 0)
            .begins(0, 0),
        I::S26 => replay_after_the_end().under(|rules| rules.profile = Profile::Cached),
        I::S30 => resolved(executed(), Found::OperatorSaysNot, S::FailedRetryable),
        I::S38 => executed().then(What::Invoked { call: 0, conn: 1, key: 4, print: 0, gateway: 0 }),
        I::S28 | I::F1 | I::F2 | I::F3 | I::F4 | I::F5 | I::F6 | I::F7 | I::F8 | I::F9 => {
            flows::bad_flow(invariant)
        }
        I::L1 => Story::new().calls(0, 0, 0).begins(0, 0),
        I::L2 => Story::new().then(What::Healed).calls(0, 0, 0),
        I::R1 => doubted().then(What::NoticeKept { key: 0, fence: 1, again: false }),
        I::L3 => doubted(),
        I::L4 => Story::new().calls(0, 0, 0).begins(0, 0).calls(1, 1, 0).then(What::Answered {
            conn: 1,
            class: Class::InProgress,
            status: 409,
            body: NONE,
            retry_after: 9,
            head: 0,
        }),
        I::O1 | I::O2 | I::O3 | I::O4 | I::O5 | I::O6 | I::O7 | I::O8 | I::O9 | I::O10 => {
            effects::bad_effect(invariant)
        }
        I::L8 => Story::new()
            .then(What::Drained { gateway: 0, epoch: 1, open: 0 })
            .calls(0, 0, 0)
            .begins(0, 0),
    }
}

fn replay_after_the_end() -> Story {
    let story = executed().later(TTL_MS);
    let now = STORE_EPOCH_MS + story.now;
    story.then(What::Reaped { key: 0, now }).calls(1, 1, 0).hears(1, 1, Class::Replay, 201, 0)
}

#[test]
fn for_every_invariant_a_history_that_breaks_it_is_rejected() {
    for invariant in Invariant::ALL {
        let story = bad_history(*invariant);
        let story =
            if *invariant == Invariant::L2 { story.then(What::Ended) } else { story.ends() };
        let judged = story.judged();
        assert!(judged.contains(invariant), "{invariant}: {judged:?}");
    }
}

#[test]
fn further_ways_to_break_a_promise_are_rejected_too() {
    use Invariant as I;
    use Standing as S;
    let burnt = || doubted().then(What::Burnt { key: 0, fence: 1 });
    let now = |story: &Story| STORE_EPOCH_MS + story.now;
    let unknown_reaped = doubted().later(10 * TTL_MS);
    let unknown_reaped_at = now(&unknown_reaped);
    for (name, invariant, story) in
        [
            ("a version twice", I::S11, {
                let mut story = executed();
                story.version = 0;
                story.calls(1, 1, 1).begins(1, 1)
            }),
            ("a verdict that leaves the fence", I::S12, {
                let role = Role::Judge { fence: 1, evidence: Found::Burnt };
                burnt().writes(0, role, Act::Resolved, S::FailedRetryable, 1)
            }),
            ("an effect after proof that there is none", I::S12, {
                resolved(burnt(), Found::Burnt, S::FailedRetryable).then(What::Effect { exec: 0 })
            }),
            ("a verdict about another attempt", I::S13, {
                let role = Role::Judge { fence: 7, evidence: Found::OperatorSaysNot };
                doubted().writes(0, role, Act::Resolved, S::FailedRetryable, 3)
            }),
            ("an absence that is no proof", I::S13, {
                resolved(doubted().later(9_000), Found::Absence, S::FailedRetryable)
            }),
            ("an absence that has not ripened", I::S13, {
                let early = doubted().under(|rules| rules.absence = Absence::Proof).later(4_000);
                resolved(early, Found::Absence, S::FailedRetryable)
            }),
            ("an unknown record reaped", I::S22, {
                unknown_reaped.then(What::Reaped { key: 0, now: unknown_reaped_at })
            }),
            ("a record that is kept too briefly", I::S22, {
                executed().under(|rules| rules.ttl_ms = TTL_MS + 1)
            }),
            ("a settle by a former owner", I::S11, {
                resolved(burnt(), Found::Burnt, S::FailedRetryable)
                    .calls(1, 1, 0)
                    .begins_again(1, 0)
                    .writes(0, Role::Owner { fence: 1 }, Act::Settled, S::Completed, 4)
            }),
            ("a sweeper over an answer", I::S30, {
                executed().writes(0, Role::Sweeper, Act::Doubted, S::Unknown, 1)
            }),
            ("a send by a process that has died", I::S3, {
                Story::new()
                    .calls(0, 0, 0)
                    .begins(0, 0)
                    .then(What::Crashed { gateway: 0 })
                    .then(What::Booted { gateway: 0, epoch: 2 })
                    .then(What::Sent { conn: 0, key: 0, fence: 1, gateway: 0, epoch: 2 })
            }),
            ("two executions at once", I::S2, {
                let story = Story::new().calls(0, 0, 0).begins(0, 0).sends(0, 0, 1).runs(0, 0, 1);
                story
                    .settles(0, 1, S::FailedRetryable, NONE)
                    .calls(1, 1, 0)
                    .begins_again(1, 0)
                    .sends(1, 0, 3)
                    .runs(1, 0, 3)
            }),
            ("a mismatch without another request", I::S7, {
                executed().calls(1, 1, 0).hears(1, 1, Class::Mismatch, 422, NONE)
            }),
            ("a key that is gone and was not", I::S17, {
                executed().calls(1, 1, 0).hears(1, 1, Class::Gone, 410, NONE)
            }),
            ("failure reported where it happened", I::S38, {
                Story::new()
                    .calls(0, 0, 0)
                    .begins(0, 0)
                    .executes(0, 0, 1, 0, 201)
                    .settles(0, 1, S::Completed, 0)
                    .then(What::CallEnded { call: 0, end: CallEnd::GaveUp })
            }),
            ("an answer for a begin that failed", I::S14, {
                executed()
                    .calls(1, 1, 0)
                    .then(What::BeginFailed { conn: 1, ambiguous: false })
                    .hears(1, 1, Class::Replay, 201, 0)
            }),
            ("a lease that ends late after the healing", I::L1, {
                Story::new()
                    .calls(0, 0, 0)
                    .begins(0, 0)
                    .then(What::Crashed { gateway: 0 })
                    .then(What::Healed)
                    .later(9 * LEASE_MS)
                    .writes(0, Role::Sweeper, Act::Doubted, S::Unknown, 1)
            }),
        ]
    {
        let judged = story.ends().judged();
        assert!(judged.contains(&invariant), "{name}: {judged:?}");
    }
}

#[test]
fn what_a_fail_over_forgot_is_documented_and_nothing_else() {
    let forgetful = || {
        executed()
            .under(|rules| rules.profile = Profile::FailOver)
            .then(What::FailedOver)
            .then(What::Forgotten { key: 0 })
            .calls(1, 1, 0)
            .begins(1, 0)
            .executes(1, 0, 3, 1, 201)
            .settles(0, 3, Standing::Completed, 1)
    };
    let documented = |story: Story| {
        let mut checker = Checker::new();
        let judgement = checker.judge(story.rules, &story.log);
        (judgement.documented, judgement.violations.to_vec())
    };
    // The first answer again, after its record was forgotten.
    let (count, violations) =
        documented(forgetful().calls(2, 2, 0).hears(2, 2, Class::Replay, 201, 0).ends());
    assert_eq!(violations, []);
    assert!(count > 0);
    // A grant within the quarantine is not what was forgotten, but what was not waited for.
    let hasty = forgetful().under(|rules| rules.quarantine_ms = u64::MAX / 2).ends();
    let (_, violations) = documented(hasty);
    assert_eq!(violations.first().map(|it| it.invariant), Some(Invariant::S25));
    // A send without a grant has nothing to do with memory.
    let (_, violations) = documented(forgetful().calls(2, 2, 0).sends(2, 0, 99).ends());
    assert_eq!(violations.first().map(|it| it.invariant), Some(Invariant::S3));
}

#[test]
fn what_was_reached_is_noticed() {
    let mut checker = Checker::new();
    let story = doubted()
        .then(What::Disconnected { conn: 0 })
        .then(What::DeadLettered { key: 0, fence: 1 });
    let reached = checker.judge(story.rules, &story.log).reached;
    assert!(reached.has(Sometimes::DeadLetter) && reached.has(Sometimes::DisconnectBeforeEffect));
    assert!(!reached.has(Sometimes::FailOver));
    let opened = Story::new().under(|rules| rules.profile = Profile::SingleOwner).calls(0, 0, 0);
    let mut opened = opened.begins(0, 0);
    opened = opened.writes(0, Role::Opening, Act::Doubted, Standing::Unknown, 1);
    if let Some(What::Wrote(wrote)) = opened.log.last_mut().map(|entry| &mut entry.what) {
        wrote.by.gateway = OUTSIDE;
    }
    let judgement = checker.judge(opened.rules, &opened.log);
    assert!(judgement.reached.has(Sometimes::StoreReopened) && judgement.violations.is_empty());
}
