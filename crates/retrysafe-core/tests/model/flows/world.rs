//! What is there, and how does it become a record that the machine can judge?
//!
//! Time is what is left, in ticks, and a fence is the record's own or a former one. So leases, retries
//! and takeovers are without end, and there are still finitely many states. A record is unfolded to a
//! real [`Record`] for each decision and folded again after it.

use std::sync::OnceLock;
use std::time::Duration;

use bytes::Bytes;
use http::StatusCode;
use retrysafe_core::fingerprint::{Fingerprint, RulesId};
use retrysafe_core::flow::{
    FirstSentMark, FlowMove, FlowProgress, FlowVersion, RecoveryPoint, RequestDigest,
};
use retrysafe_core::record::{About, Answer, Doubt, Fence, First, Record, Standing, State, Write};
use retrysafe_core::response::StoredResponse;
use retrysafe_core::time::Time;
use retrysafe_core::{Id, Key, Scope};

use super::rules::Setting;

pub(super) const PROCESSES: usize = 2;

/// How many packets travel that nobody waits for any more.
const PACKETS: usize = 4;

pub(super) const NOW: Time = Time::from_ms(1_000_000);
const TICK: Duration = Duration::from_secs(1);
/// More ticks than anything lasts: the end of time.
const FOREVER: u8 = u8::MAX;

pub(super) const FENCE: Fence = Fence(50);
pub(super) const FORMER_FENCE: Fence = Fence(40);
const VERSION: u64 = 60;
/// The number of an owner that has forgotten its record.
const GONE: u8 = 9;

pub(super) fn ticks(count: u8) -> Duration {
    TICK * u32::from(count)
}

pub(super) fn the_flow() -> &'static FlowVersion {
    static FLOW: OnceLock<FlowVersion> = OnceLock::new();
    FLOW.get_or_init(|| FlowVersion::new("ride", 1))
}

pub(super) fn digest(bytes: u8) -> RequestDigest {
    RequestDigest::from_bytes([bytes; RequestDigest::LENGTH])
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub(super) struct World {
    pub(super) record: Image,
    /// Rows that the first phase and the last one have committed.
    pub(super) rows: [u8; 2],
    pub(super) provider: Provider,
    /// Packets that nobody waits for: how long they may still travel, and their bytes.
    pub(super) orphans: [(u8, u8); PACKETS],
    /// What the reconciler has found, about the present attempt or a former one.
    pub(super) found: Option<Found>,
    pub(super) found_is_current: bool,
    /// Whether a sweeper has read an ended lease and not written yet.
    pub(super) sweeper_has_read: bool,
    pub(super) wrong: Wrong,
    pub(super) processes: [Process; PROCESSES],
}

/// What must never happen, where it shows in a step and not in a state.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub(super) struct Wrong {
    pub(super) answer_flipped: bool,
    pub(super) unfinished_freed: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Found {
    Absent,
    Executed,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub(super) struct Provider {
    pub(super) effects: u8,
    /// For how long it still remembers our key, and the bytes that came with it.
    remembers: u8,
    bytes: u8,
}

/// A record, folded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub(super) struct Image {
    /// None: there is no record.
    pub(super) standing: Option<Standing>,
    /// It was completed, and has been reaped since.
    pub(super) is_over: bool,
    pub(super) point: Option<RecoveryPoint>,
    pub(super) lease: u8,
    pub(super) until: u8,
    /// How long it is kept.
    pub(super) kept: u8,
    /// Whether the present fence has set the mark.
    pub(super) is_own_mark: bool,
    pub(super) owner: u8,
    pub(super) answer: Told,
    /// How long the reconciler waits before an absence counts.
    pub(super) settle_time: u8,
}

/// What callers are told.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub(super) enum Told {
    #[default]
    Nothing,
    /// The answer of the flow's last phase.
    Whole,
    /// The provider's refusal of other bytes.
    Refusal,
    /// The mere fact.
    Fact,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub(super) enum Stage {
    #[default]
    Idle,
    /// Its begin is written, and the answer is on its way.
    Begun,
    /// It does not know whether its begin was written. It will not execute.
    Ambiguous,
    Running,
    /// It does not know whether its last step was written.
    ReadBack,
    /// It may send.
    Checked,
    /// It has sent and waits.
    Waiting,
    /// It has the provider's answer.
    Answered,
    /// It has sent, and no answer came.
    NotHeard,
    /// It has sent nothing.
    NotSent,
    /// It does not know whether the call's result was written.
    ReadBackResult,
}

/// A write that arrives after its sender has stopped waiting for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Floating {
    Begin,
    StepFrom(Option<RecoveryPoint>),
    Result,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub(super) struct Process {
    pub(super) stage: Stage,
    pub(super) knows: Option<RecoveryPoint>,
    /// Whether its fence is the record's.
    pub(super) is_current: bool,
    /// What is left of the lease and of the provider's memory, as the process counts it.
    pub(super) lease: u8,
    pub(super) until: u8,
    pub(super) is_own_mark: bool,
    pub(super) bytes: u8,
    /// How long after the check its packet may still leave.
    pub(super) deadline: u8,
    pub(super) is_refused: bool,
    /// Whether the rows of its phase are committed already, without the recovery point.
    pub(super) has_rows: bool,
    pub(super) floating: Option<Floating>,
    pub(super) is_floating_current: bool,
    /// Its packet: how long it may travel, and its bytes. Zero is none.
    pub(super) packet: (u8, u8),
}

impl World {
    pub(super) fn unfold(&self, setting: &Setting) -> Option<Record> {
        self.record.unfold(setting)
    }

    /// Writes onto the record that is there.
    pub(super) fn write(&mut self, setting: &Setting, record: &Record, write: &Write) {
        self.keep(setting, &write.onto(record, NOW, VERSION + 1));
    }

    pub(super) fn insert(&mut self, setting: &Setting, owner: usize) {
        self.keep(setting, &first(setting, number(owner)).record(NOW, VERSION + 1));
    }

    /// Folds the record that a write has made.
    pub(super) fn keep(&mut self, setting: &Setting, record: &Record) {
        let was_unknown = self.record.standing == Some(Standing::Unknown);
        if record.fence != FENCE {
            self.raise_fence();
        }
        let left = |at: Time| {
            let length = NOW.until(at).as_millis() / TICK.as_millis();
            u8::try_from(length).unwrap_or(FOREVER)
        };
        let mark = record.flow.as_ref().and_then(|flow| flow.mark());
        let image = &mut self.record;
        image.standing = Some(record.standing());
        image.point = record.recovery_point();
        image.lease = record.lease_until().map_or(0, left);
        image.until = mark.and_then(|mark| mark.resume_until).map_or(0, left);
        image.kept = record.expires_at().map_or(0, left);
        image.is_own_mark = mark.is_some_and(|mark| mark.set_by == record.fence);
        image.owner = record.state.owner().map_or(0, |owner| owner as u8);
        image.answer = told(&record.state);
        let is_unknown = record.standing() == Standing::Unknown;
        image.settle_time = match (was_unknown, is_unknown, setting.settle_time_from_mark) {
            (false, true, false) => setting.settle_time,
            (_, true, _) | (_, false, true) => image.settle_time,
            (_, false, false) => 0,
        };
    }

    pub(super) fn remove(&mut self) {
        self.record = Image::default();
        self.raise_fence();
    }

    fn raise_fence(&mut self) {
        self.found_is_current = false;
        self.record.is_own_mark = false;
        for process in &mut self.processes {
            process.is_current = false;
            process.is_floating_current = false;
        }
    }

    /// A process forgets everything but what is on its way.
    pub(super) fn stop(&mut self, process: usize) {
        if self.record.owner == number(process) {
            self.record.owner = GONE;
        }
        let Process { floating, is_floating_current, packet, .. } = self.processes[process];
        self.processes[process] =
            Process { floating, is_floating_current, packet, ..Process::default() };
    }

    /// Nobody waits for a process's packet any more. False if there is no room for it.
    pub(super) fn abandon_packet(&mut self, process: usize) -> bool {
        let packet = std::mem::take(&mut self.processes[process].packet);
        if packet.0 == 0 {
            return true;
        }
        let Some(free) = self.orphans.iter_mut().find(|orphan| orphan.0 == 0) else {
            return false;
        };
        *free = packet;
        self.sort_orphans();
        true
    }

    pub(super) fn sort_orphans(&mut self) {
        self.orphans.sort_unstable_by(|one, other| other.cmp(one));
    }

    pub(super) fn is_call_in_flight(&self) -> bool {
        let travels = |packet: &(u8, u8)| packet.0 > 0;
        self.orphans.iter().any(travels) || self.processes.iter().any(|it| travels(&it.packet))
    }

    /// A packet arrives. Whether the provider refuses it, because it remembers other bytes.
    pub(super) fn receive(&mut self, setting: &Setting, bytes: u8) -> bool {
        let provider = &mut self.provider;
        if setting.is_keyed && provider.remembers > 0 && !setting.has_new_key_per_attempt() {
            return bytes != provider.bytes;
        }
        provider.effects = (provider.effects + 1).min(2);
        provider.remembers = setting.window;
        provider.bytes = bytes;
        false
    }

    /// One tick passes, for all but those whose clock stands still.
    pub(super) fn tick(&self, still: Option<usize>) -> Self {
        let mut next = *self;
        let less =
            |left: &mut u8| *left = if *left == FOREVER { FOREVER } else { left.saturating_sub(1) };
        for left in [
            &mut next.record.lease,
            &mut next.record.until,
            &mut next.record.kept,
            &mut next.record.settle_time,
            &mut next.provider.remembers,
        ] {
            less(left);
        }
        for orphan in &mut next.orphans {
            less(&mut orphan.0);
        }
        for (at, process) in next.processes.iter_mut().enumerate() {
            less(&mut process.packet.0);
            if still != Some(at) {
                less(&mut process.lease);
                less(&mut process.until);
                less(&mut process.deadline);
            }
        }
        next
    }

    /// Forgets what decides nothing any more, so that states that cannot be told apart are one.
    pub(super) fn normal(mut self, setting: &Setting) -> Self {
        if !setting.is_keyed {
            (self.provider.remembers, self.record.until) = (0, 0);
        }
        if self.provider.remembers == 0 {
            self.provider.bytes = 0;
        }
        let is_settled =
            matches!(self.record.standing, Some(Standing::Completed | Standing::FailedRetryable));
        if !is_settled {
            self.record.kept = 0;
        }
        if self.found.is_none() {
            self.found_is_current = false;
        }
        for process in &mut self.processes {
            let stage = process.stage;
            let sends_later = matches!(stage, Stage::Begun | Stage::Running | Stage::ReadBack)
                && !matches!(process.knows, Some(RecoveryPoint::Before(phase)) if phase > setting.call_phase);
            if !sends_later {
                (process.lease, process.until) = (0, 0);
            }
            if !setting.is_keyed {
                process.until = 0;
            }
            if stage != Stage::Checked {
                (process.deadline, process.bytes) = (0, 0);
            }
            if stage != Stage::Answered && stage != Stage::ReadBackResult {
                process.is_refused = false;
            }
            if process.floating.is_none() {
                process.is_floating_current = false;
            }
            let is_at_call = matches!(process.knows, Some(RecoveryPoint::Calling(_)));
            if !is_at_call {
                process.is_own_mark = false;
            }
        }
        self
    }
}

impl Image {
    /// The record as the machine judges it, as seen by somebody who counts these ticks.
    pub(super) fn unfold(&self, setting: &Setting) -> Option<Record> {
        let standing = self.standing?;
        let mut record = template().clone();
        let at = |left: u8| if left == FOREVER { Time::NEVER } else { NOW.plus(ticks(left)) };
        let (owner, head) = (u64::from(self.owner), None);
        record.state = match standing {
            Standing::InProgress => {
                State::InProgress { owner, begun_at: NOW, lease_until: at(self.lease), head }
            }
            Standing::Completed => {
                let (settled_at, expires_at) = (NOW, at(self.kept));
                State::Completed { answer: answer(self.answer), settled_at, expires_at }
            }
            Standing::FailedRetryable => {
                State::FailedRetryable { settled_at: NOW, expires_at: at(self.kept) }
            }
            Standing::Unknown => {
                let (since, doubt, lookups) = (NOW, Doubt::Said, 0);
                State::Unknown { since, doubt, lookups, owner: Some(owner), head }
            }
        };
        record.flow = self.point.map(|point| {
            let set_by = if self.is_own_mark { FENCE } else { FORMER_FENCE };
            let until = setting.is_keyed.then(|| NOW.plus(ticks(self.until)));
            progress(point, set_by, until)
        });
        Some(record)
    }
}

/// A flow that has come to this point.
pub(super) fn progress(
    point: RecoveryPoint,
    set_by: Fence,
    resume_until: Option<Time>,
) -> Box<FlowProgress> {
    let mut flow = None;
    let started = FlowMove::Started { flow: the_flow().clone(), input: Bytes::new() };
    FlowProgress::make(&mut flow, &started);
    for _ in 0..point.phase() {
        FlowProgress::make(&mut flow, &FlowMove::PhaseDone(Bytes::new()));
    }
    if matches!(point, RecoveryPoint::Calling(_)) {
        let mark = FirstSentMark { digest: digest(0), set_by, resume_until };
        FlowProgress::make(&mut flow, &FlowMove::CallMarked(mark));
    }
    flow.unwrap()
}

/// The number of a process's present begin.
pub(super) fn number(process: usize) -> u8 {
    process as u8 + 1
}

pub(super) fn answer(told: Told) -> Answer {
    let kept = |status| {
        let (headers, body) = (vec![], Bytes::new());
        Answer::Kept(StoredResponse { status, headers, body })
    };
    match told {
        Told::Whole => kept(StatusCode::CREATED),
        Told::Refusal => kept(StatusCode::UNPROCESSABLE_ENTITY),
        Told::Nothing | Told::Fact => Answer::NotKept { status: None, location: None },
    }
}

fn told(state: &State) -> Told {
    match state {
        State::Completed { answer, .. } if answer.status() == Some(StatusCode::CREATED) => {
            Told::Whole
        }
        State::Completed { answer: Answer::Kept(_), .. } => Told::Refusal,
        State::Completed { answer: Answer::NotKept { .. }, .. } => Told::Fact,
        State::InProgress { .. } | State::FailedRetryable { .. } | State::Unknown { .. } => {
            Told::Nothing
        }
    }
}

fn first(setting: &Setting, owner: u8) -> First {
    let scope = Scope::of([]);
    let key = Key::new("k").unwrap().digest();
    First {
        id: Id::of(&scope, &key),
        scope,
        key,
        fingerprint: Fingerprint::from_parts(1, RulesId::from_bytes([0; 8]), [0; 32]),
        mark: None,
        about: About::default(),
        ttl: ticks(super::rules::TTL),
        lease: ticks(setting.lease),
        owner: u64::from(owner),
        request_id: None,
        flow: None,
    }
}

fn template() -> &'static Record {
    static TEMPLATE: OnceLock<Record> = OnceLock::new();
    TEMPLATE.get_or_init(|| {
        let mut record = first(&Setting::keyed(), 0).record(NOW, VERSION);
        record.fence = FENCE;
        record.timeline = Vec::new();
        record
    })
}
