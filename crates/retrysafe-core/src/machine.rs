//! What may happen next? **Start here.**
//!
//! This file is the whole promise as one pure function. [`decide`] looks at a record, at what is
//! asked of it and at the store's clock, and says what to write or what to answer. Everything else
//! in this project carries records to this function and carries its decisions out.
//!
//! | record | event | decision |
//! | --- | --- | --- |
//! | none, or expired | begin | insert `in_progress` with a new fence: execute |
//! | any live record | begin, other request | mismatch, checked before the state |
//! | `in_progress`, `completed`, `unknown` | begin, other credential mark | credential changed |
//! | `in_progress`, lease live | begin | in progress |
//! | `in_progress`, lease over | begin, lease check | `unknown` |
//! | `in_progress` | its store was opened by another process | `unknown` |
//! | `completed` | begin | replay |
//! | `failed_retryable` | begin, with any mark | `in_progress` with a new fence and this mark: execute |
//! | `unknown` | begin | unknown: no caller ever gets from here to execution |
//! | `in_progress` or `unknown`, same owner, no head | withdraw | `failed_retryable`: the owner never sent anything |
//! | `in_progress` or `unknown`, same fence | settle | as settled |
//! | `completed`, `failed_retryable`, same fence | settle | the same again is fine, anything else contradicts |
//! | `in_progress`, same fence | renew | a longer lease, up to `lease_max` after it began |
//! | `in_progress`, same fence | keep head | the same, and the head of the answer is known |
//! | any other, or another fence | settle, renew, keep head | lost |
//! | `unknown`, same fence | resolve, with evidence | `completed` or `failed_retryable` with a new fence |
//! | `unknown`, another fence | resolve | decided: the evidence is about an attempt that is over |
//! | `unknown`, same fence | look up, the next one | `unknown`, asked about once more |
//! | `unknown` | look up of another attempt or of a former number | decided: another one counted |
//! | `completed`, `failed_retryable` | resolve | decided once, never flipped |
//! | `completed`, `failed_retryable` | expire | retention ends now |
//! | `in_progress`, `unknown` | expire | refused, at any age |
//!
//! What is deliberately absent: no event leads from an ended lease to execution. The owner may be
//! slow, not dead, and a fence guards our record, not the world behind the handler. And no caller
//! with another credential mark moves a record that may have been executed, not even to `unknown`:
//! the mark is the only proof of who it is.

use std::time::Duration;

use crate::policy::Absence;
use crate::record::{
    Answer, AnswerHead, Becomes, Doubt, Fence, Happened, Judge, Outcome, Record, State, Write,
    reason,
};
use crate::scope::CredentialMark;
use crate::time::Time;

/// What is asked of a record.
#[derive(Clone, Debug)]
pub enum Event<'a> {
    /// A caller wants the request executed or answered.
    Begin {
        /// Whether the request's fingerprint is the record's.
        same_request: bool,
        /// Which credential the caller showed, where that counts.
        mark: Option<CredentialMark>,
        /// The caller's own random number.
        owner: u64,
        /// How long the caller may be silent once it owns the record.
        lease: Duration,
        /// The id of its request, by which logs know it.
        request_id: Option<&'a str>,
    },
    /// A caller whose begin was ambiguous says that it did not execute, whatever became of it.
    Withdraw {
        /// The random number it began with.
        owner: u64,
    },
    /// The owner is still executing.
    Renew {
        /// The fence it began with.
        fence: Fence,
        /// How long it may be silent from now on.
        lease: Duration,
        /// How long one attempt may be renewed in all.
        lease_max: Duration,
    },
    /// The owner is still executing, and the head of an answer has come that will not be kept whole.
    KeepHead {
        /// The fence it began with.
        fence: Fence,
        /// The head.
        head: &'a AnswerHead,
        /// How long it may be silent from now on.
        lease: Duration,
        /// How long one attempt may be renewed in all.
        lease_max: Duration,
    },
    /// The owner says how the execution ended.
    Settle {
        /// The fence it began with.
        fence: Fence,
        /// How it ended.
        outcome: &'a Outcome,
        /// Another time to live, where the handler asked for one.
        ttl: Option<Duration>,
    },
    /// Somebody has evidence about an unknown record.
    Resolve(&'a Verdict),
    /// A reconciler asked about an unknown record and learned nothing final.
    LookUp {
        /// The attempt that it asked about.
        fence: Fence,
        /// How many lookups there had been before it asked. Of reconcilers that ask at the same
        /// time one counts.
        lookups: u32,
        /// What it learned, in words.
        found: &'a str,
    },
    /// An operator ends the retention of a settled record, for this reason.
    Expire(&'a str),
    /// The sweeper looks for ended leases.
    LeaseCheck,
    /// A store with one owner process was opened: nobody can still be executing.
    OwnerGone,
}

/// What is to be done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Decision {
    /// There is no live record: insert one, and whoever succeeds executes.
    Insert,
    /// Write this. If the write wins, the event has happened.
    Write(Write),
    /// The record stands as it is; this is the answer.
    Stands(Reply),
}

/// What is answered when nothing is to be written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reply {
    /// The key belongs to another request.
    Mismatch,
    /// The record was begun with another credential.
    CredentialChanged,
    /// Somebody is executing it.
    InProgress,
    /// It was executed: its answer is the record's.
    Replay,
    /// Nobody knows whether it was executed.
    Unknown,
    /// The same was said before; it holds.
    Repeated,
    /// The asker does not own the record any more.
    Lost,
    /// The asker says the opposite of what it settled before.
    Contradicts,
    /// It was decided before.
    Decided,
    /// Not in this state.
    Refused,
    /// There is nothing to do yet.
    NotDue,
    /// There is no such record.
    Absent,
}

/// A decision about an unknown record, and what it rests on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Verdict {
    /// The attempt that it is about: the fence of the record when the evidence was looked for.
    /// Lookups and people are slow. Meanwhile the record may have been decided, begun again and
    /// come to be unknown again, and proof about the first attempt says nothing about the second.
    pub fence: Fence,
    /// What the evidence shows.
    pub evidence: Evidence,
    /// Who found it.
    pub judge: Judge,
    /// In words, for the timeline.
    pub reason: Box<str>,
}

/// What shows how an unknown execution ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Evidence {
    /// It was executed. The answer itself where it is known, else the mere fact.
    Executed(Answer),
    /// It was not executed and cannot be any more.
    NotExecuted(Proof),
}

/// Proof that a request was not executed and cannot be any more.
///
/// "The provider does not know it" is no proof: the request may still be on its way, or its sender
/// may have been paused before it sent. So this type has no constructor from a mere absence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Proof(());

impl Proof {
    /// The transaction in which it would have happened was rolled back.
    pub const fn rolled_back() -> Self {
        Self(())
    }

    /// The downstream has refused this key or fence for good: a late request would bounce.
    pub const fn burnt() -> Self {
        Self(())
    }

    /// A person has looked, and answers for it with a reason.
    pub const fn operator() -> Self {
        Self(())
    }

    /// The downstream does not know it. That counts only where the route says so, and only when
    /// `waited` is at least the settle time that the route's downstream needs.
    pub fn absence(rule: Absence, waited: Duration, settle_time: Duration) -> Option<Self> {
        match rule {
            Absence::Proof if waited >= settle_time => Some(Self(())),
            Absence::Proof | Absence::Inconclusive => None,
        }
    }
}

/// Decides what an event makes of a record, by the store's clock.
pub fn decide(record: Option<&Record>, event: &Event<'_>, now: Time) -> Decision {
    let live = record.filter(|record| !record.is_expired(now));
    match event {
        Event::Begin { same_request, mark, owner, lease, request_id } => match live {
            None => Decision::Insert,
            Some(_) if !same_request => Decision::Stands(Reply::Mismatch),
            Some(record) => begin(record, *mark, *owner, *lease, *request_id, now),
        },
        Event::Withdraw { owner } => withdraw(live, *owner),
        Event::Renew { fence, lease, lease_max } => {
            let renewed = Becomes::Renewed { lease: *lease, lease_max: *lease_max };
            renew(live, *fence, *lease_max, renewed, now)
        }
        Event::KeepHead { fence, head, lease, lease_max } => {
            let head = AnswerHead::clone(head);
            let kept = Becomes::HeadKept { head, lease: *lease, lease_max: *lease_max };
            renew(live, *fence, *lease_max, kept, now)
        }
        Event::Settle { fence, outcome, ttl } => settle(live, *fence, outcome, *ttl),
        Event::Resolve(verdict) => match live {
            None => Decision::Stands(Reply::Absent),
            Some(record) => resolve(record, verdict),
        },
        Event::LookUp { fence, lookups, found } => match live {
            None => Decision::Stands(Reply::Absent),
            Some(record) => looked_up(record, *fence, *lookups, found),
        },
        Event::Expire(why) => match live.map(|record| &record.state) {
            None => Decision::Stands(Reply::Absent),
            Some(State::Completed { .. } | State::FailedRetryable { .. }) => {
                write(Becomes::Expired, Some(Happened::Expired(reason(why))))
            }
            Some(State::InProgress { .. } | State::Unknown { .. }) => {
                Decision::Stands(Reply::Refused)
            }
        },
        Event::LeaseCheck => match live.and_then(Record::lease_until) {
            Some(lease_until) if lease_until <= now => doubt(Doubt::LeaseEnded),
            Some(_) | None => Decision::Stands(Reply::NotDue),
        },
        Event::OwnerGone => match live.and_then(Record::lease_until) {
            Some(_) => doubt(Doubt::OwnerGone),
            None => Decision::Stands(Reply::NotDue),
        },
    }
}

fn begin(
    record: &Record,
    mark: Option<CredentialMark>,
    owner: u64,
    lease: Duration,
    request_id: Option<&str>,
    now: Time,
) -> Decision {
    match &record.state {
        State::InProgress { .. } | State::Completed { .. } | State::Unknown { .. }
            if record.mark != mark =>
        {
            Decision::Stands(Reply::CredentialChanged)
        }
        State::InProgress { lease_until, .. } if *lease_until <= now => doubt(Doubt::LeaseEnded),
        State::InProgress { .. } => Decision::Stands(Reply::InProgress),
        State::Completed { .. } => Decision::Stands(Reply::Replay),
        State::FailedRetryable { .. } => Decision::Write(Write {
            becomes: Becomes::Begun { owner, lease, mark },
            new_fence: true,
            what: Some(Happened::Began(request_id.and_then(crate::record::request_id))),
            ttl: None,
        }),
        State::Unknown { .. } => Decision::Stands(Reply::Unknown),
    }
}

fn looked_up(record: &Record, fence: Fence, asked: u32, found: &str) -> Decision {
    match &record.state {
        State::Unknown { lookups, .. } if (record.fence, *lookups) == (fence, asked) => {
            write(Becomes::LookedUp, Some(Happened::LookedUp(reason(found))))
        }
        State::Unknown { .. } | State::Completed { .. } | State::FailedRetryable { .. } => {
            Decision::Stands(Reply::Decided)
        }
        State::InProgress { .. } => Decision::Stands(Reply::Refused),
    }
}

fn withdraw(live: Option<&Record>, mine: u64) -> Decision {
    let Some(record) = live else { return Decision::Stands(Reply::Absent) };
    // Settled records have no owner. A head is proof that this owner did send.
    if record.state.owner() != Some(mine) || record.state.head().is_some() {
        return Decision::Stands(Reply::Lost);
    }
    let what = Happened::Settled(crate::record::Standing::FailedRetryable, None);
    write(Becomes::FailedRetryable, Some(what))
}

fn renew(
    live: Option<&Record>,
    fence: Fence,
    lease_max: Duration,
    renewed: Becomes,
    now: Time,
) -> Decision {
    match live.map(|record| (&record.state, record.fence == fence)) {
        // Past `lease_max` a renewal could not extend anything: the owner is not believed any
        // more, though its late settle still counts.
        Some((State::InProgress { begun_at, .. }, true)) if begun_at.plus(lease_max) > now => {
            write(renewed, None)
        }
        Some((State::InProgress { .. }, _))
        | Some((State::Completed { .. }, _))
        | Some((State::FailedRetryable { .. }, _))
        | Some((State::Unknown { .. }, _))
        | None => Decision::Stands(Reply::Lost),
    }
}

fn settle(
    live: Option<&Record>,
    fence: Fence,
    outcome: &Outcome,
    ttl: Option<Duration>,
) -> Decision {
    let Some(record) = live.filter(|record| record.fence == fence) else {
        return Decision::Stands(Reply::Lost);
    };
    match (&record.state, outcome) {
        (State::Unknown { .. }, Outcome::Unknown(_)) => Decision::Stands(Reply::Repeated),
        (State::InProgress { .. } | State::Unknown { .. }, outcome) => Decision::Write(Write {
            becomes: match outcome {
                Outcome::Completed(answer) => Becomes::Completed(answer.clone()),
                Outcome::Retryable(_) => Becomes::FailedRetryable,
                Outcome::Unknown(doubt) => Becomes::Unknown(*doubt),
            },
            new_fence: false,
            what: Some(Happened::Settled(
                outcome.standing(),
                outcome.status().map(|status| status.as_u16()),
            )),
            ttl,
        }),
        (State::Completed { answer, .. }, Outcome::Completed(again)) if answer == again => {
            Decision::Stands(Reply::Repeated)
        }
        (State::FailedRetryable { .. }, Outcome::Retryable(_)) => Decision::Stands(Reply::Repeated),
        (
            State::Completed { .. } | State::FailedRetryable { .. },
            Outcome::Completed(_) | Outcome::Retryable(_) | Outcome::Unknown(_),
        ) => Decision::Stands(Reply::Contradicts),
    }
}

fn resolve(record: &Record, verdict: &Verdict) -> Decision {
    match &record.state {
        State::InProgress { .. } => Decision::Stands(Reply::Refused),
        State::Completed { .. } | State::FailedRetryable { .. } => Decision::Stands(Reply::Decided),
        State::Unknown { .. } if record.fence != verdict.fence => Decision::Stands(Reply::Decided),
        State::Unknown { .. } => {
            let becomes = match &verdict.evidence {
                Evidence::Executed(answer) => Becomes::Completed(answer.clone()),
                Evidence::NotExecuted(Proof(())) => Becomes::FailedRetryable,
            };
            let standing = verdict.evidence.standing();
            Decision::Write(Write {
                becomes,
                // The former owner may still wake up; from now on it loses.
                new_fence: true,
                what: Some(Happened::Resolved(standing, verdict.judge, reason(&verdict.reason))),
                ttl: None,
            })
        }
    }
}

impl Evidence {
    /// The standing a record has after this.
    pub fn standing(&self) -> crate::record::Standing {
        match self {
            Self::Executed(_) => crate::record::Standing::Completed,
            Self::NotExecuted(_) => crate::record::Standing::FailedRetryable,
        }
    }
}

fn doubt(why: Doubt) -> Decision {
    write(Becomes::Unknown(why), Some(Happened::Doubted(why)))
}

fn write(becomes: Becomes, what: Option<Happened>) -> Decision {
    Decision::Write(Write { becomes, new_fence: false, what, ttl: None })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::fmt::Write as _;

    use super::*;
    use crate::record::{About, First, Standing};
    use crate::scope::{Id, Scope};

    const NOW: Time = Time::from_ms(1_000_000);
    const LEASE: Duration = Duration::from_secs(60);
    const OWNER: u64 = 1;
    const FENCE: Fence = Fence(10);

    /// Every decision there is: the module's table, with nothing left out. `!` marks a new fence.
    const TABLE: &str = "\
event                       | none      | running     | overdue     | completed   | failed      | unknown     | gone      | gone failed
begin                       | insert    | in progress | → unknown   | replay      | → begun !   | unknown     | insert    | insert
begin, other request        | insert    | mismatch    | mismatch    | mismatch    | mismatch    | mismatch    | insert    | insert
begin, other mark           | insert    | changed     | changed     | changed     | → begun !   | changed     | insert    | insert
begin, other in both        | insert    | mismatch    | mismatch    | mismatch    | mismatch    | mismatch    | insert    | insert
withdraw, owner             | absent    | → failed    | → failed    | lost        | lost        | → failed    | absent    | absent
withdraw, other owner       | absent    | lost        | lost        | lost        | lost        | lost        | absent    | absent
renew                       | lost      | → renewed   | → renewed   | lost        | lost        | lost        | lost      | lost
renew, lease_max used up    | lost      | lost        | lost        | lost        | lost        | lost        | lost      | lost
renew, other fence          | lost      | lost        | lost        | lost        | lost        | lost        | lost      | lost
keep head                   | lost      | → head      | → head      | lost        | lost        | lost        | lost      | lost
keep head, lease_max used up | lost     | lost        | lost        | lost        | lost        | lost        | lost      | lost
keep head, other fence      | lost      | lost        | lost        | lost        | lost        | lost        | lost      | lost
settle completed            | lost      | → completed | → completed | repeated    | contradicts | → completed | lost      | lost
settle completed otherwise  | lost      | → completed | → completed | contradicts | contradicts | → completed | lost      | lost
settle retryable            | lost      | → failed    | → failed    | contradicts | repeated    | → failed    | lost      | lost
settle unknown              | lost      | → unknown   | → unknown   | contradicts | contradicts | repeated    | lost      | lost
settle, other fence         | lost      | lost        | lost        | lost        | lost        | lost        | lost      | lost
resolve executed            | absent    | refused     | refused     | decided     | decided     | → completed ! | absent    | absent
resolve not executed        | absent    | refused     | refused     | decided     | decided     | → failed !  | absent    | absent
resolve, other fence        | absent    | refused     | refused     | decided     | decided     | decided     | absent    | absent
look up                     | absent    | refused     | refused     | decided     | decided     | → looked up | absent    | absent
look up, other fence        | absent    | refused     | refused     | decided     | decided     | decided     | absent    | absent
look up, other number       | absent    | refused     | refused     | decided     | decided     | decided     | absent    | absent
expire                      | absent    | refused     | refused     | → expired   | → expired   | refused     | absent    | absent
lease check                 | not due   | not due     | → unknown   | not due     | not due     | not due     | not due   | not due
owner gone                  | not due   | → unknown   | → unknown   | not due     | not due     | not due     | not due   | not due
";

    #[test]
    fn every_state_and_event_is_decided_as_the_table_says() {
        let (records, completed, unknown) =
            (records(), completed("x"), Outcome::Unknown(Doubt::Said));
        let (executed, not_executed) = (verdict(true), verdict(false));
        let former = Verdict { fence: Fence(9), ..verdict(false) };
        let (otherwise, retryable) = (completed_otherwise(), Outcome::Retryable(None));
        let begin = |same_request, mark| Event::Begin {
            same_request,
            mark,
            owner: 2,
            lease: LEASE,
            request_id: Some("r-2"),
        };
        let other_mark = Some(CredentialMark::of(b"other"));
        let look_up = |fence, lookups| Event::LookUp { fence, lookups, found: "nothing" };
        let renew = |fence, lease_max| Event::Renew { fence, lease: LEASE, lease_max };
        let head = head();
        let keep_head =
            |fence, lease_max| Event::KeepHead { fence, head: &head, lease: LEASE, lease_max };
        let settle = |fence, outcome| Event::Settle { fence, outcome, ttl: None };
        let events = [
            ("begin", begin(true, None)),
            ("begin, other request", begin(false, None)),
            ("begin, other mark", begin(true, other_mark)),
            ("begin, other in both", begin(false, other_mark)),
            ("withdraw, owner", Event::Withdraw { owner: OWNER }),
            ("withdraw, other owner", Event::Withdraw { owner: 2 }),
            ("renew", renew(FENCE, LEASE * 100)),
            ("renew, lease_max used up", renew(FENCE, Duration::ZERO)),
            ("renew, other fence", renew(Fence(9), LEASE * 100)),
            ("keep head", keep_head(FENCE, LEASE * 100)),
            ("keep head, lease_max used up", keep_head(FENCE, Duration::ZERO)),
            ("keep head, other fence", keep_head(Fence(9), LEASE * 100)),
            ("settle completed", settle(FENCE, &completed)),
            ("settle completed otherwise", settle(FENCE, &otherwise)),
            ("settle retryable", settle(FENCE, &retryable)),
            ("settle unknown", settle(FENCE, &unknown)),
            ("settle, other fence", settle(Fence(9), &completed)),
            ("resolve executed", Event::Resolve(&executed)),
            ("resolve not executed", Event::Resolve(&not_executed)),
            ("resolve, other fence", Event::Resolve(&former)),
            ("look up", look_up(FENCE, 0)),
            ("look up, other fence", look_up(Fence(9), 0)),
            ("look up, other number", look_up(FENCE, 1)),
            ("expire", Event::Expire("why")),
            ("lease check", Event::LeaseCheck),
            ("owner gone", Event::OwnerGone),
        ];
        let kinds: BTreeSet<usize> = events.iter().map(|(_, event)| kind(event)).collect();
        assert_eq!(kinds.len(), EVENTS, "every event is in the table");
        let standings: BTreeSet<Standing> =
            records.iter().filter_map(|(_, record)| Some(record.as_ref()?.standing())).collect();
        assert_eq!(standings.len(), Standing::ALL.len(), "every state is in the table");

        let mut told = TABLE.lines();
        assert_eq!(cells(told.next().unwrap())[1..], records.each_ref().map(|(name, _)| *name));
        for (event_name, event) in &events {
            let expected = cells(told.next().expect("the table has a line for each event"));
            assert_eq!(expected[0], *event_name);
            for ((state, record), expected) in records.iter().zip(&expected[1..]) {
                let decision = decide(record.as_ref(), event, NOW);
                assert_eq!(in_words(&decision), *expected, "{event_name} of {state}");
            }
        }
        assert_eq!(told.next(), None);
    }

    fn cells(line: &str) -> Vec<&str> {
        line.split('|').map(str::trim).collect()
    }

    /// How many kinds of events there are, and which one this is. A new one does not compile here;
    /// once it is counted, the table must have it.
    const EVENTS: usize = 10;

    fn kind(event: &Event<'_>) -> usize {
        match event {
            Event::Begin { .. } => 0,
            Event::Withdraw { .. } => 1,
            Event::Renew { .. } => 2,
            Event::Settle { .. } => 3,
            Event::Resolve(_) => 4,
            Event::LookUp { .. } => 5,
            Event::Expire(_) => 6,
            Event::LeaseCheck => 7,
            Event::OwnerGone => 8,
            Event::KeepHead { .. } => 9,
        }
    }

    fn in_words(decision: &Decision) -> String {
        let mut words = String::new();
        match decision {
            Decision::Insert => words.push_str("insert"),
            Decision::Stands(reply) => words.push_str(match reply {
                Reply::Mismatch => "mismatch",
                Reply::CredentialChanged => "changed",
                Reply::InProgress => "in progress",
                Reply::Replay => "replay",
                Reply::Unknown => "unknown",
                Reply::Repeated => "repeated",
                Reply::Lost => "lost",
                Reply::Contradicts => "contradicts",
                Reply::Decided => "decided",
                Reply::Refused => "refused",
                Reply::NotDue => "not due",
                Reply::Absent => "absent",
            }),
            Decision::Write(write) => {
                let becomes = match &write.becomes {
                    Becomes::Same => "same",
                    Becomes::Begun { .. } => "begun",
                    Becomes::Renewed { .. } => "renewed",
                    Becomes::HeadKept { .. } => "head",
                    Becomes::Completed(_) => "completed",
                    Becomes::FailedRetryable => "failed",
                    Becomes::Unknown(_) => "unknown",
                    Becomes::LookedUp => "looked up",
                    Becomes::Expired => "expired",
                };
                write!(words, "→ {becomes}{}", if write.new_fence { " !" } else { "" }).unwrap();
            }
        }
        words
    }

    fn head() -> AnswerHead {
        AnswerHead { status: http::StatusCode::OK, location: None }
    }

    fn completed(body: &'static str) -> Outcome {
        Outcome::Completed(Answer::Kept(crate::response::StoredResponse {
            status: http::StatusCode::OK,
            headers: vec![],
            body: body.into(),
        }))
    }

    fn completed_otherwise() -> Outcome {
        Outcome::Completed(Answer::NotKept { status: None, location: None })
    }

    fn verdict(executed: bool) -> Verdict {
        let answer = Answer::NotKept { status: None, location: None };
        let evidence = match executed {
            true => Evidence::Executed(answer),
            false => Evidence::NotExecuted(Proof::burnt()),
        };
        Verdict { fence: FENCE, evidence, judge: Judge::Operator, reason: "why".into() }
    }

    fn in_progress() -> Record {
        let (scope, key) = (Scope::anonymous(), crate::key::Key::new("k").unwrap().digest());
        let fingerprint = crate::fingerprint::Fingerprint::from_parts(
            1,
            crate::fingerprint::RulesId::from_bytes([0; 8]),
            [0; 32],
        );
        let id = Id::of(&scope, &key);
        let about = About::default();
        let ttl = Duration::from_secs(3_600);
        let (mark, lease, owner, request_id) = (None, LEASE, OWNER, None);
        First { id, scope, key, fingerprint, mark, about, ttl, lease, owner, request_id }
            .record(NOW, FENCE.0)
    }

    fn settled(outcome: &Outcome, at: Time) -> Record {
        let begun = in_progress();
        let event = Event::Settle { fence: FENCE, outcome, ttl: None };
        match decide(Some(&begun), &event, at) {
            Decision::Write(write) => write.onto(&begun, at, FENCE.0 + 1),
            other => panic!("{other:?}"),
        }
    }

    /// A record in every state: live, its lease over, expired.
    fn records() -> [(&'static str, Option<Record>); 8] {
        let mut overdue = in_progress();
        let (begun_at, lease_until) = (Time::from_ms(1), NOW);
        overdue.state = State::InProgress { owner: OWNER, begun_at, lease_until, head: None };
        let long_ago = Time::default();
        let mut gone =
            [settled(&completed("x"), long_ago), settled(&Outcome::Retryable(None), long_ago)];
        for record in &mut gone {
            match &mut record.state {
                State::Completed { expires_at, .. } | State::FailedRetryable { expires_at, .. } => {
                    *expires_at = NOW;
                }
                State::InProgress { .. } | State::Unknown { .. } => panic!("{record:?}"),
            }
        }
        let [gone, gone_failed] = gone;
        [
            ("none", None),
            ("running", Some(in_progress())),
            ("overdue", Some(overdue)),
            ("completed", Some(settled(&completed("x"), NOW))),
            ("failed", Some(settled(&Outcome::Retryable(None), NOW))),
            ("unknown", Some(settled(&Outcome::Unknown(Doubt::Said), NOW))),
            ("gone", Some(gone)),
            ("gone failed", Some(gone_failed)),
        ]
    }

    #[test]
    fn no_event_leads_from_an_ended_lease_or_from_unknown_to_execution() {
        let (completed, retryable) = (completed("x"), Outcome::Retryable(None));
        let verdict = verdict(true);
        let mark = Some(CredentialMark::of(b"other"));
        for (state, record) in records() {
            if !matches!(state, "overdue" | "unknown") {
                continue;
            }
            for same_request in [true, false] {
                let begin = |mark| Event::Begin {
                    same_request,
                    mark,
                    owner: OWNER,
                    lease: LEASE,
                    request_id: None,
                };
                for event in [
                    begin(None),
                    begin(mark),
                    Event::Withdraw { owner: OWNER },
                    Event::Settle { fence: FENCE, outcome: &completed, ttl: None },
                    Event::Settle { fence: FENCE, outcome: &retryable, ttl: None },
                    Event::Resolve(&verdict),
                    Event::LeaseCheck,
                    Event::OwnerGone,
                ] {
                    let decision = decide(record.as_ref(), &event, NOW);
                    assert!(decision != Decision::Insert, "{state}, {event:?}");
                    if let Decision::Write(write) = decision {
                        let begun = matches!(write.becomes, Becomes::Begun { .. });
                        assert!(!begun, "{state}, {event:?}");
                    }
                }
            }
        }
    }

    /// An owner whose answer has begun to come did send, whatever it says later.
    #[test]
    fn a_record_with_a_head_is_not_withdrawn() {
        let head = head();
        let begun = in_progress();
        let keep = Event::KeepHead { fence: FENCE, head: &head, lease: LEASE, lease_max: LEASE };
        let Decision::Write(write) = decide(Some(&begun), &keep, NOW) else { panic!() };
        let running = write.onto(&begun, NOW, FENCE.0 + 1);
        let gone = Event::OwnerGone;
        let Decision::Write(write) = decide(Some(&running), &gone, NOW) else { panic!() };
        let unknown = write.onto(&running, NOW, FENCE.0 + 2);
        for record in [running, unknown] {
            let decision = decide(Some(&record), &Event::Withdraw { owner: OWNER }, NOW);
            assert_eq!(decision, Decision::Stands(Reply::Lost), "{record:?}");
        }
    }

    #[test]
    fn a_mark_is_another_one_where_only_one_side_has_one() {
        let mark = Some(CredentialMark::of(b"token"));
        let begin = |mark| Event::Begin {
            same_request: true,
            mark,
            owner: 2,
            lease: LEASE,
            request_id: None,
        };
        let changed = Decision::Stands(Reply::CredentialChanged);
        let marked = Record { mark, ..in_progress() };
        assert_eq!(decide(Some(&marked), &begin(None), NOW), changed);
        assert_eq!(decide(Some(&in_progress()), &begin(mark), NOW), changed);
        let running = Decision::Stands(Reply::InProgress);
        assert_eq!(decide(Some(&marked), &begin(mark), NOW), running);
    }

    #[test]
    fn what_is_written_is_told_on_the_timeline() {
        let completed = completed("x");
        let settle = Event::Settle { fence: FENCE, outcome: &completed, ttl: Some(LEASE) };
        let Decision::Write(write) = decide(Some(&in_progress()), &settle, NOW) else { panic!() };
        assert_eq!(write.ttl, Some(LEASE), "the handler's own time to live is kept");
        assert_eq!(write.what, Some(Happened::Settled(Standing::Completed, Some(200))));
        let long = "é".repeat(1_000);
        let records = records();
        let [.., (_, unknown), _, _] = &records;
        let verdict = Verdict { reason: long.as_str().into(), ..verdict(false) };
        let Decision::Write(write) = decide(unknown.as_ref(), &Event::Resolve(&verdict), NOW)
        else {
            panic!()
        };
        let Some(Happened::Resolved(standing, judge, why)) = write.what else { panic!() };
        assert_eq!((standing, judge), (Standing::FailedRetryable, Judge::Operator));
        assert_eq!(&*why, &*reason(&long), "a reason is cut");
    }

    #[test]
    fn absence_is_proof_only_where_the_route_says_so_and_after_its_time() {
        let (second, minute) = (Duration::from_secs(1), Duration::from_secs(60));
        assert_eq!(Proof::absence(Absence::Inconclusive, minute, second), None);
        assert_eq!(Proof::absence(Absence::Proof, second, minute), None);
        assert!(Proof::absence(Absence::Proof, minute, minute).is_some());
    }
}
