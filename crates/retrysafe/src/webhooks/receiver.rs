//! What happens to an event, from its arrival to its end?
//!
//! With an [inbox](super::Inbox): an event is kept first, its sender is told, and it is judged then; one whose subject is not there yet
//! waits. Without one: an event is judged first, and its sender is told to send it again as long as its subject is not there.

mod rounds;

use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use http::HeaderMap;
use retrysafe_core::engine::Engine;
use retrysafe_core::event;
use retrysafe_core::record::Record;
use retrysafe_core::store::{Store, StoreError};
use serde_json::{Value, json};
use tokio::sync::{Semaphore, SemaphorePermit};

use super::about::{EventAbout, events_about};
use super::end::{EventEnd, EventStanding};
use super::event::{EventMeaning, EventName, ReadEvent, meaning, names, read};
use super::inbox::{Inbox, KeptEvent};
use super::judge::{EventJudge, JudgedEvent, SearchReach};
use super::provider::WebhookProvider;
use super::verify::WebhookFault;
use crate::evidence::JsonDocument;
use rounds::ReachedPlace;

/// How many bodies are read at once: it bounds what senders whom nobody has verified yet may hold.
const BODIES_AT_ONCE: usize = 64;

/// How many events are judged at once as they arrive. The others are judged in the next round.
const JUDGED_AT_ONCE: usize = 4;

/// How long an event may take to be kept, or to be judged where there is no inbox: providers wait for ten seconds and more.
const ANSWER_WITHIN: Duration = Duration::from_secs(8);

/// Receives the events of providers, and applies them.
///
/// Clones share everything.
#[derive(Debug)]
pub struct Webhooks<S> {
    shared: Arc<WebhooksShared<S>>,
}

#[derive(Debug)]
struct WebhooksShared<S> {
    engine: Engine<S>,
    inbox: Option<Inbox>,
    providers: Vec<WebhookProvider>,
    judging: Arc<Semaphore>,
    bodies: Semaphore,
    /// Where the next round goes on.
    reached: Mutex<ReachedPlace>,
}

impl<S> Clone for Webhooks<S> {
    fn clone(&self) -> Self {
        Self { shared: Arc::clone(&self.shared) }
    }
}

/// What the sender of an event is told.
#[derive(Debug)]
#[non_exhaustive]
pub enum WebhookReceipt {
    /// It has arrived for good, and need not be sent again.
    Taken(EventStanding),
    /// It was here before.
    Doubled,
    /// It is not believed.
    Refused(WebhookFault),
    /// What it names is not there yet: it is to be sent again.
    NotYet,
    /// It could not be kept: it is to be sent again.
    NotKept(String),
}

/// Why an event is not replayed.
#[derive(Debug)]
pub enum ReplayError {
    /// There is no such event.
    Absent,
    /// It was applied, or agrees with what is known: there is nothing to replay.
    Ended,
    /// Its provider is not configured here.
    NoProvider,
    /// The store's.
    Store(StoreError),
}

impl From<StoreError> for ReplayError {
    fn from(error: StoreError) -> Self {
        Self::Store(error)
    }
}

impl<S: Store> Webhooks<S> {
    /// Receives events of these providers about what this store knows. Without an inbox, events that are too early are refused until
    /// they are not.
    pub fn new(store: S, inbox: Option<Inbox>, providers: Vec<WebhookProvider>) -> Self {
        let engine = Engine::new(store);
        let judging = Arc::new(Semaphore::new(JUDGED_AT_ONCE));
        let bodies = Semaphore::new(BODIES_AT_ONCE);
        let reached = Mutex::default();
        Self {
            shared: Arc::new(WebhooksShared { engine, inbox, providers, judging, bodies, reached }),
        }
    }

    /// The provider of this name.
    pub fn provider(&self, name: &str) -> Option<&WebhookProvider> {
        self.shared.providers.iter().find(|provider| *provider.name == *name)
    }

    /// Receives an event: verifies it, keeps it, and sees to it that it is applied.
    pub async fn receive(
        &self,
        provider: &str,
        headers: &HeaderMap,
        body: Bytes,
        now: SystemTime,
    ) -> WebhookReceipt {
        let Some(provider) = self.provider(provider) else {
            return WebhookReceipt::NotKept("no such provider is configured".into());
        };
        let receipt = self.take(provider, headers, body, now).await;
        let name = String::from(&*provider.name);
        match &receipt {
            WebhookReceipt::Refused(fault) => {
                let labels = [("provider", name.clone()), ("reason", fault.name().to_owned())];
                metrics::counter!(event::WEBHOOKS_REFUSED.name, &labels).increment(1);
                tracing::warn!(target: "retrysafe", provider = name, %fault, "webhook_refused");
            }
            WebhookReceipt::NotKept(why) => {
                let labels = [("provider", name.clone()), ("reason", "not_kept".to_owned())];
                metrics::counter!(event::WEBHOOKS_REFUSED.name, &labels).increment(1);
                tracing::error!(target: "retrysafe", provider = name, why, "webhook_not_kept");
            }
            WebhookReceipt::Taken(_) | WebhookReceipt::Doubled | WebhookReceipt::NotYet => {
                let result = match &receipt {
                    WebhookReceipt::Doubled => "doubled",
                    WebhookReceipt::NotYet => "not_yet",
                    WebhookReceipt::Taken(standing) => standing.name(),
                    WebhookReceipt::Refused(_) | WebhookReceipt::NotKept(_) => "refused",
                };
                let labels = [("provider", name), ("result", result.to_owned())];
                metrics::counter!(event::WEBHOOKS_RECEIVED.name, &labels).increment(1);
            }
        }
        receipt
    }

    async fn take(
        &self,
        provider: &WebhookProvider,
        headers: &HeaderMap,
        body: Bytes,
        now: SystemTime,
    ) -> WebhookReceipt {
        let secrets = match (provider.secrets)() {
            Ok(secrets) => secrets,
            Err(why) => return WebhookReceipt::NotKept(why),
        };
        let verified = match provider.verifier.verify(&secrets, headers, &body, now) {
            Ok(verified) => verified,
            Err(fault) => return WebhookReceipt::Refused(fault),
        };
        let event = read(provider, &verified, &body);
        let taken = async {
            match &self.shared.inbox {
                Some(inbox) => self.keep(inbox, provider, event, body).await,
                None => self.apply_at_once(provider, &event, &body, now).await,
            }
        };
        match tokio::time::timeout(ANSWER_WITHIN, taken).await {
            Ok(Ok(receipt)) => receipt,
            Ok(Err(error)) => WebhookReceipt::NotKept(error.to_string()),
            Err(_) => WebhookReceipt::NotKept("the store took too long".into()),
        }
    }

    /// Keeps an event, and has it judged afterwards.
    async fn keep(
        &self,
        inbox: &Inbox,
        provider: &WebhookProvider,
        read: ReadEvent,
        body: Bytes,
    ) -> Result<WebhookReceipt, StoreError> {
        let standing = read.meaning.standing();
        let asked = json!({
            "provider": provider.name, "event_id": read.event_id, "state": standing.code(),
            "happened_at": read.happened_at.map(|at| at.as_ms()), "names": kept(&read.names),
            "wait_ms": milliseconds(provider.wait), "reason": read.meaning.reason(),
        });
        let keeping = inbox.keep(&asked, &body).await?;
        if !keeping.is_new {
            return Ok(WebhookReceipt::Doubled);
        }
        if standing != EventStanding::Waiting {
            count_end(provider, standing);
            return Ok(WebhookReceipt::Taken(standing));
        }
        // If this process dies from here on, a round of another one finds the event.
        if let Ok(permit) = Arc::clone(&self.shared.judging).try_acquire_owned() {
            let this = self.clone();
            let name = provider.name.clone();
            tokio::spawn(async move {
                let judged =
                    JudgedEvent { event_id: &read.event_id, names: &read.names, payload: &body };
                this.judge_kept(&name, keeping.id, &judged, SearchReach::AllUnknown, &[]).await;
                drop(permit);
            });
        }
        Ok(WebhookReceipt::Taken(EventStanding::Waiting))
    }

    /// Judges an event where it cannot be kept: its sender must send it again until its subject is there.
    async fn apply_at_once(
        &self,
        provider: &WebhookProvider,
        read: &ReadEvent,
        body: &[u8],
        now: SystemTime,
    ) -> Result<WebhookReceipt, StoreError> {
        let standing = read.meaning.standing();
        if standing != EventStanding::Waiting {
            tracing::info!(
                target: "retrysafe", provider = &*provider.name, event = read.event_id,
                why = read.meaning.reason(), "webhook_{}", standing.name()
            );
            count_end(provider, standing);
            return Ok(WebhookReceipt::Taken(standing));
        }
        let Ok(_permit) = self.shared.judging.acquire().await else {
            return Ok(WebhookReceipt::NotYet);
        };
        let event = JudgedEvent { event_id: &read.event_id, names: &read.names, payload: body };
        let end = self.judge(provider, &event, SearchReach::AllUnknown, &[]).await?;
        if let EventEnd::Waits(why) = &end {
            let since_1970 = now.duration_since(UNIX_EPOCH).unwrap_or_default();
            let age = read
                .happened_at
                .map(|at| since_1970.saturating_sub(Duration::from_millis(at.as_ms())));
            // An event without a time would be sent for ever; its sender ends that.
            if age.is_none_or(|age| age < provider.wait) {
                tracing::info!(target: "retrysafe", provider = &*provider.name, event = read.event_id, why, "webhook_not_yet");
                return Ok(WebhookReceipt::NotYet);
            }
            tracing::warn!(target: "retrysafe", provider = &*provider.name, event = read.event_id, why, "webhook_unmatched");
            count_end(provider, EventStanding::Unmatched);
            return Ok(WebhookReceipt::Taken(EventStanding::Unmatched));
        }
        tell(provider, &event, &end);
        Ok(WebhookReceipt::Taken(end.standing()))
    }

    async fn judge(
        &self,
        provider: &WebhookProvider,
        event: &JudgedEvent<'_>,
        reach: SearchReach,
        seen: &[Record],
    ) -> Result<EventEnd, StoreError> {
        let engine = &self.shared.engine;
        let inbox = self.shared.inbox.as_ref();
        EventJudge { engine, inbox, provider, reach, seen }.judge(event).await
    }

    /// Judges an event of the inbox, and writes down what became of it.
    async fn judge_kept(
        &self,
        provider: &str,
        id: i64,
        event: &JudgedEvent<'_>,
        reach: SearchReach,
        seen: &[Record],
    ) {
        let (Some(inbox), Some(provider)) = (&self.shared.inbox, self.provider(provider)) else {
            return;
        };
        let end = match self.judge(provider, event, reach, seen).await {
            Ok(end) => end,
            Err(error) => {
                tracing::warn!(target: "retrysafe", provider = &*provider.name, %error, "webhook_judge_failed");
                return;
            }
        };
        // A look that is not a whole search knows less than the one before it.
        if reach == SearchReach::Direct && end.standing() == EventStanding::Waiting {
            return;
        }
        match inbox.end(id, &end).await {
            Ok(true) if end.standing() != EventStanding::Waiting => tell(provider, event, &end),
            // Another process was faster; or the event waits.
            Ok(_) => {}
            Err(error) => {
                tracing::warn!(target: "retrysafe", provider = &*provider.name, %error, "webhook_judge_failed");
            }
        }
    }

    async fn judge_all(&self, events: Vec<KeptEvent>, reach: SearchReach, seen: &[Record]) {
        for event in events {
            let names = event.names();
            let judged =
                JudgedEvent { event_id: &event.event_id, names: &names, payload: &event.payload };
            self.judge_kept(&event.provider, event.id, &judged, reach, seen).await;
        }
    }

    /// Has an event judged anew, by today's rules, and gives how it stands then. What it waits for, it waits for from now on.
    ///
    /// # Errors
    ///
    /// Why not.
    pub async fn replay(&self, id: i64, who: &str, reason: &str) -> Result<(), ReplayError> {
        let Some(inbox) = &self.shared.inbox else { return Err(ReplayError::Absent) };
        let event = inbox.event(id).await?.ok_or(ReplayError::Absent)?;
        let provider = self.provider(&event.provider).ok_or(ReplayError::NoProvider)?;
        let (found, says) = match JsonDocument::parse(&event.payload) {
            Some(document) => {
                let names = names(provider, &document);
                let says = meaning(provider, &document, &names);
                (names, says)
            }
            None => (Vec::new(), EventMeaning::Malformed("its body is not JSON".into())),
        };
        let why =
            says.reason().map_or_else(|| format!("replayed by {who}: {reason}"), str::to_owned);
        let asked = json!({
            "id": id, "state": says.standing().code(), "names": kept(&found),
            "wait_ms": milliseconds(provider.wait), "reason": why,
        });
        if !inbox.replay(&asked).await? {
            return Err(ReplayError::Ended);
        }
        if says.standing() == EventStanding::Waiting {
            let judged =
                JudgedEvent { event_id: &event.event_id, names: &found, payload: &event.payload };
            self.judge_kept(&event.provider, id, &judged, SearchReach::AllUnknown, &[]).await;
        }
        Ok(())
    }

    /// The events about a record that are kept, the newest first: those that were matched to it, and those that name it and wait, contradict, or
    /// have come to nothing. One that says that it is about another caller's request is not among them. None without an inbox.
    ///
    /// # Errors
    ///
    /// The store's.
    pub async fn events_about(
        &self,
        record: &Record,
        most: usize,
    ) -> Result<Option<Vec<EventAbout>>, StoreError> {
        let Some(inbox) = &self.shared.inbox else { return Ok(None) };
        events_about(inbox, &self.shared.providers, record, most).await.map(Some)
    }

    /// A place for one more body; none if too many are being read.
    pub(super) fn body_place(&self) -> Option<SemaphorePermit<'_>> {
        self.shared.bodies.try_acquire().ok()
    }

    /// The inbox, if there is one.
    pub fn inbox(&self) -> Option<&Inbox> {
        self.shared.inbox.as_ref()
    }
}

impl EventMeaning {
    fn standing(&self) -> EventStanding {
        match self {
            Self::Evidence(_) => EventStanding::Waiting,
            Self::Nothing(_) => EventStanding::Ignored,
            Self::Malformed(_) => EventStanding::Malformed,
        }
    }

    fn reason(&self) -> Option<&str> {
        match self {
            Self::Evidence(_) => None,
            Self::Nothing(why) | Self::Malformed(why) => Some(why),
        }
    }
}

fn kept(names: &[EventName]) -> Value {
    names.iter().map(EventName::kept).collect::<Vec<_>>().into()
}

fn milliseconds(length: Duration) -> u64 {
    // A hundred years: longer than anybody waits, and short enough to be added to a time.
    u64::try_from(length.as_millis()).unwrap_or(u64::MAX).min(3_155_760_000_000)
}

/// Counts and logs what became of an event.
fn tell(provider: &WebhookProvider, event: &JudgedEvent<'_>, end: &EventEnd) {
    count_end(provider, end.standing());
    let (state, about, why) = (end.standing().name(), end.matched(), end.reason());
    let (name, id) = (&*provider.name, event.event_id);
    if end.standing() == EventStanding::Contradicts {
        tracing::error!(target: "retrysafe", provider = name, event = id, about, why, "webhook_contradicts");
    } else {
        tracing::info!(target: "retrysafe", provider = name, event = id, state, about, why, "webhook_ended");
    }
}

fn count_end(provider: &WebhookProvider, standing: EventStanding) {
    let labels =
        [("provider", String::from(&*provider.name)), ("state", standing.name().to_owned())];
    metrics::counter!(event::WEBHOOKS_ENDED.name, &labels).increment(1);
}
