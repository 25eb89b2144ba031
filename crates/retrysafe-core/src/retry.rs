//! What does a client do next? (the client's decisions)
//!
//! One key per logical call, made before the first attempt and the same on every retry; what to do
//! after an attempt is decided here, without a clock and without chance. The three ends of a call
//! are kept apart: an answer, a refusal that no retry will change, and "nobody knows", which is an
//! error of its own, because it must not be shown to people as a failure.

use std::time::Duration;

/// How patient a client is.
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
    Answer {
        /// Its status.
        status: u16,
        /// The `code` of its problem document, or of Stripe's error object, if it has one.
        code: Option<&'a str>,
        /// Its `Retry-After`, as it stands.
        retry_after: Option<&'a [u8]>,
        /// Whether it says that it is kept under this key, by `Idempotent-Replayed: true`.
        is_replay: bool,
    },
    /// The connection could not be made: nothing was sent.
    NotSent,
    /// Something was sent, and no whole answer came back.
    Lost,
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
    /// Patience is used up, and the request surely was not executed.
    GiveUp,
}

/// What one call has come to so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Call {
    attempts: u32,
    may_have_run: bool,
}

impl Call {
    /// A call that another process has begun: it may have been sent before.
    pub fn resumed() -> Self {
        Self { attempts: 0, may_have_run: true }
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
            // Kept is kept, a 5xx too: a retry gets the same until the server forgets the key, and
            // would then execute anew.
            Heard::Answer { is_replay: true, .. } => return Next::Done,
            Heard::Answer { status, code, retry_after, is_replay: false } => {
                match meaning(status, code, retry_after.is_some()) {
                    Meaning::Final => return Next::Done,
                    // It answers this attempt, and an earlier one may have run.
                    Meaning::Barred if self.may_have_run => return Next::OutcomeUnknown,
                    Meaning::Barred => return Next::Done,
                    Meaning::Doubt => {
                        self.may_have_run = true;
                        retry_after
                    }
                    Meaning::Busy => retry_after,
                }
            }
            Heard::NotSent => None,
            Heard::Lost => {
                self.may_have_run = true;
                None
            }
        };
        let end = if self.may_have_run { Next::OutcomeUnknown } else { Next::GiveUp };
        let left = patience.deadline.saturating_sub(spent);
        if self.attempts >= patience.attempts_max || left.is_zero() {
            return end;
        }
        let pause = self.pause(patience, chance);
        let pause =
            asked.and_then(|value| retry_after(value, unix_now)).unwrap_or_default().max(pause);
        // A server that asks for more time than there is has answered the call.
        if pause > left { end } else { Next::Retry(pause) }
    }

    /// How many attempts have been made.
    pub fn attempts(&self) -> u32 {
        self.attempts
    }

    /// Whether any attempt so far may have been executed.
    pub fn may_have_run(&self) -> bool {
        self.may_have_run
    }

    /// Full jitter: anything from nothing to the ceiling, so that callers who failed together do
    /// not come back together.
    fn pause(&self, patience: &Patience, chance: f64) -> Duration {
        let doublings = self.attempts.saturating_sub(1).min(31);
        let ceiling = patience.pause.saturating_mul(1 << doublings).min(patience.pause_max);
        ceiling.mul_f64(if chance.is_finite() { chance.clamp(0.0, 1.0) } else { 1.0 })
    }
}

enum Meaning {
    /// No retry will change it.
    Final,
    /// No retry will change it, but it was said at the door: it does not tell what became of an
    /// earlier attempt.
    Barred,
    /// Try again; it may have been executed.
    Doubt,
    /// Try again; it says nothing about execution. Not even "this key is new" would: an earlier
    /// attempt may still be on its way.
    Busy,
}

fn meaning(status: u16, code: Option<&str>, names_a_time: bool) -> Meaning {
    match (status, code) {
        (_, Some("outcome_unknown")) => Meaning::Doubt,
        (_, Some("store_unavailable" | "upstream_unreachable")) => Meaning::Busy,
        (409 | 202, Some("request_in_progress" | "idempotency_key_in_use")) => Meaning::Doubt,
        // The draft's 409 means "still running" and has no code of its own. An application's
        // conflict does not say when to come back.
        (409, _) if names_a_time => Meaning::Doubt,
        (408 | 425 | 429, _) => Meaning::Busy,
        (401 | 403 | 404 | 407 | 412 | 421, _) => Meaning::Barred,
        // 501 and 505 speak of the request's form: the next one would look the same.
        (501 | 505, _) => Meaning::Final,
        // A 5xx without a word about it may come from anywhere between here and the handler.
        (500..=599, _) => Meaning::Doubt,
        _ => Meaning::Final,
    }
}

/// Reads `Retry-After`: seconds, or an HTTP date. Anything else says nothing.
pub fn retry_after(value: &[u8], unix_now: u64) -> Option<Duration> {
    let text = std::str::from_utf8(value).ok()?.trim();
    if !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit()) {
        // More digits than a number holds still means "very long".
        return Some(Duration::from_secs(text.parse().unwrap_or(u64::MAX)));
    }
    http_date(text).map(|at| Duration::from_secs(at.saturating_sub(unix_now)))
}

const MONTHS: [&str; 12] =
    ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];

/// Reads an IMF-fixdate, `Sun, 06 Nov 1994 08:49:37 GMT`, as seconds since the Unix epoch.
pub fn http_date(text: &str) -> Option<u64> {
    let (_, rest) = text.split_once(", ")?;
    let mut words = rest.split(' ');
    let number =
        |word: Option<&str>, max: u64| word?.parse::<u64>().ok().filter(|number| *number <= max);
    let day = number(words.next(), 31)?;
    let name = words.next()?;
    let month = MONTHS.iter().position(|month| *month == name)? as u64;
    let year = number(words.next(), 9_999).filter(|year| *year >= 1970)?;
    let mut clock = words.next()?.split(':');
    let hour = number(clock.next(), 23)?;
    let minute = number(clock.next(), 59)?;
    let second = number(clock.next(), 60)?;
    if words.next() != Some("GMT") || words.next().is_some() || clock.next().is_some() || day == 0 {
        return None;
    }
    Some(((days(year, month, day) * 24 + hour) * 60 + minute) * 60 + second)
}

/// Writes seconds since the Unix epoch as an IMF-fixdate.
pub fn show_http_date(unix: u64) -> String {
    const WEEKDAYS: [&str; 7] = ["Thu", "Fri", "Sat", "Sun", "Mon", "Tue", "Wed"];
    // The year 9999 ends here; the format has no room for a later one.
    let unix = unix.min(253_402_300_799);
    let day_count = unix / 86_400;
    let weekday = WEEKDAYS.get((day_count % 7) as usize).copied().unwrap_or_default();
    let mut year = 1970 + day_count / 366;
    while days(year + 1, 0, 1) <= day_count {
        year += 1;
    }
    let month = (0..12).rev().find(|month| days(year, *month, 1) <= day_count).unwrap_or_default();
    let day = day_count - days(year, month, 1) + 1;
    let name = MONTHS.get(month as usize).copied().unwrap_or_default();
    let (hour, minute, second) = (unix / 3_600 % 24, unix / 60 % 60, unix % 60);
    format!("{weekday}, {day:02} {name} {year:04} {hour:02}:{minute:02}:{second:02} GMT")
}

/// Days from the Unix epoch to a day of a year from 1970 on; months count from zero.
fn days(year: u64, month: u64, day: u64) -> u64 {
    const BEFORE: [u64; 12] = [0, 31, 59, 90, 120, 151, 181, 212, 243, 273, 304, 334];
    let leaps = |year: u64| year / 4 - year / 100 + year / 400;
    let is_leap = year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400));
    let before = BEFORE.get(month as usize).copied().unwrap_or_default();
    (year - 1970) * 365
        + (leaps(year - 1) - leaps(1969))
        + before
        + u64::from(is_leap && month > 1)
        + day
        - 1
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(status: u16, code: Option<&'static str>) -> Heard<'static> {
        Heard::Answer { status, code, retry_after: None, is_replay: false }
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
            let kept = Heard::Answer { status, code, retry_after: Some(b"1"), is_replay: true };
            assert_eq!(next(kept), Next::Done, "{status}");
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

    #[test]
    fn an_answer_at_the_door_does_not_settle_an_earlier_attempt() {
        for status in [401, 403, 404, 407, 412, 421] {
            let mut call = Call::default();
            call.next(&Patience::default(), Heard::Lost, Duration::ZERO, 0.0, 0);
            let end = call.next(&Patience::default(), answer(status, None), Duration::ZERO, 0.0, 0);
            assert_eq!(end, Next::OutcomeUnknown, "{status}");
        }
        let mut resumed = Call::resumed();
        let end = resumed.next(&Patience::default(), answer(401, None), Duration::ZERO, 0.0, 0);
        assert_eq!(end, Next::OutcomeUnknown);
    }

    #[test]
    fn a_conflict_is_final_unless_it_names_a_time() {
        assert_eq!(next(answer(409, Some("name_taken"))), Next::Done);
        let later =
            Heard::Answer { status: 409, code: None, retry_after: Some(b"1"), is_replay: false };
        assert_eq!(next(later), Next::Retry(Duration::from_secs(1)));
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
            let heard = Heard::Answer {
                status: 503,
                code: None,
                retry_after: Some(value),
                is_replay: false,
            };
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

    #[test]
    fn dates_are_written_as_they_are_read() {
        assert_eq!(http_date("Sun, 06 Nov 1994 08:49:37 GMT"), Some(784_111_777));
        assert_eq!(show_http_date(784_111_777), "Sun, 06 Nov 1994 08:49:37 GMT");
        assert_eq!(show_http_date(0), "Thu, 01 Jan 1970 00:00:00 GMT");
        for unix in (0..4_000_000_000).step_by(86_400 * 13 + 7_919) {
            assert_eq!(http_date(&show_http_date(unix)), Some(unix));
        }
        assert_eq!(show_http_date(951_782_400), "Tue, 29 Feb 2000 00:00:00 GMT");
        assert_eq!(show_http_date(u64::MAX), "Fri, 31 Dec 9999 23:59:59 GMT");
    }
}
