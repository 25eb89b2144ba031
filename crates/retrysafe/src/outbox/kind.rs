//! How are the effects of one kind delivered?
//!
//! One loop per kind: claim as many as there is room for, mark them in one statement, deliver each in a task of its
//! own, and say in one statement how those ended that have. What the server could not be told is said again; the fence
//! makes that harmless. While there is a backlog the next batch is claimed while the server is told how the last one ended.

use std::collections::BTreeMap;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use retrysafe_core::effect::{BeforeFirstByte, may_send};
use retrysafe_core::event;
use tokio::sync::{Notify, watch};
use tokio::task::{JoinError, JoinSet};
use tokio::time::Instant;

use super::backoff::Jitter;
use super::breaker::Breaker;
use super::delivery::{Delivery, DeliveryEnd, DeliveryError};
use super::pace::Pace;
use super::receiver::Receiver;
use super::store::{
    BATCH_MAX, ClaimedEffect, EffectStore, EffectStoreError, EndCode, Held, MarkWord, MarkedEffect,
    ToMark, Told, note_failure, within_time,
};
use super::tell::{Ended, Heard, Teller};
use crate::layer::BootMoment;
use crate::wait_a_turn::wait_a_turn;

/// How long a worker waits before it looks again, where it found nothing: the first time, and at the most.
const LOOK_MIN: Duration = Duration::from_millis(100);
const LOOK_MAX: Duration = Duration::from_secs(5);

/// How long a database that failed is left alone.
const DATABASE_PAUSE: Duration = Duration::from_millis(500);

/// The longest time for which a receiver may ask to be left alone.
const RETRY_AFTER_MAX: Duration = Duration::from_secs(24 * 60 * 60);

/// How many renewals a lease has room for.
const RENEWALS_PER_LEASE: u32 = 3;

/// The longest error text, and the longest reference, that is kept with an effect.
const TEXT_CHARS_MAX: usize = 500;

pub(super) type DeliverFuture =
    Pin<Box<dyn Future<Output = Result<DeliveryEnd, DeliveryError>> + Send>>;
pub(super) type DeliverFn = Arc<dyn Fn(Delivery) -> DeliverFuture + Send + Sync>;

/// One kind, and whoever delivers it.
pub(super) struct KindWorker<S> {
    pub store: S,
    pub kind: Box<str>,
    pub receiver: Receiver,
    pub deliver: DeliverFn,
    pub jitter: Jitter,
    pub wake: Arc<Notify>,
    pub stopping: watch::Receiver<bool>,
}

/// How one delivery ended; none where nothing was sent because it was too late for that.
type Attempted = (Held, u32, Option<Result<DeliveryEnd, DeliveryError>>);

/// What is remembered of a delivery that is under way.
struct Sent {
    task: tokio::task::Id,
    failures: u32,
    is_suspect: bool,
    /// Until when its lease is renewed. A handler that cannot be cut off must not hold its effect for ever.
    renewed_until: Instant,
}

/// What came of telling the server and of claiming; none where nothing was to be claimed.
struct Turn {
    heard: Heard,
    claimed: Option<Result<usize, EffectStoreError>>,
}

/// What a loop remembers between two turns.
#[derive(Default)]
struct UnderWay {
    tasks: JoinSet<Attempted>,
    held: BTreeMap<Held, Sent>,
    ended: Ended,
    breaker: Breaker,
    pace: Option<Pace>,
    /// Whether the last claim found as many effects as it asked for: then more may be waiting.
    has_backlog: bool,
}

/// A batch that was claimed and whose marks were asked for.
#[derive(Default)]
struct MarkedBatch {
    /// How many were claimed.
    claimed: usize,
    to_send: Vec<(ClaimedEffect, MarkedEffect)>,
    /// What another transaction holds, and what may have a mark that nobody has answered for.
    to_hand_back: Vec<Held>,
    /// From before the marks were asked for.
    asked_at: Option<BootMoment>,
    failed: Option<EffectStoreError>,
}

impl<S: EffectStore> KindWorker<S> {
    /// Delivers until it is told to stop, and then until nothing is under way.
    pub(super) async fn run(mut self) {
        let pace = self.receiver.per_second.map(|number| Pace::new(number, Instant::now()));
        let mut under_way = UnderWay { pace, ..UnderWay::default() };
        let mut look_after = LOOK_MIN;
        let mut renew_at = Instant::now() + self.receiver.lease() / RENEWALS_PER_LEASE;
        loop {
            let is_stopping = *self.stopping.borrow();
            let Turn { heard, claimed } = self.tell_and_claim(&mut under_way, is_stopping).await;
            if is_stopping && under_way.tasks.is_empty() && under_way.ended.is_empty() {
                return;
            }
            match claimed {
                None => {}
                Some(Ok(0)) => look_after = (look_after * 2).min(LOOK_MAX),
                Some(Ok(_)) => look_after = LOOK_MIN,
                Some(Err(error)) => {
                    note_failure(&self.kind, &error);
                    look_after = DATABASE_PAUSE;
                }
            }
            if Instant::now() >= renew_at {
                renew_at = Instant::now() + self.receiver.lease() / RENEWALS_PER_LEASE;
                self.renew(&under_way).await;
            }
            let pause = match heard {
                Heard::Everything => look_after,
                Heard::AllButHeld | Heard::NotEverything => DATABASE_PAUSE,
            };
            let now = Instant::now();
            let opens_at = under_way.breaker.opens_at(now);
            let opens_at = opens_at.or(under_way.pace.as_ref().and_then(|pace| pace.opens_at(now)));
            let next_look = opens_at.unwrap_or(now + pause).min(now + LOOK_MAX);
            tokio::select! {
                biased;
                Some(joined) = under_way.tasks.join_next_with_id() => {
                    self.note(&mut under_way, joined);
                    self.note_others_that_end_now(&mut under_way).await;
                }
                () = self.wake.notified(), if !is_stopping => {}
                () = tokio::time::sleep_until(next_look.min(renew_at)) => {}
                _ = self.stopping.changed(), if !is_stopping => {}
            }
        }
    }

    /// Tells the server what has ended and claims what there is room for, at the same time where effects are known to wait.
    ///
    /// Otherwise one after the other: an end may free the next effect of its lane, and only a later claim finds that one. For the same
    /// reason a claim that was made meanwhile, and found less than there was room for, is made once more.
    async fn tell_and_claim(&self, under_way: &mut UnderWay, is_stopping: bool) -> Turn {
        let mut found = 0;
        let has_news = !under_way.ended.is_empty() && under_way.ended.unheard == 0;
        if has_news && under_way.has_backlog && !is_stopping {
            let mut ended = std::mem::take(&mut under_way.ended);
            // Sent as soon as the marks stand, however long the server takes to hear of the last batch.
            let claim_and_send = async {
                let most = self.room(under_way);
                let batch = self.claim_and_mark(most).await;
                self.send_batch(under_way, most, batch)
            };
            let teller = self.teller();
            let (heard, claimed) = tokio::join!(teller.tell(&mut ended), claim_and_send);
            ended.to_hand_back.append(&mut under_way.ended.to_hand_back);
            under_way.ended = ended;
            match claimed {
                Ok(sent) if !under_way.has_backlog => found = sent,
                claimed => return Turn { heard, claimed: Some(claimed) },
            }
        }
        let heard = self.teller().tell(&mut under_way.ended).await;
        // What the server has not heard is told before anything more is asked of it.
        if *self.stopping.borrow() || heard == Heard::NotEverything {
            return Turn { heard, claimed: None };
        }
        let most = self.room(under_way);
        let batch = self.claim_and_mark(most).await;
        let claimed = self.send_batch(under_way, most, batch);
        Turn { heard, claimed: Some(claimed.map(|more| found + more)) }
    }

    /// Notes the other deliveries that have ended, and those that are about to: whoever is ready to run has a turn first. To tell the ends of
    /// half a batch costs nearly what a whole one does, and the next claim would have no more room than that.
    async fn note_others_that_end_now(&self, under_way: &mut UnderWay) {
        loop {
            let left = under_way.tasks.len();
            wait_a_turn().await;
            while let Some(joined) = under_way.tasks.try_join_next_with_id() {
                self.note(under_way, joined);
            }
            // Each turn but the last has noted something, so there are no more turns than deliveries.
            if under_way.tasks.len() == left {
                return;
            }
        }
    }

    /// For how many more deliveries there is room now.
    fn room(&self, under_way: &mut UnderWay) -> usize {
        // What may have killed its workers is delivered alone, so that it takes no neighbour along.
        if under_way.held.values().any(|sent| sent.is_suspect) {
            return 0;
        }
        let in_flight = under_way.tasks.len();
        // What the server has not heard takes the place of a delivery.
        let taken = in_flight.saturating_add(under_way.ended.unheard);
        let room = self.receiver.at_once.saturating_sub(taken).min(BATCH_MAX);
        let now = Instant::now();
        let room = under_way.pace.as_ref().map_or(room, |pace| room.min(pace.room(now)));
        under_way.breaker.permits(room, in_flight, now)
    }

    /// Claims at most so many and asks for their marks.
    async fn claim_and_mark(&self, most: usize) -> MarkedBatch {
        let mut batch = MarkedBatch::default();
        if most == 0 {
            return batch;
        }
        let claim = self.store.claim(&self.kind, most, self.receiver.lease());
        let claimed = match within_time(claim).await {
            Ok(claimed) if claimed.is_empty() => return batch,
            Ok(claimed) => claimed,
            Err(error) => return MarkedBatch { failed: Some(error), ..batch },
        };
        batch.claimed = claimed.len();
        // Counted from before the question: the lease is never longer than this worker believes.
        batch.asked_at = Some(BootMoment::now());
        let about_to_send = |claimed: &ClaimedEffect| ToMark {
            held: claimed.held,
            receiver: self.receiver.identity_for(claimed.destination.as_deref()),
        };
        let to_mark: Vec<ToMark> = claimed.iter().map(about_to_send).collect();
        let mark = self.store.mark(&to_mark, self.receiver.resend_for());
        let marked = match within_time(mark).await {
            Ok(marked) => marked,
            Err(error) => {
                // The marks may stand. Nothing was sent, and nothing will be.
                let to_hand_back = to_mark.iter().map(|to_mark| to_mark.held).collect();
                return MarkedBatch { to_hand_back, failed: Some(error), ..batch };
            }
        };
        let mut marks: BTreeMap<i64, MarkedEffect> =
            marked.into_iter().map(|marked| (marked.id, marked)).collect();
        for claimed in claimed {
            // What did not come back is somebody else's.
            let Some(marked) = marks.remove(&claimed.held.id) else { continue };
            match marked.word {
                MarkWord::Sendable => batch.to_send.push((claimed, marked)),
                // Only evidence leads out of that.
                MarkWord::Unknown => {}
                // An application may keep it for long, or change its mind. The others of the batch are sent meanwhile.
                MarkWord::HeldByAnother => batch.to_hand_back.push(claimed.held),
            }
        }
        batch
    }

    /// Sends a batch whose marks stand; returns how many were claimed for it, of so many that were asked for.
    fn send_batch(
        &self,
        under_way: &mut UnderWay,
        most: usize,
        batch: MarkedBatch,
    ) -> Result<usize, EffectStoreError> {
        let MarkedBatch { claimed, to_send, to_hand_back, asked_at, failed } = batch;
        under_way.has_backlog = claimed > 0 && claimed == most;
        under_way.ended.to_hand_back.extend(to_hand_back);
        if let Some(pace) = &mut under_way.pace {
            pace.begin(claimed, Instant::now());
        }
        if let Some(asked_at) = asked_at {
            for (claimed, marked) in to_send {
                self.send(under_way, claimed, marked, asked_at);
            }
        }
        failed.map_or(Ok(claimed), Err)
    }

    /// Delivers an effect whose mark stands, in a task of its own.
    fn send(
        &self,
        under_way: &mut UnderWay,
        claimed: ClaimedEffect,
        marked: MarkedEffect,
        asked_at: BootMoment,
    ) {
        let held = claimed.held;
        let deliver = Arc::clone(&self.deliver);
        let failures = claimed.failures;
        let is_suspect = claimed.is_suspect;
        let delivery = self.delivery(claimed);
        let renewed_until = Instant::now() + self.receiver.lease();
        let task = under_way.tasks.spawn(attempt(deliver, held, delivery, marked, asked_at));
        let sent = Sent { task: task.id(), failures, is_suspect, renewed_until };
        under_way.held.insert(held, sent);
    }

    /// What whoever delivers sees of a claimed effect.
    fn delivery(&self, claimed: ClaimedEffect) -> Delivery {
        let ClaimedEffect {
            held, key, destination, content_type, payload, failures, was_sent, ..
        } = claimed;
        Delivery {
            id: held.id,
            key,
            destination,
            content_type,
            payload,
            failures,
            was_sent,
            deadline: self.receiver.deadline_of_one(),
        }
    }

    /// Renews what is under way, and what has ended and is not told yet.
    async fn renew(&self, under_way: &UnderWay) {
        let now = Instant::now();
        let sent = under_way.held.iter().filter(|(_, sent)| now < sent.renewed_until);
        let to_tell = under_way.ended.to_tell.iter().map(|told| told.held);
        let held: Vec<Held> = sent.map(|(held, _)| *held).chain(to_tell).collect();
        if held.is_empty() {
            return;
        }
        let renew = self.store.renew(&held, self.receiver.lease());
        // A lease that could not be renewed stands as it was.
        if let Err(error) = within_time(renew).await {
            note_failure(&self.kind, &error);
        }
    }

    /// Notes how a delivery ended.
    fn note(
        &self,
        under_way: &mut UnderWay,
        joined: Result<(tokio::task::Id, Attempted), JoinError>,
    ) {
        let (held, failures, ended) = match joined {
            Ok((_, attempted)) => attempted,
            Err(error) => {
                let of_task = under_way.held.iter().find(|(_, sent)| sent.task == error.id());
                let Some((held, failures)) = of_task.map(|(held, sent)| (*held, sent.failures))
                else {
                    return;
                };
                (held, failures, Some(Err(error.to_string().into())))
            }
        };
        under_way.held.remove(&held);
        let is_about_receiver = !matches!(ended, Some(Ok(DeliveryEnd::Withheld(_))));
        let Some(told) = ended.and_then(|ended| self.judge(held, failures, ended)) else {
            under_way.ended.to_hand_back.push(held);
            return;
        };
        match told.end {
            EndCode::Delivered | EndCode::Rejected => under_way.breaker.succeeded(),
            EndCode::NoEffect | EndCode::NoAnswer if is_about_receiver => {
                under_way.breaker.failed(Instant::now());
            }
            EndCode::NoEffect | EndCode::NoAnswer => {}
        }
        let kind = self.kind.to_string();
        let word = match told.end {
            EndCode::Delivered => "delivered",
            EndCode::Rejected => "rejected",
            EndCode::NoEffect => "no_effect",
            EndCode::NoAnswer => "no_answer",
        };
        metrics::counter!(event::EFFECT_DELIVERIES.name, "kind" => kind.clone(), "end" => word)
            .increment(1);
        let is_open = if under_way.breaker.is_open() { 1.0 } else { 0.0 };
        metrics::gauge!(event::EFFECT_BREAKER_OPEN.name, "kind" => kind).set(is_open);
        under_way.ended.to_tell.push(told);
    }

    /// What the server is told of an end; nothing if the effect was not tried.
    fn judge(
        &self,
        held: Held,
        failures: u32,
        ended: Result<DeliveryEnd, DeliveryError>,
    ) -> Option<Told> {
        let usual = || self.receiver.backoff.pause(failures, self.jitter.draw(held));
        // A receiver may ask for a longer pause than usual, not for a shorter one.
        let pause =
            |asked: Option<Duration>| asked.unwrap_or_default().max(usual()).min(RETRY_AFTER_MAX);
        let (end, retry_after, reference, error) = match ended {
            Ok(DeliveryEnd::Delivered(delivered)) => {
                (EndCode::Delivered, Duration::ZERO, delivered.reference, None)
            }
            Ok(DeliveryEnd::Rejected(error)) => {
                (EndCode::Rejected, Duration::ZERO, None, Some(error))
            }
            Ok(DeliveryEnd::NoEffect { error, retry_after }) => {
                (EndCode::NoEffect, pause(retry_after), None, Some(error))
            }
            Ok(DeliveryEnd::Unknown { error, retry_after }) => {
                (EndCode::NoAnswer, pause(retry_after), None, Some(error))
            }
            Ok(DeliveryEnd::Withheld(error)) => (EndCode::NoEffect, pause(None), None, Some(error)),
            Ok(DeliveryEnd::NotNow) => return None,
            Err(error) => (EndCode::NoAnswer, pause(None), None, Some(error)),
        };
        let error = error.map(|error| kept_text(&error.to_string()));
        let reference = reference.map(|reference| kept_text(&reference));
        Some(Told { held, end, retry_after, reference, error })
    }

    fn teller(&self) -> Teller<'_, S> {
        let Self { store, kind, receiver, .. } = self;
        Teller { store, kind, failures_max: receiver.failures_max }
    }
}

/// A text as the server can keep it.
fn kept_text(text: &str) -> String {
    text.chars().filter(|letter| *letter != '\0').take(TEXT_CHARS_MAX).collect()
}

/// Delivers one effect, if it is not too late for that.
async fn attempt(
    deliver: DeliverFn,
    held: Held,
    delivery: Delivery,
    marked: MarkedEffect,
    asked_at: BootMoment,
) -> Attempted {
    let deadline = delivery.deadline;
    let failures = delivery.failures;
    let before = BeforeFirstByte {
        lease_left: marked.lease_left,
        resend_left: marked.resend_left,
        elapsed: asked_at.elapsed(),
        deadline,
    };
    if !may_send(&before) {
        return (held, failures, None);
    }
    let ended = tokio::time::timeout(deadline, deliver(delivery)).await;
    let ended = ended.unwrap_or_else(|_| Err("it took longer than its deadline".into()));
    (held, failures, Some(ended))
}

#[cfg(test)]
mod tests;
