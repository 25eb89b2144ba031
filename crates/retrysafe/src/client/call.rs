//! What happens between the first byte and the final answer? (the loop)
//!
//! The key is fixed, and the journal written, before the first attempt; after each attempt
//! [`retrysafe_core::retry`] decides. Dropping the future ends the attempt under way: the call then
//! is what it would be after a crash, and with a journal it can be resumed.

use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use bytes::{Buf as _, Bytes, BytesMut};
use http::header::RETRY_AFTER;
use http::{HeaderMap, HeaderName, HeaderValue, Request, Response, StatusCode};
use http_body::Body;
use http_body_util::BodyExt as _;
use retrysafe_core::Key;
use retrysafe_core::key::{KeyError, KeySyntax};
use retrysafe_core::retry::{AnswerHead, Call, Heard, Next, Patience};
use retrysafe_core::wire::OUTCOME;
use tokio::time::Instant;

use super::Receipt;
use super::age::FirstSent;
use super::answer::{Answer, PROBLEM_BYTES_MAX, problem_code};
use super::error::{BoxError, Ended, Error, Last, Refused};
use super::journal::{Claim, Pending};
use super::loss::Loss;
use super::settings::{Notice, Retries};
use super::transport::Transport;

/// By which Stripe says whether another attempt makes sense.
const SHOULD_RETRY: HeaderName = HeaderName::from_static("stripe-should-retry");

/// A call that is ready to be sent.
pub(super) struct Ready {
    request: Request<Bytes>,
    key: Option<Key>,
    claim: Option<Arc<Claim>>,
    first_sent: FirstSent,
    call: Call,
}

impl Ready {
    /// Names a new call and writes it to the journal.
    pub(super) async fn begin<B>(request: Request<B>, retries: &Retries) -> Result<Self, Error>
    where
        B: Body<Error: Into<BoxError>>,
    {
        let (parts, body) = request.into_parts();
        let body = whole(body, retries.body_bytes_max).await.map_err(Error::Refused)?;
        let mut request = Request::from_parts(parts, body);
        if request.method().is_safe() {
            // Nothing to protect: it is retried without a key, and a key of the caller's own is
            // passed on as it stands.
            let first_sent = FirstSent::now();
            let call = Call::default();
            return Ok(Self { request, key: None, claim: None, first_sent, call });
        }
        let key = named(request.headers_mut(), retries).map_err(Error::Refused)?;
        let first_sent = FirstSent::now();
        let claim = match &retries.journal {
            // Nothing is sent unless the call is on disk.
            Some(journal) => {
                let claim = journal.write(&request, &key, &first_sent).await;
                Some(Arc::new(claim.map_err(|error| Error::Refused(Refused::Journal(error)))?))
            }
            None => None,
        };
        Ok(Self { request, key: Some(key), claim, first_sent, call: Call::default() })
    }

    /// Takes up a call from the journal, with the headers that were not journalled.
    pub(super) fn resume(
        pending: Pending,
        supplied: HeaderMap,
        retries: &Retries,
    ) -> Result<Self, Error> {
        let Pending { claim, entry } = pending;
        let mut request = entry.request;
        for name in supplied.keys() {
            request.headers_mut().remove(name);
        }
        request.headers_mut().extend(supplied);
        if let Some(name) =
            entry.withheld.into_iter().find(|name| !request.headers().contains_key(name))
        {
            return Err(Error::Refused(Refused::HeaderMissing(name)));
        }
        let claim = Some(Arc::new(claim));
        let last = match entry.first_sent.age() {
            Some(age) if age <= retries.resend_within => {
                let key = Some(entry.key);
                let first_sent = entry.first_sent;
                return Ok(Self { request, key, claim, first_sent, call: Call::resumed() });
            }
            Some(_) => Last::KeyTooOld,
            None => Last::AgeUnknown,
        };
        let receipt = Receipt::new(Some(entry.key), 0, claim);
        Err(Error::OutcomeUnknown(Ended { receipt, last, was_sent: true }))
    }

    /// Attempts the call until it has a final answer or patience is used up.
    pub(super) async fn run<T: Transport>(
        mut self,
        mut transport: T,
        retries: &Retries,
    ) -> Result<Response<Answer<T::Body>>, Error> {
        let begun = Instant::now();
        loop {
            let attempt = self.call.attempts().saturating_add(1);
            retries.notify(&Notice::Sending { attempt, key: self.key.as_ref() });
            let left = self.time_left(begun, retries);
            let end = tokio::time::timeout(
                retries.attempt_timeout.min(left),
                send(&mut transport, self.request.clone(), self.key.is_some(), retries),
            );
            let end = end.await.unwrap_or(End::TimedOut);
            let next = self.decide(&end, begun, retries);
            match (next, end) {
                (Next::Retry(pause), end) => {
                    tokio::time::sleep(pause).await;
                    // The machine may have slept in between, for longer than the server remembers
                    // the key.
                    if self.time_left(begun, retries).is_zero() {
                        return Err(self.error(self.call.end(), end).await);
                    }
                }
                (Next::Done, End::Answer(mut answer)) => {
                    answer.extensions_mut().insert(self.receipt());
                    return Ok(*answer);
                }
                (next, end) => return Err(self.error(next, end).await),
            }
        }
    }

    /// How much longer the call may be tried: until its deadline, and while the server remembers
    /// its key.
    fn time_left(&self, begun: Instant, retries: &Retries) -> Duration {
        let left = retries.patience.deadline.saturating_sub(begun.elapsed());
        match &self.key {
            None => left,
            Some(_) => match self.first_sent.age() {
                Some(age) => left.min(retries.resend_within.saturating_sub(age)),
                None => Duration::ZERO,
            },
        }
    }

    /// Asks what to do next, and tells the observer.
    fn decide<B: Body>(&mut self, end: &End<B>, begun: Instant, retries: &Retries) -> Next {
        let attempt = self.call.attempts().saturating_add(1);
        let code = match end {
            End::Answer(answer) if may_be_a_problem(answer.status()) => problem_code(answer),
            End::Answer(_) | End::Error(..) | End::TimedOut => None,
        };
        let (heard, why) = match end {
            End::Answer(answer) => (Heard::Answer(head(answer, code.as_deref(), retries)), None),
            End::Error(Loss::NotSent | Loss::Unsendable, why) => (Heard::NotSent, Some(why)),
            End::Error(Loss::Lost, why) => (Heard::Lost, Some(why)),
            End::TimedOut => (Heard::Lost, None),
        };
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let spent = begun.elapsed();
        let deadline = spent.saturating_add(self.time_left(begun, retries));
        let patience = Patience { deadline, ..retries.patience };
        let next = self.call.next(&patience, heard, spent, retries.chance(), now.as_secs());
        let next = match (next, end) {
            // The next attempt could not be written either.
            (Next::Retry(_), End::Error(Loss::Unsendable, _)) => self.call.end(),
            // A safe request has no effect that could be in doubt.
            (Next::OutcomeUnknown, _) if self.key.is_none() => Next::GiveUp,
            (next, _) => next,
        };
        let why = why.map(|why| why.as_ref() as &(dyn std::error::Error + 'static));
        retries.notify(&Notice::Heard { attempt, heard, why, next });
        tracing::debug!(attempt, ?heard, ?next, key = ?self.key, "an attempt has ended");
        next
    }

    fn receipt(&self) -> Receipt {
        Receipt::new(self.key.clone(), self.call.attempts(), self.claim.clone())
    }

    async fn error<B: Body>(&self, next: Next, end: End<B>) -> Error {
        let last = match end {
            End::Answer(answer) => Last::Answer(Box::new(answer.map(|body| body.what_was_read()))),
            End::Error(_, error) => Last::Error(error),
            End::TimedOut => Last::TimedOut,
        };
        let ended = Ended { receipt: self.receipt(), last, was_sent: self.call.was_sent() };
        match next {
            // The caller is about to be told that the call is over, so nobody may find it in the
            // journal and make it happen. If it cannot be removed, somebody may.
            Next::GiveUp => match ended.receipt.acknowledge().await {
                Ok(()) => Error::GaveUp(ended),
                Err(_) => Error::OutcomeUnknown(ended),
            },
            // The first two do not lead here; they would be doubtful if they did.
            Next::Done | Next::Retry(_) | Next::OutcomeUnknown => Error::OutcomeUnknown(ended),
        }
    }
}

/// How an attempt ended.
enum End<B> {
    Answer(Box<Response<Answer<B>>>),
    Error(Loss, BoxError),
    TimedOut,
}

/// Sends one attempt and reads as much of its answer as is needed to judge it.
async fn send<T: Transport>(
    transport: &mut T,
    request: Request<Bytes>,
    is_keyed: bool,
    retries: &Retries,
) -> End<T::Body> {
    let answer = match transport.send(request, retries).await {
        Ok(answer) => answer,
        Err((loss, error)) => return End::Error(loss, error),
    };
    let (parts, body) = answer.into_parts();
    let bytes_max = if may_be_a_problem(parts.status) {
        // Its code decides what to do.
        retries.answer_bytes_max.max(PROBLEM_BYTES_MAX)
    } else if is_keyed {
        retries.answer_bytes_max
    } else {
        // A download or an event stream, perhaps: repeating it is the caller's cheap choice.
        0
    };
    let body = match bytes_max {
        0 => Answer::unread(body),
        bytes_max => match Answer::read(body, bytes_max).await {
            Ok(body) => body,
            Err(error) => return End::Error(Loss::Lost, error.into()),
        },
    };
    End::Answer(Box::new(Response::from_parts(parts, body)))
}

/// What an answer says about the call.
fn head<'a, B>(
    answer: &'a Response<B>,
    code: Option<&'a str>,
    retries: &Retries,
) -> AnswerHead<'a> {
    let is = |name: &HeaderName, word: &str| {
        answer.headers().get(name).is_some_and(|value| value.as_bytes() == word.as_bytes())
    };
    AnswerHead {
        status: answer.status().as_u16(),
        code,
        retry_after: answer.headers().get(RETRY_AFTER).map(HeaderValue::as_bytes),
        is_replay: is(&retries.replay_marker, "true"),
        leaves_unknown: is(&OUTCOME, "unknown"),
        should_retry: match answer.headers().get(SHOULD_RETRY).map(HeaderValue::as_bytes) {
            Some(b"true") => Some(true),
            Some(b"false") => Some(false),
            Some(_) | None => None,
        },
    }
}

/// Whether an answer may be a problem document: a refusal, or "still running" as 202. Any other
/// success is the application's, whatever its body says.
fn may_be_a_problem(status: StatusCode) -> bool {
    status == StatusCode::ACCEPTED || status.as_u16() >= 400
}

/// The call's key: the caller's own, or a new one.
fn named(headers: &mut HeaderMap, retries: &Retries) -> Result<Key, Refused> {
    let lines = headers.get_all(&retries.key_header).iter().map(HeaderValue::as_bytes);
    match Key::parse_lines(lines, KeySyntax::Lenient) {
        Ok(key) => return Ok(key),
        Err(KeyError::Missing) => {}
        Err(error) => return Err(Refused::Key(error)),
    }
    let uuid = uuid().ok_or(Refused::NoChance)?;
    let key = Key::new(&uuid).map_err(Refused::Key)?;
    let value = if retries.quotes_key { format!("\"{uuid}\"") } else { uuid };
    let value = HeaderValue::try_from(value).map_err(|_| Refused::Key(KeyError::Character))?;
    headers.insert(&retries.key_header, value);
    Ok(key)
}

/// A random UUID (version 4): nobody else makes the same one, and nobody can guess it.
fn uuid() -> Option<String> {
    let mut bytes = [0_u8; 16];
    getrandom::fill(&mut bytes).ok()?;
    let random = u128::from_be_bytes(bytes);
    let versioned = random & !(0xf << 76) & !(0x3 << 62) | (0x4 << 76) | (0x2 << 62);
    Some(format!(
        "{:08x}-{:04x}-{:04x}-{:04x}-{:012x}",
        versioned >> 96,
        versioned >> 80 & 0xffff,
        versioned >> 64 & 0xffff,
        versioned >> 48 & 0xffff,
        versioned & 0xffff_ffff_ffff
    ))
}

/// The whole request body: a retry has to send it again.
async fn whole<B>(body: B, bytes_max: usize) -> Result<Bytes, Refused>
where
    B: Body<Error: Into<BoxError>>,
{
    let mut body = std::pin::pin!(body);
    let mut all = BytesMut::new();
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|error| Refused::Body(error.into()))?;
        // Trailers of a request are not sent again; nothing that takes keys reads them.
        let Ok(mut data) = frame.into_data() else { continue };
        if data.remaining() > bytes_max - all.len() {
            return Err(Refused::BodyTooLarge(bytes_max));
        }
        while data.has_remaining() {
            let chunk = data.chunk();
            all.extend_from_slice(chunk);
            data.advance(chunk.len());
        }
    }
    Ok(all.freeze())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn new_keys_are_random_uuids() {
        let one = uuid().unwrap();
        let other = uuid().unwrap();
        assert_ne!(one, other);
        for uuid in [one, other] {
            let lines = [uuid.as_bytes()];
            Key::parse_lines(lines, KeySyntax::Uuid).unwrap();
            assert_eq!(uuid.as_bytes()[14], b'4', "{uuid}");
            assert!(b"89ab".contains(&uuid.as_bytes()[19]), "{uuid}");
        }
    }
}
