//! What is the same in every history?
//!
//! Scopes, keys, bodies and refusals. They are made once per thread: digests and formatted text
//! would cost more than the histories themselves.

use bytes::Bytes;
use http::StatusCode;
use retrysafe_core::fingerprint::{Fingerprint, RulesId};
use retrysafe_core::key::KeyDigest;
use retrysafe_core::problem::Refusal;
use retrysafe_core::record::{About, Answer, State};
use retrysafe_core::response::StoredResponse;
use retrysafe_core::{Id, Key, Policy, Scope};
use std::time::Duration;

use crate::history::{Class, NONE, TRUNCATED};
use crate::options::{NAMES, SCOPES};

/// How many executions one history may have, each with a body of its own. The busiest seed of a
/// million had fewer than a tenth of it.
const BODIES_MAX: usize = 2_048;

/// From here on bodies are of what the phases of a flow have made up, and not of charges.
pub const MADE_UP: u16 = BODIES_MAX as u16 / 2;

/// Bodies are the number of their execution and an end mark, by whose absence a truncated one is
/// told.
#[expect(clippy::indexing_slicing, reason = "a constant: out of bounds does not compile")]
static BODIES: [[u8; 3]; BODIES_MAX] = {
    let mut bodies = [[0; 3]; BODIES_MAX];
    let mut at = 0;
    while at < BODIES_MAX {
        bodies[at] = [(at % 256) as u8, (at / 256) as u8, b'.'];
        at += 1;
    }
    bodies
};

/// What is the same in every history.
pub struct Tables {
    scopes: Vec<Scope>,
    digests: Vec<KeyDigest>,
    ids: Vec<Id>,
    /// What an operator would see of the requests: nothing.
    pub about: About,
    /// The refusals that a gateway sends.
    pub refusals: Refusals,
}

/// The refusals that a gateway sends: status and code.
pub struct Refusals {
    pub in_progress: Said,
    pub late: Said,
    pub mismatch: Said,
    pub unknown: Said,
    pub answer_lost: Said,
    pub panicked: Said,
    pub not_durable: Said,
    pub gone: Said,
    pub unavailable: Said,
    pub unreachable: Said,
}

/// What a client can tell an answer by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Said {
    pub status: u16,
    pub code: Option<&'static str>,
}

impl Tables {
    pub fn new() -> Self {
        let scopes: Vec<_> =
            (0..SCOPES).map(|at| Scope::of([("tenant", &[b'a' + at][..])])).collect();
        let digests: Vec<_> = (0..NAMES)
            .filter_map(|at| Key::new(&format!("key-{at}")).ok())
            .map(|key| key.digest())
            .collect();
        let ids = scopes
            .iter()
            .flat_map(|scope| digests.iter().map(move |digest| Id::of(scope, digest)))
            .collect();
        Self { scopes, digests, ids, about: About::default(), refusals: Refusals::new() }
    }

    /// The scope and the digest of a key.
    pub fn name(&self, key: u8) -> Option<(&Scope, KeyDigest)> {
        let scope = self.scopes.get(usize::from(key / NAMES))?;
        Some((scope, *self.digests.get(usize::from(key % NAMES))?))
    }

    /// The record's name of a key.
    pub fn id(&self, key: u8) -> Option<Id> {
        self.ids.get(usize::from(key)).copied()
    }

    /// The key of a record.
    pub fn key(&self, id: &Id) -> Option<u8> {
        self.ids.iter().position(|known| known == id).map(|at| at as u8)
    }
}

impl Refusals {
    fn new() -> Self {
        let retry_after = Duration::ZERO;
        let said = |refusal: Refusal| {
            let problem = refusal.problem(&Policy::default());
            Said { status: problem.status.as_u16(), code: Some(problem.code) }
        };
        Self {
            in_progress: said(Refusal::InProgress { retry_after }),
            late: said(Refusal::AnswerLate { retry_after }),
            mismatch: said(Refusal::KeyReused),
            unknown: said(Refusal::OutcomeUnknown { retry_after, head: None }),
            answer_lost: said(Refusal::AnswerLost { timed_out: true, retry_after }),
            panicked: said(Refusal::Panicked { retry_after }),
            not_durable: said(Refusal::NotDurable { retry_after }),
            gone: said(Refusal::ResponseNotStored {
                original_status: None,
                original_location: None,
            }),
            unavailable: said(Refusal::StoreUnavailable { retry_after }),
            unreachable: said(Refusal::UpstreamUnreachable { retry_after }),
        }
    }
}

impl Refusals {
    /// How a client sees a refusal, and what it is to the checker. None for those that no simulated
    /// gateway gives.
    #[expect(clippy::wildcard_enum_match_arm, reason = "others may refuse for many more reasons")]
    pub fn of(&self, refusal: &Refusal) -> Option<(Class, Said)> {
        Some(match refusal {
            Refusal::InProgress { .. } => (Class::InProgress, self.in_progress),
            Refusal::AnswerLate { .. } => (Class::InProgress, self.late),
            // No caller here has a credential mark: to be told of another one is a mismatch that the
            // checker refuses.
            Refusal::KeyReused | Refusal::CredentialChanged => (Class::Mismatch, self.mismatch),
            Refusal::OutcomeUnknown { .. } => (Class::Unknown, self.unknown),
            Refusal::AnswerLost { .. } => (Class::Unknown, self.answer_lost),
            Refusal::Panicked { .. } => (Class::Unknown, self.panicked),
            Refusal::NotDurable { .. } => (Class::Unknown, self.not_durable),
            Refusal::ResponseNotStored { .. } => (Class::Gone, self.gone),
            Refusal::StoreUnavailable { .. } => (Class::Unavailable, self.unavailable),
            Refusal::UpstreamUnreachable { .. } => (Class::Unreachable, self.unreachable),
            _ => return None,
        })
    }
}

/// A request's fingerprint.
pub fn print(print: u8) -> Fingerprint {
    Fingerprint::from_parts(1, RulesId::from_bytes([0; 8]), [print; 32])
}

/// The print of a record.
pub fn print_of(fingerprint: &Fingerprint) -> u8 {
    fingerprint.digest().first().copied().unwrap_or_default()
}

/// The body with which an execution answers; without its end if it broke off.
pub fn body(exec: u16) -> Bytes {
    let whole =
        BODIES.get(usize::from(exec & !TRUNCATED)).map(|body| &body[..]).unwrap_or_default();
    let part = if exec & TRUNCATED == 0 { whole } else { whole.get(..2).unwrap_or_default() };
    Bytes::from_static(part)
}

/// Whose body it is.
pub fn exec_of(body: &[u8]) -> u16 {
    match body {
        [low, high, b'.'] => u16::from(*low) | u16::from(*high) << 8,
        [low, high] => u16::from(*low) | u16::from(*high) << 8 | TRUNCATED,
        _ => NONE,
    }
}

/// What a replay of an execution shows.
pub fn response(status: u16, exec: u16) -> StoredResponse {
    let status = StatusCode::from_u16(status).unwrap_or_default();
    StoredResponse { status, headers: Vec::new(), body: body(exec) }
}

/// Status and body of a completed record; the body is [`NONE`] if it was not kept.
pub fn answer_of(state: &State) -> Option<(u16, u16)> {
    match state {
        State::Completed { answer, .. } => Some(status_and_body(answer)),
        State::InProgress { .. } | State::FailedRetryable { .. } | State::Unknown { .. } => None,
    }
}

/// Status and body of an answer; the body is [`NONE`] if it was not kept.
pub fn status_and_body(answer: &Answer) -> (u16, u16) {
    let status = answer.status().map(|status| status.as_u16()).unwrap_or_default();
    match answer {
        Answer::Kept(response) => (status, exec_of(&response.body)),
        Answer::NotKept { .. } => (status, NONE),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bodies_tell_whose_they_are_and_whether_they_are_whole() {
        for exec in [0, 1, 255, 256, 2_047] {
            assert_eq!(exec_of(&body(exec)), exec);
            assert_eq!(exec_of(&body(exec | TRUNCATED)), exec | TRUNCATED);
        }
        assert_eq!(exec_of(b""), NONE);
    }

    #[test]
    fn every_key_has_a_record_of_its_own() {
        let tables = Tables::new();
        for key in 0..SCOPES * NAMES {
            let (scope, digest) = tables.name(key).unwrap();
            assert_eq!(tables.key(&Id::of(scope, &digest)), Some(key));
        }
        assert!(tables.name(SCOPES * NAMES).is_none());
    }
}
