//! By which rules does everybody go, and which one is taken away?
//!
//! A [`Setting`] is the lengths of everything and at most one [`Fault`]. A fault alters what the real
//! machine has decided, or leaves out what an owner must do; without one, everything here is the
//! machine's own word.

use retrysafe_core::flow::RecoveryPoint;
use retrysafe_core::machine::flows::{
    Advance, BeforeWire, CallNotSent, FlowStep, KeyMemory, SendDecision, decide_send,
};
use retrysafe_core::machine::{
    self, Begin, BeginDecision, Decision, Event, Evidence, LeaseCheck, Proof, Resolve, Settle,
    Verdict, Withdraw,
};
use retrysafe_core::record::{Becomes, Doubt, Judge, Outcome, Record, Standing, State, Write};

use super::world::{
    FENCE, FORMER_FENCE, Found, NOW, Process, Told, World, answer, digest, number, progress,
    the_flow, ticks,
};

/// How long a settled record is kept, in ticks.
pub(super) const TTL: u8 = 2;

/// A rule that is taken away.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fault {
    /// The lease is not looked at before the wire.
    NoLeaseCheck,
    /// What the provider remembers is looked at neither by the begin nor before the wire.
    ForgottenKeyResent,
    /// Other bytes are sent under the same key.
    OtherBytesSent,
    /// Somebody goes on with a call whose provider takes no key.
    UnkeyedCallResumed,
    /// Whoever takes back a takeover frees the record.
    WithdrawnTakeoverFrees,
    /// A released flow starts anew.
    FailureForgetsPhases,
    /// "Not sent" clears a mark that somebody else has set.
    NotSentClearsAnyMark,
    /// An advance does not name where it starts from.
    NoRecoveryPointInGuard,
    /// An owner whose commit of a result was ambiguous calls again.
    AmbiguousResultCallsAgain,
    /// The reaper takes released flows.
    ReaperTakesFlows,
    /// A phase's rows and its recovery point are two commits.
    RowsCommittedApart,
    /// A begin leads from unknown to execution.
    UnknownExecutes,
    /// A live lease is taken over.
    LiveLeaseTakenOver,
    /// An absence counts at once.
    NoSettleTime,
    /// A sweeper writes over whatever is there.
    SweeperWithoutVersion,
    /// A verdict does not name the attempt that it is about.
    VerdictOnAnyAttempt,
    /// Each attempt has a downstream key of its own.
    NewKeyPerAttempt,
    /// Under a first-sent mark a handler's 5xx releases the record.
    ServerErrorReleases,
    /// A handler that is given up between two calls leaves the record unknown.
    GivenUpIsUnknown,
    /// The mere fact that the call was executed completes the flow.
    FactCompletes,
    /// Nobody sweeps.
    NoSweeper,
    /// Nobody finishes what no caller comes back for.
    NoCompleter,
    /// A settle does not name its fence.
    NoFenceInSettle,
    /// A call may be sent that ends after its lease.
    DeadlineIgnored,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Setting {
    pub(super) is_keyed: bool,
    /// Which phase is the call: behind a transaction, or the first.
    pub(super) call_phase: u16,
    pub(super) lease: u8,
    /// How long the provider remembers a key.
    pub(super) window: u8,
    /// How much earlier nobody goes on with a call.
    pub(super) margin: u8,
    /// How long a packet may be on its way.
    pub(super) longest_way: u8,
    pub(super) deadline: u8,
    pub(super) settle_time: u8,
    /// Whether commits may land after their sender has stopped waiting.
    pub(super) has_late_commits: bool,
    /// Whether the settle time counts from the first-sent mark, not from the doubt.
    pub(super) settle_time_from_mark: bool,
    /// Whether a process may pause between its check and its packet: what no rule can exclude.
    pub(super) may_pause_after_check: bool,
    /// Whether a clock may stand still while its process is paused.
    pub(super) clock_may_stand_still: bool,
    /// Whether the lease counts from the answer to the begin, not from its question.
    pub(super) lease_from_answer: bool,
    /// Whether the store's clock may jump ahead.
    pub(super) store_clock_may_jump: bool,
    /// Whether an absence is taken for proof at all.
    pub(super) absence_is_proof: bool,
    pub(super) fault: Option<Fault>,
}

impl Setting {
    pub(super) const fn keyed() -> Self {
        Self {
            is_keyed: true,
            call_phase: 1,
            lease: 2,
            window: 5,
            margin: 3,
            longest_way: 1,
            deadline: 0,
            settle_time: 2,
            has_late_commits: false,
            settle_time_from_mark: false,
            may_pause_after_check: false,
            clock_may_stand_still: false,
            lease_from_answer: false,
            store_clock_may_jump: false,
            absence_is_proof: true,
            fault: None,
        }
    }

    pub(super) const fn unkeyed() -> Self {
        Self { is_keyed: false, ..Self::keyed() }
    }

    pub(super) const fn with(self, fault: Fault) -> Self {
        Self { fault: Some(fault), ..self }
    }

    pub(super) const fn with_late_commits(self) -> Self {
        Self { has_late_commits: true, ..self }
    }

    fn has(&self, fault: Fault) -> bool {
        self.fault == Some(fault)
    }

    pub(super) fn has_new_key_per_attempt(&self) -> bool {
        self.has(Fault::NewKeyPerAttempt)
    }

    pub(super) fn commits_rows_apart(&self) -> bool {
        self.has(Fault::RowsCommittedApart)
    }

    pub(super) fn calls_again(&self) -> bool {
        self.has(Fault::AmbiguousResultCallsAgain)
    }

    pub(super) fn sweeper_looks_first(&self) -> bool {
        self.has(Fault::SweeperWithoutVersion)
    }

    pub(super) fn absence_counts(&self, world: &World) -> bool {
        self.absence_is_proof && (world.record.settle_time == 0 || self.has(Fault::NoSettleTime))
    }

    fn is_first_transaction(&self, point: RecoveryPoint) -> bool {
        self.call_phase > 0 && point == RecoveryPoint::Before(0)
    }

    /// For how long a call may be repeated after its mark.
    fn repeatable(&self) -> Option<std::time::Duration> {
        let memory = KeyMemory {
            window: ticks(self.window),
            lease_max: ticks(self.margin.saturating_sub(self.deadline + self.longest_way)),
            deadline: ticks(self.deadline.min(self.margin)),
            longest_way: ticks(self.longest_way.min(self.margin)),
            skew: ticks(0),
        };
        self.is_keyed.then(|| memory.repeatable_for()).flatten()
    }

    /// What a begin does to the record: false if it executes nothing.
    pub(super) fn begin(&self, world: &mut World, process: usize, is_completer: bool) -> bool {
        let Some(record) = world.unfold(self) else {
            if !is_completer && !world.record.is_over {
                world.insert(self, process);
                return true;
            }
            return false;
        };
        if is_completer && (self.has(Fault::NoCompleter) || record.flow.is_none()) {
            return false;
        }
        let begin = Begin {
            same_request: true,
            mark: None,
            owner: u64::from(number(process)),
            lease: ticks(self.lease),
            request_id: None,
            flows: std::slice::from_ref(the_flow()),
        };
        let mut judged = record.clone();
        let is_open = self.has(Fault::LiveLeaseTakenOver) && record.flow.is_some();
        if let (State::InProgress { lease_until, .. }, true) = (&mut judged.state, is_open) {
            *lease_until = NOW;
        }
        let takes_over = |becomes: bool| becomes.then(|| takeover(&begin));
        let write = match machine::decide_begin(Some(judged), &begin, NOW) {
            BeginDecision::Execute(_, write) => Some(write),
            BeginDecision::Doubt(..) => {
                let is_marked = matches!(record.recovery_point(), Some(RecoveryPoint::Calling(_)));
                let goes_on = if self.is_keyed {
                    self.has(Fault::ForgottenKeyResent)
                } else {
                    self.has(Fault::UnkeyedCallResumed)
                };
                takes_over(is_marked && goes_on)
            }
            BeginDecision::Unknown(_) => {
                takes_over(self.has(Fault::UnknownExecutes) && !is_completer)
            }
            BeginDecision::Insert
            | BeginDecision::Mismatch
            | BeginDecision::CredentialChanged
            | BeginDecision::InProgress(_)
            | BeginDecision::Held(_)
            | BeginDecision::Replay(..) => None,
        };
        if let Some(write) = &write {
            world.write(self, &record, write);
        }
        write.is_some()
    }

    /// The step that leads on from a point; none where the flow ends or its call is to be sent.
    fn step_from(&self, point: Option<RecoveryPoint>) -> Option<FlowStep> {
        let output = bytes::Bytes::new();
        match point {
            None => Some(FlowStep::Start { flow: the_flow().clone(), input: output }),
            Some(RecoveryPoint::Before(phase)) if phase == self.call_phase => {
                let repeatable_for = self.repeatable();
                Some(FlowStep::Call { phase, digest: digest(0), repeatable_for })
            }
            Some(RecoveryPoint::Before(phase)) if phase < self.call_phase => {
                Some(FlowStep::Commit { phase, output })
            }
            Some(RecoveryPoint::Before(_) | RecoveryPoint::Calling(_)) => None,
        }
    }

    /// Commits what a process does next at a point: a step, or its last phase with the answer. False if
    /// it is refused.
    pub(super) fn commit(
        &self,
        world: &mut World,
        from: Option<RecoveryPoint>,
        is_current: bool,
        has_rows: bool,
    ) -> bool {
        let Some(record) = world.unfold(self) else { return false };
        let judged = self.as_guarded(&record, from);
        let fence = if is_current { FENCE } else { FORMER_FENCE };
        let write = match self.step_from(from) {
            Some(step) => self.decide(&judged, &Advance { fence, step: &step }),
            None => {
                let outcome = Outcome::Completed(answer(Told::Whole));
                let settle = Settle { fence, outcome: &outcome, ttl: None, point: from };
                // A late owner's last phase has rows, and only an owner in time commits them.
                let is_running = judged.standing() == Standing::InProgress;
                self.decide(&judged, &settle).filter(|_| is_running)
            }
        };
        let Some(write) = write else { return false };
        world.write(self, &judged, &write);
        match from {
            Some(point) if self.is_first_transaction(point) && !has_rows => add(&mut world.rows[0]),
            Some(RecoveryPoint::Before(phase)) if phase > self.call_phase => {
                add(&mut world.rows[1]);
            }
            Some(_) | None => {}
        }
        if matches!(world.record.point, Some(RecoveryPoint::Calling(_)))
            && self.settle_time_from_mark
        {
            world.record.settle_time = self.settle_time;
        }
        true
    }

    /// Commits the result of a call. None if it is refused, else whether the owner goes on.
    pub(super) fn commit_result(&self, world: &mut World, is_current: bool) -> Option<bool> {
        let record = world.unfold(self)?;
        let from = Some(RecoveryPoint::Calling(self.call_phase));
        let judged = self.as_guarded(&record, from);
        let fence = if is_current { FENCE } else { FORMER_FENCE };
        let output = bytes::Bytes::new();
        let step = FlowStep::CallResult { phase: self.call_phase, output };
        let write = self.decide(&judged, &Advance { fence, step: &step })?;
        world.write(self, &judged, &write);
        Some(record.standing() == Standing::InProgress)
    }

    /// The record as a guarded write sees it: without its rule, at whatever point the writer believes
    /// it to be.
    fn as_guarded(&self, record: &Record, from: Option<RecoveryPoint>) -> Record {
        let mut judged = record.clone();
        if self.has(Fault::NoRecoveryPointInGuard) && judged.standing() == Standing::InProgress {
            judged.flow = from.map(|point| {
                progress(point, judged.fence, self.is_keyed.then(|| NOW.plus(ticks(1))))
            });
        }
        judged
    }

    fn decide<E: Event>(&self, record: &Record, event: &E) -> Option<Write> {
        machine::decide(Some(record), event, NOW).and_then(Decision::write)
    }

    fn apply<E: Event>(&self, world: &mut World, event: &E) -> bool {
        let Some(record) = world.unfold(self) else { return false };
        let Some(write) = self.decide(&record, event) else { return false };
        world.write(self, &record, &write);
        self.forget_phases(world, &write);
        true
    }

    fn forget_phases(&self, world: &mut World, write: &Write) {
        let is_released = matches!(write.becomes, Becomes::FailedRetryable);
        if is_released && self.has(Fault::FailureForgetsPhases) {
            (world.record.point, world.record.kept) = (None, TTL);
        }
    }

    /// The owner settles; what it says is no answer of the flow.
    pub(super) fn settle(&self, world: &mut World, process: usize, outcome: &Outcome) {
        let Process { is_current, knows, .. } = world.processes[process];
        let fence =
            if is_current || self.has(Fault::NoFenceInSettle) { FENCE } else { FORMER_FENCE };
        let is_marked = matches!(world.record.point, Some(RecoveryPoint::Calling(_)));
        let is_open =
            matches!(world.record.standing, Some(Standing::InProgress | Standing::Unknown));
        let releases = matches!(outcome, Outcome::Retryable(_))
            && self.has(Fault::ServerErrorReleases)
            && is_marked
            && is_open;
        if let (true, true, Some(record)) = (releases, is_current, world.unfold(self)) {
            let becomes = Becomes::FailedRetryable;
            let write = Write { becomes, new_fence: false, what: None, ttl: None };
            world.write(self, &record, &write);
            return;
        }
        let is_doubt = matches!(outcome, Outcome::Unknown(_)) && is_current && is_open;
        if let (true, true, Some(record)) =
            (self.has(Fault::GivenUpIsUnknown), is_doubt, world.unfold(self))
        {
            let becomes = Becomes::Unknown(Doubt::Panicked);
            let write = Write { becomes, new_fence: false, what: None, ttl: None };
            world.write(self, &record, &write);
            return;
        }
        self.apply(world, &Settle { fence, outcome, ttl: None, point: knows });
    }

    pub(super) fn call_not_sent(&self, world: &mut World, process: usize) {
        let is_current = world.processes[process].is_current || self.has(Fault::NoFenceInSettle);
        let fence = if is_current { FENCE } else { FORMER_FENCE };
        if self.has(Fault::NotSentClearsAnyMark) && is_current {
            world.record.is_own_mark = true;
        }
        self.apply(world, &CallNotSent { fence, phase: self.call_phase });
    }

    pub(super) fn withdraw(&self, world: &mut World, process: usize) {
        let is_own = world.record.owner == number(process);
        let is_open =
            matches!(world.record.standing, Some(Standing::InProgress | Standing::Unknown));
        if self.has(Fault::WithdrawnTakeoverFrees)
            && is_own
            && is_open
            && world.record.point.is_some()
        {
            world.wrong.unfinished_freed |= self.has_begun_work(world);
            world.remove();
            return;
        }
        self.apply(world, &Withdraw { owner: u64::from(number(process)) });
    }

    /// Whether something has happened, or may, that a new flow would do again.
    pub(super) fn has_begun_work(&self, world: &World) -> bool {
        let is_marked = matches!(world.record.point, Some(RecoveryPoint::Calling(_)));
        world.rows[0] > 0 || world.provider.effects > 0 || world.is_call_in_flight() || is_marked
    }

    pub(super) fn sweep(&self, world: &mut World) -> bool {
        !self.has(Fault::NoSweeper) && self.apply(world, &LeaseCheck)
    }

    /// A sweeper writes what it has decided about a record that it read before.
    pub(super) fn sweep_blindly(&self, world: &mut World) {
        world.sweeper_has_read = false;
        let Some(record) = world.unfold(self) else { return };
        world.wrong.answer_flipped |= record.standing() == Standing::Completed;
        let becomes = Becomes::Unknown(Doubt::LeaseEnded);
        let write = Write { becomes, new_fence: false, what: None, ttl: None };
        world.write(self, &record, &write);
    }

    /// Whether a sweep would write.
    pub(super) fn is_due(&self, world: &World) -> bool {
        world.unfold(self).is_some_and(|record| self.decide(&record, &LeaseCheck).is_some())
    }

    pub(super) fn rule(&self, world: &mut World, found: Found) {
        let is_current = world.found_is_current || self.has(Fault::VerdictOnAnyAttempt);
        (world.found, world.found_is_current) = (None, false);
        let evidence = match found {
            Found::Executed => Evidence::CallExecuted(bytes::Bytes::new()),
            Found::Absent => Evidence::NotExecuted(Proof::burnt()),
        };
        let fence = if is_current { FENCE } else { FORMER_FENCE };
        if self.has(Fault::FactCompletes) && found == Found::Executed && is_current {
            let Some(record) = world.unfold(self) else { return };
            if record.standing() == Standing::Unknown {
                let becomes = Becomes::Completed(answer(Told::Fact));
                let write = Write { becomes, new_fence: true, what: None, ttl: None };
                world.write(self, &record, &write);
            }
            return;
        }
        let judge = Judge::Reconciler;
        self.apply(world, &Resolve(&Verdict { fence, evidence, judge, reason: "".into() }));
    }

    /// Removes what is over. False if there is nothing to remove.
    pub(super) fn reap(&self, world: &mut World) -> bool {
        let Some(record) = world.unfold(self) else { return false };
        let is_released = record.standing() == Standing::FailedRetryable;
        let takes_flow = self.has(Fault::ReaperTakesFlows) && is_released && record.flow.is_some();
        if !record.is_expired(NOW) && !takes_flow {
            return false;
        }
        let is_completed = record.standing() == Standing::Completed;
        if is_completed {
            world.remove();
            world.record.is_over = true;
        } else {
            world.wrong.unfinished_freed |= self.has_begun_work(world);
            world.remove();
        }
        true
    }

    /// The last look before the wire, as the process sees its record.
    pub(super) fn check(&self, world: &World, process: usize, bytes: u8) -> SendDecision {
        let Process { lease, until, is_own_mark, knows, .. } = world.processes[process];
        let mut seen = world.record;
        (seen.standing, seen.point) = (Some(Standing::InProgress), knows);
        (seen.lease, seen.until, seen.is_own_mark) = (lease, until, is_own_mark);
        if self.has(Fault::NoLeaseCheck) {
            seen.lease = 100;
        }
        if self.has(Fault::ForgottenKeyResent) {
            seen.until = 100;
        }
        // Two rules forbid a second call without a key: this one is taken away with the other.
        if self.has(Fault::UnkeyedCallResumed) || self.has(Fault::UnknownExecutes) {
            seen.is_own_mark = true;
        }
        let bytes = if self.has(Fault::OtherBytesSent) { 0 } else { bytes };
        let Some(record) = seen.unfold(self) else { return SendDecision::TooLate };
        let deadline = if self.has(Fault::DeadlineIgnored) { 0 } else { self.deadline };
        let (digest, deadline) = (digest(bytes), ticks(deadline));
        decide_send(&BeforeWire {
            record: &record,
            read_at: NOW,
            elapsed: ticks(0),
            deadline,
            digest: &digest,
            is_repeatable: self.repeatable().is_some(),
        })
    }
}

fn takeover(begin: &Begin<'_>) -> Write {
    let becomes = Becomes::Begun { owner: begin.owner, lease: begin.lease, mark: begin.mark };
    Write { becomes, new_fence: true, what: None, ttl: None }
}

fn add(count: &mut u8) {
    *count = (*count + 1).min(2);
}
