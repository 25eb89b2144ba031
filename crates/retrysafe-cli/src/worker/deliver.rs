//! How is one effect delivered over HTTP?
//!
//! Until the request is written nothing was done, whatever goes wrong. From then on only the answer's status says anything, and
//! only as much as the kind's rules read from it. A refusal proves nothing about an earlier delivery that may have been done: the
//! receiver may check a request before it looks for the key.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use http::header::{CONNECTION, CONTENT_TYPE, HOST, USER_AGENT};
use http::{HeaderMap, HeaderValue, Request, StatusCode};
use http_body_util::Full;
use retrysafe::outbox::{Delivered, Delivery, DeliveryEnd};

use super::boot_clock::BootMoment;
use super::connect::{NotConnected, TlsClient, connect};
use super::exchange::{ReceivedAnswer, Unanswered, exchange};
use super::sign::sign;
use super::turns::Turns;
use crate::config::destinations::Destination;
use crate::config::effects::EffectRules;
use crate::config::statuses::StatusMeaning;

/// How long the body of an answer may take, once its head has come. The head decides.
const BODY_TIME_MAX: Duration = Duration::from_secs(5);

const AGENT: &str = concat!("retrysafe/", env!("CARGO_PKG_VERSION"));

/// Delivers the effects of one kind.
pub(super) struct HttpReceiver {
    pub rules: EffectRules,
    pub tls: TlsClient,
    turns: Turns,
    /// Whether each delivery leaves a line in the log.
    logs: bool,
    under_way: AtomicUsize,
}

/// How a delivery came out.
enum Outcome {
    Answered(ReceivedAnswer),
    /// Others to the same destination come first: nothing was sent.
    NotItsTurn,
    /// The operator's rules forbid it, or it cannot be made a request: nothing was sent, and the receiver was not asked.
    Withheld(String),
    /// Not a byte of it was sent.
    Unsent(String),
    /// It was sent, and no answer came.
    Unanswered(String),
}

impl HttpReceiver {
    pub(super) fn new(rules: EffectRules, logs: bool) -> Self {
        let tls = TlsClient::new(rules.tls.clone());
        let turns = Turns::new(rules.at_once_per_destination, rules.per_second_per_destination);
        Self { rules, tls, turns, logs, under_way: AtomicUsize::new(0) }
    }

    /// How many deliveries are under way.
    pub(super) fn under_way(&self) -> usize {
        self.under_way.load(Ordering::Acquire)
    }

    /// Delivers an effect, once.
    pub(super) async fn deliver(&self, delivery: Delivery) -> DeliveryEnd {
        let began = BootMoment::now();
        let _one = OneUnderWay::of(&self.under_way);
        let outcome = self.send(&delivery, began).await;
        let status = match &outcome {
            Outcome::Answered(answer) => Some(answer.head.status),
            Outcome::NotItsTurn
            | Outcome::Withheld(_)
            | Outcome::Unsent(_)
            | Outcome::Unanswered(_) => None,
        };
        let end = self.judge(outcome, delivery.was_sent());
        if self.logs {
            self.log(&delivery, status, &end, began.elapsed());
        }
        end
    }

    async fn send(&self, delivery: &Delivery, began: BootMoment) -> Outcome {
        let destination = match self.rules.destinations.choose(delivery.destination()) {
            Ok(destination) => destination,
            Err(why) => return Outcome::Withheld(why),
        };
        // A quarter of the time for its turn, half for the connection; the rest is left for the answer.
        let turn_max = delivery.deadline() / 4;
        let Some(_turn) = self.turns.wait_for(&destination, turn_max).await else {
            return Outcome::NotItsTurn;
        };
        let request = match self.request(&destination, delivery) {
            Ok(request) => request,
            Err(why) => return Outcome::Withheld(why),
        };
        let time_max = delivery.deadline() / 2;
        let allowed = &self.rules.allow_networks;
        let stream = match connect(&destination, allowed, &self.tls, time_max).await {
            Ok(stream) => stream,
            Err(NotConnected::Forbidden(why)) => return Outcome::Withheld(why),
            Err(NotConnected::Failed(why)) => return Outcome::Unsent(why),
        };
        // The last look before the first byte, on a clock that runs through suspend.
        let left = || delivery.deadline().saturating_sub(began.elapsed());
        if left().is_zero() {
            return Outcome::Unsent("its time was over before anything was sent".into());
        }
        let exchanging = exchange(stream, request, || (left() / 2).min(BODY_TIME_MAX));
        // A little less than what the worker permits, so that its end is told here, with the receiver's name.
        let patience = left().saturating_sub(delivery.deadline() / 20);
        match tokio::time::timeout(patience, exchanging).await {
            Ok(Ok(answer)) => Outcome::Answered(answer),
            Ok(Err(Unanswered { is_unsent: true, why })) => Outcome::Unsent(why),
            Ok(Err(Unanswered { is_unsent: false, why })) => {
                Outcome::Unanswered(format!("no answer from {destination}: {why}"))
            }
            Err(_) => {
                Outcome::Unanswered(format!("no answer from {destination} within the deadline"))
            }
        }
    }

    fn request(
        &self,
        destination: &Destination,
        delivery: &Delivery,
    ) -> Result<Request<Full<Bytes>>, String> {
        let value = |text: &str| HeaderValue::from_str(text).map_err(|error| error.to_string());
        let authority = destination.uri.authority().map_or("", |authority| authority.as_str());
        let mut headers = HeaderMap::new();
        headers.insert(HOST, value(authority)?);
        headers.insert(USER_AGENT, HeaderValue::from_static(AGENT));
        headers.insert(CONNECTION, HeaderValue::from_static("close"));
        for (name, value) in &self.rules.headers {
            headers.insert(name, value.clone());
        }
        if let Some(media_type) = delivery.content_type() {
            headers.insert(CONTENT_TYPE, value(media_type)?);
        }
        headers.insert(&self.rules.key_header, value(delivery.key())?);
        let secrets = &self.rules.secret_files;
        sign(&mut headers, secrets, delivery.key(), delivery.payload(), SystemTime::now())?;
        let path = destination.uri.path_and_query().map_or("/", |path| path.as_str());
        let request = Request::builder().method(&self.rules.method).uri(path);
        let mut request = request
            .body(Full::new(delivery.payload().clone()))
            .map_err(|error| error.to_string())?;
        *request.headers_mut() = headers;
        Ok(request)
    }

    /// What an outcome says about the effect.
    fn judge(&self, outcome: Outcome, was_sent: bool) -> DeliveryEnd {
        let answer = match outcome {
            Outcome::Answered(answer) => answer,
            Outcome::NotItsTurn => return DeliveryEnd::NotNow,
            // No receiver has refused it: once the configuration is right it can be sent.
            Outcome::Withheld(why) => return DeliveryEnd::Withheld(why.into()),
            Outcome::Unsent(why) => return DeliveryEnd::no_effect(why),
            Outcome::Unanswered(why) => return DeliveryEnd::unknown(why),
        };
        let status = answer.head.status;
        let retry_after = answer.retry_after();
        match self.rules.statuses.meaning_of(status) {
            StatusMeaning::Delivered => {
                let place = self.rules.reference.as_ref();
                let reference = place.and_then(|place| answer.reference(place));
                DeliveryEnd::Delivered(
                    reference.map_or_else(Delivered::default, Delivered::known_as),
                )
            }
            StatusMeaning::Rejected if was_sent => DeliveryEnd::Unknown {
                error: format!(
                    "status {}; an earlier delivery may have been done",
                    status.as_u16()
                )
                .into(),
                retry_after,
            },
            StatusMeaning::Rejected => DeliveryEnd::rejected(said(status)),
            StatusMeaning::NoEffect => {
                DeliveryEnd::NoEffect { error: said(status).into(), retry_after }
            }
            StatusMeaning::Unknown => {
                DeliveryEnd::Unknown { error: said(status).into(), retry_after }
            }
        }
    }

    fn log(
        &self,
        delivery: &Delivery,
        status: Option<StatusCode>,
        end: &DeliveryEnd,
        took: Duration,
    ) {
        let (end, error) = match end {
            DeliveryEnd::Delivered(_) => ("delivered", None),
            DeliveryEnd::Rejected(error) => ("rejected", Some(error)),
            DeliveryEnd::NoEffect { error, .. } | DeliveryEnd::Withheld(error) => {
                ("no_effect", Some(error))
            }
            DeliveryEnd::Unknown { error, .. } => ("no_answer", Some(error)),
            DeliveryEnd::NotNow => return,
        };
        let error = error.map(ToString::to_string);
        tracing::info!(
            kind = self.rules.kind,
            effect = delivery.id(),
            failures = delivery.failures(),
            status = status.map(|status| status.as_u16()),
            end,
            error,
            ms = u64::try_from(took.as_millis()).unwrap_or(u64::MAX),
            "delivery"
        );
    }
}

/// Never the body: it is the receiver's, and may hold anything.
fn said(status: StatusCode) -> String {
    format!("status {}", status.as_u16())
}

/// One delivery that is under way until this is dropped.
struct OneUnderWay<'a>(&'a AtomicUsize);

impl<'a> OneUnderWay<'a> {
    fn of(count: &'a AtomicUsize) -> Self {
        count.fetch_add(1, Ordering::AcqRel);
        Self(count)
    }
}

impl Drop for OneUnderWay<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}
