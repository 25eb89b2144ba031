//! What happens to a request on its way to the store and back?
//!
//! It may be refused at once, get lost, arrive twice, arrive after its sender has given up, or be
//! answered with an answer that gets lost. The sender learns one of three things: the answer,
//! "surely not applied", or "perhaps applied". A request outlives its sender, except in the store
//! that lives in the sender's own process.

use std::task::Poll;

use retrysafe_core::record::{First, Record, Write};
use retrysafe_core::store::{Inserted, Page, Query, Stamped, StoreError, StoreErrorKind, Swapped};

use super::{Event, TaskNo, World};
use crate::history::By;
use crate::options::{Kind, Profile};

/// How long a store client waits for its store. Long against a healthy answer, short against every
/// lease, as a driver's timeout is.
pub const STORE_DEADLINE_MS: u64 = 400;

/// What is asked of the store. The last three are no part of the contract: planted faults use them.
pub enum Request {
    Insert(First),
    Load(u8),
    Swap {
        key: u8,
        version: u64,
        write: Write,
        force: bool,
    },
    Scan(Query),
    Reap {
        limit: usize,
    },
    /// The guarded write of a transaction: what the record will be, if that is committed.
    Guard {
        key: u8,
        version: u64,
        write: Write,
        force: bool,
    },
    /// The end of that transaction, with the rows of a phase.
    Commit(Commit),
    Put(First),
    Delete(u8),
}

/// A transaction that is to be committed.
pub struct Commit {
    pub key: u8,
    /// The version that the record had when it was guarded.
    pub version: u64,
    /// The version that it gets.
    pub reserved: u64,
    pub write: Write,
    /// The phase whose rows it writes.
    pub phase: u8,
    pub force: bool,
    /// Only a planted fault commits one without the other.
    pub parts: Parts,
}

/// What a transaction commits.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Parts {
    All,
    RowsOnly,
    RecordOnly,
}

/// What the store answers.
pub enum Response {
    Inserted(Inserted),
    Loaded(Option<Record>),
    Swapped(Swapped),
    Scanned(Page),
    Reaped(usize),
    Deleted,
    /// The server has changed, and nothing new is granted yet.
    Held,
}

impl Response {
    /// The highest version that it tells of.
    fn version(&self) -> u64 {
        match self {
            Self::Inserted(Inserted::New(record) | Inserted::Exists(record))
            | Self::Loaded(Some(record))
            | Self::Swapped(Swapped::Done(record) | Swapped::Lost(Some(record))) => record.version,
            Self::Loaded(None)
            | Self::Swapped(Swapped::Lost(None))
            | Self::Scanned(_)
            | Self::Reaped(_)
            | Self::Deleted
            | Self::Held => 0,
        }
    }
}

/// A request under way, and what its sender will hear.
pub struct Op {
    by: By,
    request: Request,
    /// The highest version that was acknowledged to the sender when it sent.
    seen: u64,
    /// How long the answer takes; none if it gets lost.
    back_ms: Option<u64>,
    /// Whether the answer to the first copy gets lost, and the second copy is answered.
    second_answers: bool,
    response: Option<Stamped<Response>>,
    /// Whether the failure that its sender will hear leaves it in doubt.
    ambiguous: bool,
    heard: Option<Result<Stamped<Response>, StoreError>>,
    closed: bool,
    waiter: TaskNo,
}

/// What chance has in store for a request.
struct Fate {
    there_ms: Option<u64>,
    again_ms: Option<u64>,
    back_ms: Option<u64>,
    second_answers: bool,
    /// When its sender hears of a failure instead, and whether it is in doubt.
    fails: Option<(u64, bool)>,
}

impl Fate {
    fn fine(there_ms: u64, back_ms: u64) -> Self {
        Self {
            there_ms: Some(there_ms),
            again_ms: None,
            back_ms: Some(back_ms),
            second_answers: false,
            fails: None,
        }
    }
}

impl World {
    /// Sends a request for the present task.
    pub fn issue(&mut self, by: By, request: Request) -> u32 {
        let op = self.ops.len() as u32;
        let fate = match self.options.profile {
            Profile::SingleOwner => self.fate_within(),
            Profile::Durable | Profile::Cached | Profile::FailOver => self.fate_between(by.gateway),
        };
        for ms in [fate.there_ms, fate.again_ms].into_iter().flatten() {
            self.arriving += 1;
            self.after(ms, Event::StoreArrives(op));
        }
        if let Some((ms, _)) = fate.fails {
            self.after(ms, Event::StoreFails(op));
        }
        let sender = self.gateways.get(usize::from(by.gateway));
        self.ops.push(Op {
            by,
            request,
            seen: sender.map_or(0, |process| process.version_seen),
            back_ms: fate.back_ms,
            second_answers: fate.second_answers,
            response: None,
            ambiguous: fate.fails.is_some_and(|(_, ambiguous)| ambiguous),
            heard: None,
            closed: false,
            waiter: self.current,
        });
        op
    }

    /// What the sender of a request has heard.
    pub fn heard(&mut self, op: u32) -> Poll<Result<Stamped<Response>, StoreError>> {
        match self.ops.get_mut(op as usize).and_then(|op| op.heard.take()) {
            Some(heard) => Poll::Ready(heard),
            None => Poll::Pending,
        }
    }

    pub fn store_arrives(&mut self, op: u32) {
        self.arriving -= 1;
        let Some(sent) = self.ops.get_mut(op as usize) else { return };
        // In one process a request dies with its sender.
        if self.options.profile == Profile::SingleOwner
            && self
                .gateways
                .get(usize::from(sent.by.gateway))
                .is_none_or(|process| !process.up || process.epoch != sent.by.epoch)
        {
            return;
        }
        let (by, seen) = (sent.by, sent.seen);
        let response =
            self.store.apply(&sent.request, by, seen, self.now, &self.tables, &mut self.log);
        if sent.closed || sent.response.is_some() {
            return;
        }
        if std::mem::take(&mut sent.second_answers) {
            return;
        }
        sent.response = Some(response);
        if let Some(ms) = sent.back_ms {
            self.after(ms, Event::StoreReplies(op));
        }
    }

    pub fn store_replies(&mut self, op: u32) {
        let Some(sent) = self.ops.get_mut(op as usize) else { return };
        if !sent.closed {
            sent.closed = true;
            sent.heard = sent.response.take().map(|response| {
                let Stamped { now, value } = response;
                if matches!(value, Response::Held) {
                    return Err(StoreError::not_applied(StoreErrorKind::Held));
                }
                if let Some(process) = self.gateways.get_mut(usize::from(sent.by.gateway)) {
                    process.version_seen = process.version_seen.max(value.version());
                }
                Ok(Stamped { now, value })
            });
            self.ready.push(sent.waiter);
        }
    }

    pub fn store_fails(&mut self, op: u32) {
        let Some(sent) = self.ops.get_mut(op as usize) else { return };
        if !sent.closed {
            sent.closed = true;
            let kind = StoreErrorKind::Unavailable;
            sent.heard = Some(Err(if sent.ambiguous {
                StoreError::maybe_applied(kind)
            } else {
                StoreError::not_applied(kind)
            }));
            self.ready.push(sent.waiter);
        }
    }

    /// The fate of a request that crosses a network.
    fn fate_between(&mut self, gateway: u8) -> Fate {
        let there = self.chance.between(1, 8);
        let back = self.chance.between(1, 8);
        let fine = Fate::fine(there, back);
        if self.healed_at.is_some() {
            return fine;
        }
        let timed_out = Some((STORE_DEADLINE_MS, true));
        let cut_off = self
            .gateways
            .get(usize::from(gateway))
            .is_some_and(|process| process.cut_off_until > self.now);
        if cut_off {
            self.faults += 1;
            return match self.chance.below(4) {
                0 | 1 => Fate { there_ms: None, fails: Some((there, false)), ..fine },
                2 => Fate { there_ms: None, fails: timed_out, ..fine },
                _ => Fate { back_ms: None, fails: timed_out, ..fine },
            };
        }
        let lease = self.options.lease_ms;
        if self.strike(Kind::StoreLost, 7) {
            return match self.chance.below(2) {
                0 => Fate { there_ms: None, fails: timed_out, ..fine },
                _ => Fate { back_ms: None, fails: timed_out, ..fine },
            };
        }
        if self.strike(Kind::StoreLate, 5) {
            let late = STORE_DEADLINE_MS + self.chance.scaled(1, 3 * lease);
            return Fate { there_ms: Some(late), fails: timed_out, ..fine };
        }
        if self.strike(Kind::StoreTwice, 5) {
            let again = there + self.chance.scaled(1, 3 * lease);
            // Sometimes it is the second copy whose answer arrives.
            let second_answers = again < STORE_DEADLINE_MS / 2 && self.chance.percent(30);
            return Fate { again_ms: Some(again), second_answers, ..fine };
        }
        fine
    }

    /// The fate of a request to a store in the same process: the disk may be full, or a flush may
    /// fail after the bytes were written.
    fn fate_within(&mut self) -> Fate {
        let there = self.chance.between(1, 4);
        let back = self.chance.between(0, 2);
        let fine = Fate::fine(there, back);
        if self.strike(Kind::StoreLost, 7) {
            return match self.chance.below(3) {
                0 => Fate { there_ms: None, fails: Some((there, false)), ..fine },
                1 => Fate { there_ms: None, fails: Some((there, true)), ..fine },
                _ => Fate { back_ms: None, fails: Some((there + back + 1, true)), ..fine },
            };
        }
        fine
    }
}
