//! What may a caller be told?
//!
//! The rules about answers: durable before they leave, the same for everybody, of this very
//! request, of a generation that lived; and about the client's own conduct.

use super::{Call, Checker, Conn, GrantEnd, Sometimes};
use crate::history::{CallEnd, Class, NONE, TRUNCATED};
use crate::invariant::Invariant as I;
use crate::options::{NAMES, Profile};

/// The status of whoever should come again later.
const TOO_MANY: u16 = 429;

/// When a caller may be told to come back if nothing ends by itself, by the project's own page; not
/// taken from its code.
const ASK_AGAIN_MS: u64 = 10_000;

impl Checker {
    pub(super) fn called(&mut self, call: u16, key: u8, print: u8) {
        let blank = Call {
            key,
            print,
            began_at: self.at,
            told: false,
            in_doubt: false,
            answered: false,
            lost: false,
            may_end: false,
            end: None,
        };
        while self.calls.len() <= usize::from(call) {
            // Numbers that never called are owed nothing.
            self.calls.push(Call { began_at: 0, ..blank });
        }
        if let Some(slot) = self.calls.get_mut(usize::from(call)) {
            *slot = blank;
        }
    }

    pub(super) fn invoked(&mut self, call: u16, conn: u16, key: u8, print: u8, gateway: u8) {
        let blank = Conn {
            call,
            key,
            print,
            gateway,
            invoked: self.entry,
            invoked_at: self.at,
            failed: false,
            ambiguous: false,
            answered: false,
            known: false,
        };
        while self.conns.len() <= usize::from(conn) {
            self.conns.push(blank);
        }
        if let Some(slot) = self.conns.get_mut(usize::from(conn)) {
            *slot = Conn { known: true, ..blank };
        }
        if let Some(call) = self.calls.get(usize::from(call)).copied() {
            // One key and one request for all attempts, and none after it was told the end.
            self.require(call.key == key && call.print == print, I::S38, key);
            self.require(!call.told && call.end.is_none(), I::S38, key);
        }
    }

    pub(super) fn heard(&mut self, call: u16, class: Class, status: u16) {
        let (in_doubt, lost) = self
            .calls
            .get(usize::from(call))
            .map_or((false, false), |call| (call.in_doubt, call.lost));
        let (told, answered) = match class {
            // A kept 5xx is an answer, but a client cannot tell it from one that will pass.
            Class::Replay => (status < 500, true),
            // Nor can a client with an attempt in doubt tell the application's refusal from one
            // that was said at the door, until it is marked as kept. And 429 asks it to come again, also at the head of a
            // stream whose end could not be written down.
            Class::First => (status < 400 || status < 500 && status != TOO_MANY && !in_doubt, true),
            // Nothing is kept of it, but its client cannot know better.
            Class::Unprotected => (status < 400, status < 500),
            Class::Gone | Class::Mismatch => (true, true),
            Class::Released
            | Class::Doubtful
            | Class::InProgress
            | Class::Unknown
            | Class::Unavailable
            | Class::Unreachable => (false, false),
        };
        // What passes is an answer to whoever knows of nothing that was lost; a mark says more.
        let may_end = match class {
            Class::Replay => true,
            Class::Gone | Class::Mismatch => told,
            Class::First | Class::Released | Class::Doubtful | Class::Unprotected => {
                status < 400 || status < 500 && !lost
            }
            Class::InProgress | Class::Unknown | Class::Unavailable | Class::Unreachable => false,
        };
        if let Some(call) = self.calls.get_mut(usize::from(call)) {
            call.told |= told;
            call.may_end = may_end;
            call.answered |= answered;
            call.in_doubt |= !told && !matches!(class, Class::Unavailable | Class::Unreachable);
        }
    }

    /// An attempt was sent, and nothing came back.
    pub(super) fn not_heard(&mut self, call: u16) {
        if let Some(call) = self.calls.get_mut(usize::from(call)) {
            (call.in_doubt, call.lost) = (true, true);
        }
    }

    /// Another process finishes the call. It cannot know what the former one was told.
    pub(super) fn call_resumed(&mut self, call: u16) {
        self.reach(Sometimes::CallResumed);
        if let Some(call) = self.calls.get_mut(usize::from(call)) {
            (call.told, call.in_doubt, call.lost) = (false, true, true);
        }
    }

    pub(super) fn call_ended(&mut self, call: u16, end: CallEnd) {
        let Some(ended) = self.calls.get_mut(usize::from(call)) else { return };
        ended.end = Some(end);
        let Call { may_end, key, .. } = *ended;
        match end {
            CallEnd::Done => self.require(may_end, I::S38, key),
            CallEnd::Refused => {}
            CallEnd::OutcomeUnknown => self.reach(Sometimes::CallInDoubt),
            CallEnd::GaveUp => self.reach(Sometimes::CallGivesUp),
        }
    }

    /// Where the request stood when its client went away.
    pub(super) fn disconnected(&mut self, conn: u16) {
        let grant = self.grants.iter().rfind(|grant| grant.conn == conn);
        let reached = match grant {
            None => Sometimes::DisconnectBeforeGrant,
            Some(grant) if !grant.acknowledged => Sometimes::DisconnectUnacknowledged,
            Some(grant) if !grant.sent => Sometimes::DisconnectBeforeSend,
            Some(grant) if grant.effects == 0 => Sometimes::DisconnectBeforeEffect,
            Some(grant) if grant.end == GrantEnd::Open => Sometimes::DisconnectBeforeSettle,
            Some(_) => Sometimes::DisconnectBeforeAnswer,
        };
        self.reach(reached);
    }

    pub(super) fn answered(
        &mut self,
        conn: u16,
        class: Class,
        answer: (u16, u16, u16),
        retry_after: u16,
    ) {
        let Some(open) = self.conns.get_mut(usize::from(conn)) else {
            return self.violate(I::S6, None);
        };
        open.answered = true;
        let open = *open;
        let key = open.key;
        let refused = matches!(class, Class::Unavailable | Class::Unprotected);
        self.require(open.failed == refused, I::S14, key);
        let of_flow = self.rules.flow.is_some();
        match class {
            Class::First | Class::Replay if of_flow => {
                self.flow_answer(open, (answer.0, answer.1));
            }
            Class::First | Class::Replay => self.final_answer(open, class, answer),
            Class::Gone => {
                self.reach(Sometimes::NotKept);
                let gone = self.lived(open, |generation| generation.not_kept);
                self.require(gone, I::S17, key);
                self.same_request(open);
            }
            Class::Mismatch => {
                let print = open.print;
                let other = self.lived(open, |generation| generation.print != print);
                self.require(other, I::S7, key);
                self.note_mismatch(key);
            }
            Class::InProgress => {
                self.same_request(open);
                // The lease is as long as the store's clock says, also where that was turned back.
                let left = self.rules.lease_ms + self.clock_back_ms;
                // What runs without protection has no lease that could end.
                let beside_open = self.ran_beside_open(open);
                let bound_ms = if beside_open { left.max(ASK_AGAIN_MS) } else { left };
                // A flow that is held, or goes on elsewhere, has no lease that its caller could know.
                let bound_ms = if of_flow { bound_ms.max(ASK_AGAIN_MS) } else { bound_ms };
                let bound = bound_ms.div_ceil(1_000);
                let fits = (1..=bound).contains(&u64::from(retry_after));
                self.require(fits, I::L4, key);
            }
            Class::Unknown => {
                self.same_request(open);
                self.require(retry_after > 0, I::L4, key);
            }
            Class::Unavailable | Class::Unreachable => {
                self.require(retry_after > 0, I::L4, key);
            }
            Class::Released | Class::Doubtful => self.own_answer(open, answer),
            Class::Unprotected => {}
        }
    }

    /// An answer that is passed on and not kept is of this very request, and as it was given.
    fn own_answer(&mut self, conn: Conn, (status, body, head): (u16, u16, u16)) {
        self.require(body == NONE || body & TRUNCATED == 0, I::S16, conn.key);
        let Some(exec) = self.execs.get(usize::from(body)).copied() else { return };
        let as_given = exec.replied.is_some_and(|(given, ..)| given == status) && exec.head == head;
        // A request that bounced has not run, so nothing says whose it was.
        let has_run = exec.fence != 0 || exec.unprotected.is_some();
        let mine = !has_run || exec.key == conn.key && exec.print == conn.print;
        self.require(mine && as_given, I::S6, conn.key);
    }

    fn final_answer(&mut self, conn: Conn, class: Class, answer: (u16, u16, u16)) {
        let key = conn.key;
        let (_, body, head) = answer;
        self.require(body & TRUNCATED == 0, I::S16, key);
        let Some(exec) = self.execs.get(usize::from(body & !TRUNCATED)).copied() else {
            return self.violate(I::S6, Some(key));
        };
        self.require(exec.key / NAMES == key / NAMES, I::S8, key);
        let same = exec.key == key && exec.print == conn.print;
        self.require(same && (exec.replied.is_some() || exec.effect), I::S6, key);
        // An answer that is passed on piece by piece is on its way before its end is durable; its
        // head is durable first.
        let head_kept = self
            .grant(Some(exec.key), exec.fence)
            .and_then(|at| self.grants.get(at))
            .is_some_and(|grant| grant.head_kept);
        self.require(exec.durable || head_kept, I::S4, key);
        self.require(exec.replied.is_none() || exec.head == head, I::S5, key);
        let Some(generation) = self
            .grant(Some(exec.key), exec.fence)
            .and_then(|at| self.grants.get(at))
            .map(|grant| grant.generation)
        else {
            return self.violate(I::S6, Some(key));
        };
        let Some(lived) = self.generations.get_mut(usize::from(generation)) else { return };
        let before = lived.last_final.replace(answer);
        let over = lived.ended.is_some_and(|ended| ended < conn.invoked);
        let waited = lived.completed.is_some_and(|completed| completed > conn.invoked);
        self.require(before.is_none_or(|before| before == answer), I::S5, key);
        let rule = match self.rules.profile {
            Profile::Cached => I::S26,
            Profile::Durable | Profile::SingleOwner | Profile::FailOver => I::S23,
        };
        self.require(!over, rule, key);
        if class == Class::Replay && waited {
            self.reach(Sometimes::WaiterServed);
        }
    }

    /// Whoever is told about the request's own state must have asked for that request.
    fn same_request(&mut self, conn: Conn) {
        let same = self.lived(conn, |generation| generation.print == conn.print);
        self.require(same, I::S7, conn.key);
    }

    /// Whether a generation of the key of which this is true lived while the request was under
    /// way.
    pub(super) fn lived(&self, conn: Conn, holds: impl Fn(&super::Generation) -> bool) -> bool {
        self.generations.iter().any(|generation| {
            generation.key == conn.key
                && generation.ended.is_none_or(|ended| ended > conn.invoked)
                && holds(generation)
        })
    }

    fn note_mismatch(&mut self, key: u8) {
        use retrysafe_core::record::Standing as S;
        if let Some(live) = self.live(key) {
            self.reach(match live.standing {
                S::InProgress => Sometimes::MismatchRunning,
                S::Unknown => Sometimes::MismatchUnknown,
                S::FailedRetryable => Sometimes::MismatchReleased,
                S::Completed => Sometimes::MismatchCompleted,
            });
        }
    }
}
