//! What does a client do?
//!
//! One key per call, attempts at whichever gateway it meets, and the core's own rules of retrying
//! between them. It hears an answer, a broken connection, or nothing until its patience with the
//! attempt ends.

use std::future::poll_fn;
use std::task::Poll;
use std::time::Duration;

use retrysafe_core::retry::{self, AnswerHead, Heard, Next, Patience};

use super::conn::{Conn, Reply};
use super::{Event, Sim, World};
use crate::fault::Fault;
use crate::history::{CallEnd, Class, What};
use crate::options::{Kind, NAMES, NAMES_USED};

/// A call that a client makes.
#[derive(Clone, Copy)]
pub struct Call {
    pub key: u8,
    pub print: u8,
    pub patience: Patience,
    /// How long it waits for one answer.
    pub attempt_ms: u64,
    /// Whether it has heard how the request ended. A kept 5xx is such an answer, though the rules
    /// of retrying take it for one that may pass.
    pub answered: bool,
    pub ended: bool,
}

/// What came back from one attempt.
enum Came {
    Answer(Reply),
    Nothing,
}

/// One call, from its first attempt to its end.
pub async fn call(sim: Sim, number: u16) {
    let Some((call, began)) = sim.with(|world| {
        let call = *world.calls.get(usize::from(number))?;
        world.record(What::Called { call: number, key: call.key, print: call.print });
        Some((call, world.now))
    }) else {
        return;
    };
    let fault = sim.with(|world| world.options.fault);
    let mut state = retry::Call::default();
    let mut key = call.key;
    loop {
        let conn = sim.with(|world| world.connect(number, key, call.print, call.attempt_ms));
        let came = match conn {
            None => None,
            Some((conn, until)) => {
                let came = poll_fn(|_| sim.with(|world| world.came(conn, until))).await;
                sim.with(|world| world.note_hearing(number, conn, &came));
                Some(came)
            }
        };
        let mut digits = [0; 5];
        let heard = match &came {
            None => Heard::NotSent,
            Some(Came::Nothing) => Heard::Lost,
            Some(Came::Answer(reply)) => Heard::Answer(AnswerHead {
                code: reply.code,
                retry_after: (reply.retry_after > 0)
                    .then(|| decimal(reply.retry_after, &mut digits)),
                is_replay: reply.class == Class::Replay,
                ..AnswerHead::new(reply.status)
            }),
        };
        let (now, chance) = sim.with(|world| (world.now, world.chance.unit()));
        let spent = Duration::from_millis(now - began);
        let mut next = state.next(&call.patience, heard, spent, chance, now / 1_000);
        next = tampered(fault, next, &came, &state, &call.patience);
        let end = match next {
            Next::Retry(pause) => {
                sim.sleep(pause.as_millis() as u64).await;
                if fault == Some(Fault::NewKeyOnRetry) {
                    key = fresh_key(key);
                }
                continue;
            }
            Next::Done => CallEnd::Done,
            Next::OutcomeUnknown => CallEnd::OutcomeUnknown,
            Next::GiveUp => CallEnd::GaveUp,
        };
        sim.with(|world| {
            world.record(What::CallEnded { call: number, end });
            if let Some(call) = world.calls.get_mut(usize::from(number)) {
                call.ended = true;
            }
        });
        return;
    }
}

/// What a faulty client would do instead.
fn tampered(
    fault: Option<Fault>,
    next: Next,
    came: &Option<Came>,
    state: &retry::Call,
    patience: &Patience,
) -> Next {
    match (fault, next, came) {
        (Some(Fault::GivesUpInDoubt), Next::OutcomeUnknown, _) => Next::GiveUp,
        (Some(Fault::RetriesMismatch), Next::Done, Some(Came::Answer(reply)))
            if reply.class == Class::Mismatch && state.attempts() < patience.attempts_max =>
        {
            Next::Retry(Duration::from_millis(50))
        }
        (_, next, _) => next,
    }
}

/// A key that nobody has used for this request.
fn fresh_key(key: u8) -> u8 {
    let (scope, name) = (key / NAMES, key % NAMES);
    scope * NAMES + NAMES_USED + (name + 1) % NAMES_USED
}

fn decimal(number: u16, digits: &mut [u8; 5]) -> &[u8] {
    let mut rest = number;
    let mut start = digits.len();
    for (at, digit) in digits.iter_mut().enumerate().rev() {
        *digit = b'0' + (rest % 10) as u8;
        rest /= 10;
        start = at;
        if rest == 0 {
            break;
        }
    }
    digits.get(start..).unwrap_or_default()
}

impl World {
    /// Opens a connection for one attempt; none if the gateway it meets is down.
    fn connect(&mut self, call: u16, key: u8, print: u8, attempt_ms: u64) -> Option<(u16, u64)> {
        let gateway = self.chance.below(self.gateways.len() as u64) as u8;
        if !self.gateways.get(usize::from(gateway)).is_some_and(|process| process.up) {
            self.record(What::NotConnected { call });
            return None;
        }
        let conn = self.conns.len() as u16;
        self.record(What::Invoked { call, conn, key, print, gateway });
        self.conns.push(Conn::new(key, print, gateway, self.current));
        let way = self.chance.between(1, 10);
        if !self.strike(Kind::AnswerLost, 3) {
            self.after(way, Event::ConnArrives(conn));
        }
        if self.strike(Kind::Disconnect, 15) {
            let ms = self.chance.scaled(1, self.options.lease_ms);
            self.after(ms, Event::ConnBreaks(conn));
        }
        Some((conn, self.wake_in(attempt_ms)))
    }

    fn came(&mut self, conn: u16, until: u64) -> Poll<Came> {
        let Some(open) = self.conns.get_mut(usize::from(conn)) else {
            return Poll::Ready(Came::Nothing);
        };
        match open.arrived.take() {
            Some(reply) => Poll::Ready(Came::Answer(reply)),
            None if open.broken => Poll::Ready(Came::Nothing),
            None if self.now >= until => {
                self.conn_breaks(conn);
                Poll::Ready(Came::Nothing)
            }
            None => Poll::Pending,
        }
    }

    fn note_hearing(&mut self, call: u16, conn: u16, came: &Came) {
        let Came::Answer(Reply { class, status, body, .. }) = *came else {
            return self.record(What::NotHeard { call, conn });
        };
        self.record(What::Heard { call, conn, class, status, body });
        if let Some(call) = self.calls.get_mut(usize::from(call)) {
            call.answered |= matches!(class, Class::First | Class::Replay);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seconds_are_written_as_a_header_has_them() {
        for number in [0, 7, 10, 65_535] {
            assert_eq!(decimal(number, &mut [0; 5]), number.to_string().as_bytes());
        }
    }
}
