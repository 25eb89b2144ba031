//! What does a client do next? (the client's decisions)
//!
//! One key per logical call, made before the first attempt and the same on every retry; what to do
//! after an attempt is decided here, without a clock and without chance. The three ends of a call
//! are kept apart: an answer, a refusal that no retry will change, and "nobody knows", which is an
//! error of its own, because it must not be shown to people as a failure.
//!
//! An attempt that was lost may have been executed, and may still be. What is heard after it is
//! about the call only if it comes from whoever knows the key: a success, or an answer that is
//! marked as kept. A refusal may come from anybody on the way.

mod date;

use std::time::Duration;

pub use date::{http_date, retry_after, show_http_date};

/// How patient a client is.
///
/// ```
/// use std::time::Duration;
/// use retrysafe_core::retry::Patience;
///
/// let patience = Patience { deadline: Duration::from_secs(30), ..Patience::default() };
/// # let _ = patience;
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Patience {
    /// How many attempts at the most, the first included.
    pub attempts_max: u32,
    /// The ceiling of the first pause. Each further ceiling is twice as high.
    pub pause: Duration,
    /// The highest ceiling.
    pub pause_max: Duration,
    /// How long the whole call may take.
    pub deadline: Duration,
}

impl Default for Patience {
    fn default() -> Self {
        Self {
            attempts_max: 8,
            pause: Duration::from_millis(500),
            pause_max: Duration::from_secs(20),
            deadline: Duration::from_secs(120),
        }
    }
}

/// What an attempt came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Heard<'a> {
    /// An answer.
    Answer(AnswerHead<'a>),
    /// The connection could not be made: nothing was sent.
    NotSent,
    /// Something was sent, and no whole answer came back.
    Lost,
}

/// What an answer says about its call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AnswerHead<'a> {
    /// Its status.
    pub status: u16,
    /// The `code` of its problem document, or of Stripe's error object, if it has one.
    pub code: Option<&'a str>,
    /// Its `Retry-After`, as it stands.
    pub retry_after: Option<&'a [u8]>,
    /// Whether it says that it is kept under this key, by `Idempotent-Replayed: true` or whatever
    /// header the server marks its replays with.
    pub is_replay: bool,
    /// Whether it says that it leaves the outcome unknown, by `Retrysafe-Outcome: unknown`.
    pub leaves_unknown: bool,
    /// What it says about another attempt, by `Stripe-Should-Retry`.
    pub should_retry: Option<bool>,
}

impl AnswerHead<'_> {
    /// An answer of which only the status is known.
    pub const fn new(status: u16) -> Self {
        Self {
            status,
            code: None,
            retry_after: None,
            is_replay: false,
            leaves_unknown: false,
            should_retry: None,
        }
    }
}

/// What to do next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// The answer is final: give it to the caller.
    Done,
    /// Try again with the same key, after this pause.
    Retry(Duration),
    /// Patience is used up, and the request may have been executed.
    OutcomeUnknown,
    /// Patience is used up, and nothing says that the request was executed: it was never sent, or
    /// every answer said that its own attempt was refused. [`Call::was_sent`] tells which.
    GiveUp,
}

/// What one call has come to so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Call {
    attempts: u32,
    was_sent: bool,
    may_have_run: bool,
}

impl Call {
    /// A call that another process has begun: it may have been sent before.
    pub fn resumed() -> Self {
        Self { attempts: 0, was_sent: true, may_have_run: true }
    }

    /// Decides what to do after an attempt.
    ///
    /// `spent` is the time since the call began, `chance` a number from 0 to 1 for the jitter, and
    /// `unix_now` the wall clock in seconds, for a `Retry-After` that is a date.
    pub fn next(
        &mut self,
        patience: &Patience,
        heard: Heard<'_>,
        spent: Duration,
        chance: f64,
        unix_now: u64,
    ) -> Next {
        self.attempts = self.attempts.saturating_add(1);
        let asked = match heard {
            Heard::NotSent => None,
            Heard::Lost => {
                (self.was_sent, self.may_have_run) = (true, true);
                None
            }
            Heard::Answer(head) => {
                self.was_sent = true;
                if let Some(end) = self.ended_by(&head) {
                    return end;
                }
                head.retry_after
            }
        };
        let left = patience.deadline.saturating_sub(spent);
        if self.attempts >= patience.attempts_max || left.is_zero() {
            return self.end();
        }
        let pause = self.pause(patience, chance);
        let pause =
            asked.and_then(|value| retry_after(value, unix_now)).unwrap_or_default().max(pause);
        // A server that asks for more time than there is has answered the call.
        if pause > left { self.end() } else { Next::Retry(pause) }
    }

    /// The end to which an answer brings the call, if it does.
    fn ended_by(&mut self, head: &AnswerHead<'_>) -> Option<Next> {
        // Kept is kept, a 5xx too: a retry gets the same until the server forgets the key, and
        // would then execute anew.
        if head.is_replay {
            return Some(Next::Done);
        }
        let meaning = match (meaning(head), head.should_retry) {
            (Meaning::Refused | Meaning::Barred, Some(true)) => Meaning::Busy,
            (Meaning::Refused | Meaning::Busy, Some(false)) => Meaning::Barred,
            (meaning, _) => meaning,
        };
        self.may_have_run |= meaning == Meaning::Doubt;
        match meaning {
            Meaning::Final => Some(Next::Done),
            Meaning::Refused | Meaning::Barred if !self.may_have_run => Some(Next::Done),
            // It answers this attempt, and an earlier one may have run.
            Meaning::Barred => Some(Next::OutcomeUnknown),
            Meaning::Doubt if head.should_retry == Some(false) => Some(Next::OutcomeUnknown),
            Meaning::Refused | Meaning::Doubt | Meaning::Busy => None,
        }
    }

    /// The end of the call if it is not tried again.
    pub fn end(&self) -> Next {
        if self.may_have_run { Next::OutcomeUnknown } else { Next::GiveUp }
    }

    /// How many attempts have been made.
    pub fn attempts(&self) -> u32 {
        self.attempts
    }

    /// Whether any attempt so far may have been executed.
    pub fn may_have_run(&self) -> bool {
        self.may_have_run
    }

    /// Whether any attempt was sent. If none was, the request surely was not executed. Else that is
    /// what the answers say, and each speaks for what has reached it: a proxy that sent the request
    /// twice may have passed on the refusal of the second.
    pub fn was_sent(&self) -> bool {
        self.was_sent
    }

    /// Full jitter: anything from nothing to the ceiling, so that callers who failed together do
    /// not come back together.
    fn pause(&self, patience: &Patience, chance: f64) -> Duration {
        let doublings = self.attempts.saturating_sub(1).min(31);
        let ceiling = patience.pause.saturating_mul(1 << doublings).min(patience.pause_max);
        let share = if chance.is_finite() { chance.clamp(0.0, 1.0) } else { 1.0 };
        // The longest ceiling is a little longer as a fraction than as a length.
        Duration::try_from_secs_f64(ceiling.as_secs_f64() * share).unwrap_or(ceiling)
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Meaning {
    /// It is the call's own answer, whatever became of earlier attempts.
    Final,
    /// No retry will change it. It is the call's own answer unless an earlier attempt is in doubt:
    /// then it may have been said by anybody on the way, such as a proxy or another version of the
    /// application. Asking again tells: what the key's own answer is, the server marks as kept.
    Refused,
    /// The same, but asking again would only be refused again.
    Barred,
    /// Try again; it may have been executed.
    Doubt,
    /// Try again; it says nothing about execution. Not even "this key is new" would: an earlier
    /// attempt may still be on its way.
    Busy,
}

fn meaning(head: &AnswerHead<'_>) -> Meaning {
    let names_a_time = head.retry_after.is_some();
    match (head.status, head.code) {
        _ if head.leaves_unknown => Meaning::Doubt,
        (200 | 201 | 203..=299, _) => Meaning::Final,
        (_, Some("outcome_unknown" | "request_in_progress" | "idempotency_key_in_use")) => {
            Meaning::Doubt
        }
        (202, _) => Meaning::Final,
        (
            503,
            Some("store_unavailable" | "overloaded" | "keys_unavailable" | "upstream_unhealthy"),
        )
        | (502, Some("upstream_unreachable")) => Meaning::Busy,
        // It was executed, says the only one who knows.
        (410, Some("response_not_stored")) => Meaning::Final,
        // What a server says about the key itself it says again. Not even "the key belongs to
        // another request" is a verdict: the rules of comparing may have changed in between.
        (
            _,
            Some(
                "idempotency_key_reused"
                | "idempotency_error"
                | "idempotency_key_missing"
                | "idempotency_key_invalid"
                | "scope_unsafe"
                | "credential_changed",
            ),
        ) => Meaning::Barred,
        // The draft's 409 means "still running" and has no code of its own. An application's
        // conflict does not say when to come back.
        (409, _) if names_a_time => Meaning::Doubt,
        (425 | 429 | 511, _) => Meaning::Busy,
        // Servers say it of a request that they did not read whole, and of a handler that took too
        // long.
        (408, _) => Meaning::Doubt,
        // What is said at the door, of the credential, the address or the request's form, by
        // whatever stands there. The next attempt would look the same.
        (401 | 403..=405 | 407 | 411..=415 | 417 | 421 | 426 | 431 | 451 | 501 | 505, _) => {
            Meaning::Barred
        }
        // A 5xx without a word about it may come from anywhere between here and the handler.
        (500..=599, _) => Meaning::Doubt,
        _ => Meaning::Refused,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(status: u16, code: Option<&'static str>) -> Heard<'static> {
        Heard::Answer(AnswerHead { code, ..AnswerHead::new(status) })
    }

    fn next(heard: Heard<'_>) -> Next {
        Call::default().next(&Patience::default(), heard, Duration::ZERO, 1.0, 0)
    }

    #[test]
    fn what_will_not_change_is_final() {
        for status in [200, 201, 204, 303, 400, 401, 403, 404, 409, 410, 412, 413, 422, 501] {
            assert_eq!(next(answer(status, None)), Next::Done, "{status}");
        }
        assert_eq!(next(answer(422, Some("idempotency_key_reused"))), Next::Done);
        assert_eq!(next(answer(400, Some("idempotency_key_invalid"))), Next::Done);
    }

    #[test]
    fn what_is_kept_is_final_whatever_it_says() {
        for (status, code) in
            [(201, None), (500, None), (503, Some("store_unavailable")), (429, None)]
        {
            let head = AnswerHead { code, retry_after: Some(b"1"), ..AnswerHead::new(status) };
            let kept = Heard::Answer(AnswerHead { is_replay: true, ..head });
            assert_eq!(next(kept), Next::Done, "{status}");
            assert_eq!(after_a_loss(kept), Next::Done, "{status}");
        }
    }

    #[test]
    fn what_may_change_is_tried_again() {
        for (status, code) in [
            (409, Some("request_in_progress")),
            (409, Some("idempotency_key_in_use")),
            (202, Some("request_in_progress")),
            (409, Some("outcome_unknown")),
            (429, None),
            (500, None),
            (502, Some("outcome_unknown")),
            (503, Some("store_unavailable")),
            (408, None),
        ] {
            assert!(matches!(next(answer(status, code)), Next::Retry(_)), "{status} {code:?}");
        }
        assert!(matches!(next(Heard::Lost), Next::Retry(_)));
        assert!(matches!(next(Heard::NotSent), Next::Retry(_)));
    }

    #[test]
    fn used_up_patience_tells_doubt_from_failure() {
        let patience = Patience { attempts_max: 2, ..Patience::default() };
        let end = |first: Heard<'_>, second: Heard<'_>| {
            let mut call = Call::default();
            call.next(&patience, first, Duration::ZERO, 0.0, 0);
            call.next(&patience, second, Duration::ZERO, 0.0, 0)
        };
        assert_eq!(end(Heard::NotSent, Heard::NotSent), Next::GiveUp);
        assert_eq!(end(Heard::Lost, Heard::NotSent), Next::OutcomeUnknown);
        assert_eq!(end(Heard::Lost, answer(503, Some("store_unavailable"))), Next::OutcomeUnknown);
        assert_eq!(end(Heard::NotSent, answer(429, Some("key_rate_exceeded"))), Next::GiveUp);
        assert_eq!(end(Heard::Lost, answer(201, None)), Next::Done);
        // A new key may be the lost attempt's own, overtaken on its way.
        assert_eq!(end(Heard::Lost, answer(429, Some("key_rate_exceeded"))), Next::OutcomeUnknown);
    }

    /// What is decided when this is heard and an earlier attempt was lost.
    fn after_a_loss(heard: Heard<'_>) -> Next {
        let mut call = Call::default();
        call.next(&Patience::default(), Heard::Lost, Duration::ZERO, 0.0, 0);
        let next = call.next(&Patience::default(), heard, Duration::ZERO, 0.0, 0);
        assert!(call.may_have_run() && call.was_sent());
        let resumed = Call::resumed().next(&Patience::default(), heard, Duration::ZERO, 0.0, 0);
        assert_eq!(resumed, next, "a call of another process may have been sent too");
        next
    }

    #[test]
    fn no_refusal_settles_an_earlier_attempt() {
        for status in 300..=599 {
            for retry_after in [None, Some(&b"0"[..])] {
                let heard = Heard::Answer(AnswerHead { retry_after, ..AnswerHead::new(status) });
                assert_ne!(after_a_loss(heard), Next::Done, "{status}");
            }
        }
        for status in (200..=299).filter(|status| *status != 202) {
            assert_eq!(after_a_loss(answer(status, Some("outcome_unknown"))), Next::Done);
        }
        assert_eq!(after_a_loss(answer(410, Some("response_not_stored"))), Next::Done);
        assert_eq!(after_a_loss(answer(202, None)), Next::Done);
    }

    #[test]
    fn what_a_door_says_is_not_asked_again() {
        for status in [401, 403, 404, 405, 407, 411, 412, 413, 414, 415, 417, 421, 426, 431, 451] {
            assert_eq!(after_a_loss(answer(status, None)), Next::OutcomeUnknown, "{status}");
        }
        for status in [501, 505] {
            assert_eq!(after_a_loss(answer(status, None)), Next::OutcomeUnknown, "{status}");
        }
        for (status, code) in [
            (422, "idempotency_key_reused"),
            (400, "idempotency_error"),
            (400, "idempotency_key_missing"),
            (400, "idempotency_key_invalid"),
            (400, "scope_unsafe"),
            (409, "credential_changed"),
        ] {
            assert_eq!(next(answer(status, Some(code))), Next::Done, "{code}");
            assert_eq!(after_a_loss(answer(status, Some(code))), Next::OutcomeUnknown, "{code}");
        }
    }

    #[test]
    fn what_an_application_may_have_said_is_asked_again() {
        for status in [301, 302, 303, 307, 308, 400, 402, 409, 410, 422, 423] {
            assert_eq!(next(answer(status, None)), Next::Done, "{status}");
            assert_eq!(after_a_loss(answer(status, None)), Next::Retry(Duration::ZERO), "{status}");
        }
        let taken = answer(409, Some("name_taken"));
        assert_eq!(after_a_loss(taken), Next::Retry(Duration::ZERO), "by its own lost attempt");
    }

    #[test]
    fn a_conflict_is_final_unless_it_names_a_time() {
        assert_eq!(next(answer(409, Some("name_taken"))), Next::Done);
        let later = Heard::Answer(AnswerHead { retry_after: Some(b"1"), ..AnswerHead::new(409) });
        assert_eq!(next(later), Next::Retry(Duration::from_secs(1)));
    }

    #[test]
    fn an_answer_that_leaves_the_outcome_unknown_is_in_doubt_whatever_its_status() {
        let once = Patience { attempts_max: 1, ..Patience::default() };
        for status in [200, 302, 400, 429, 500] {
            let said = AnswerHead { leaves_unknown: true, ..AnswerHead::new(status) };
            assert!(matches!(next(Heard::Answer(said)), Next::Retry(_)), "{status}");
            let mut call = Call::default();
            let end = call.next(&once, Heard::Answer(said), Duration::ZERO, 0.0, 0);
            assert_eq!(end, Next::OutcomeUnknown, "{status}");
            let kept = AnswerHead { is_replay: true, ..said };
            assert_eq!(next(Heard::Answer(kept)), Next::Done, "{status}: kept is kept");
        }
    }

    #[test]
    fn a_server_that_says_whether_to_retry_is_heeded() {
        let says = |status, should_retry| {
            Heard::Answer(AnswerHead {
                should_retry: Some(should_retry),
                ..AnswerHead::new(status)
            })
        };
        for status in [400, 402, 404, 409, 429] {
            assert!(matches!(next(says(status, true)), Next::Retry(_)), "{status}");
            assert!(matches!(after_a_loss(says(status, true)), Next::Retry(_)), "{status}");
            assert_eq!(next(says(status, false)), Next::Done, "{status}");
            assert_eq!(after_a_loss(says(status, false)), Next::OutcomeUnknown, "{status}");
        }
        assert!(matches!(next(says(500, true)), Next::Retry(_)));
        assert_eq!(next(says(500, false)), Next::OutcomeUnknown);
        assert_eq!(next(says(201, true)), Next::Done, "a success is one");
    }

    #[test]
    fn a_call_knows_whether_it_was_ever_sent() {
        let mut call = Call::default();
        call.next(&Patience::default(), Heard::NotSent, Duration::ZERO, 0.0, 0);
        assert!(!call.was_sent() && !call.may_have_run());
        call.next(&Patience::default(), answer(429, None), Duration::ZERO, 0.0, 0);
        assert!(call.was_sent() && !call.may_have_run());
        assert_eq!(call.end(), Next::GiveUp);
        call.next(&Patience::default(), answer(408, None), Duration::ZERO, 0.0, 0);
        assert!(call.may_have_run(), "its handler may have been cut short");
        assert_eq!(call.end(), Next::OutcomeUnknown);
    }

    // A pause without end, times the greatest chance, was longer than a length of time can be.
    #[test]
    fn the_longest_lengths_of_time_do_not_overflow() {
        let patience = Patience {
            attempts_max: u32::MAX,
            pause: Duration::MAX,
            pause_max: Duration::MAX,
            deadline: Duration::MAX,
        };
        for chance in [0.0, 0.5, 1.0, f64::NAN, f64::INFINITY] {
            let next = Call::default().next(&patience, Heard::Lost, Duration::ZERO, chance, 0);
            assert!(matches!(next, Next::Retry(_)), "{chance} {next:?}");
        }
    }

    #[test]
    fn pauses_double_up_to_the_cap_with_full_jitter() {
        let patience = Patience {
            attempts_max: 99,
            deadline: Duration::from_secs(9_999),
            ..Patience::default()
        };
        let mut call = Call::default();
        let mut pauses =
            (0..8).map(|_| match call.next(&patience, Heard::Lost, Duration::ZERO, 1.0, 0) {
                Next::Retry(pause) => pause.as_millis(),
                other => panic!("{other:?}"),
            });
        assert!(pauses.by_ref().take(6).eq([500, 1_000, 2_000, 4_000, 8_000, 16_000]));
        assert!(pauses.eq([20_000, 20_000]));
        let mut call = Call::default();
        assert_eq!(
            call.next(&patience, Heard::Lost, Duration::ZERO, 0.0, 0),
            Next::Retry(Duration::ZERO)
        );
    }

    #[test]
    fn retry_after_is_honoured_and_bounded_by_the_deadline() {
        let asked = |value: &'static [u8], now| {
            let heard =
                Heard::Answer(AnswerHead { retry_after: Some(value), ..AnswerHead::new(503) });
            Call::default().next(&Patience::default(), heard, Duration::from_secs(60), 0.0, now)
        };
        assert_eq!(asked(b"7", 0), Next::Retry(Duration::from_secs(7)));
        assert_eq!(
            asked(b"Sun, 06 Nov 1994 08:49:37 GMT", 784_111_770),
            Next::Retry(Duration::from_secs(7))
        );
        assert_eq!(
            asked(b"Sun, 06 Nov 1994 08:49:37 GMT", 999_999_999),
            Next::Retry(Duration::ZERO)
        );
        for garbage in [&b"soon"[..], b"", b"-3", b"1.5", b"\xff", b"Sun, 99 Nov 1994 08:49:37 GMT"]
        {
            assert_eq!(asked(garbage.to_vec().leak(), 0), Next::Retry(Duration::ZERO));
        }
        assert_eq!(asked(b"61", 0), Next::OutcomeUnknown);
        assert_eq!(asked(b"99999999999999999999999999", 0), Next::OutcomeUnknown);
    }
}
