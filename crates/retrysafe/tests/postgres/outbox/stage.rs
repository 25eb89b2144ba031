//! What do the tests of the outbox share? A receiver that counts, and a clock that a test turns.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use retrysafe::outbox::{
    Delivered, Delivery, DeliveryEnd, DeliveryError, Effect, Outbox, Receiver, Staged, Worker,
};
use sqlx::PgPool;
use tokio::sync::Notify;

use crate::kit::{database, number, sql};

pub(super) const HOUR: Duration = Duration::from_secs(60 * 60);

/// Longer than anything here takes: what has not happened by then will not happen.
const PATIENCE: Duration = Duration::from_secs(120);

/// A database with an outbox whose clock stands until a test turns it.
pub(super) struct OutboxStage {
    pub(super) url: String,
    pub(super) pool: PgPool,
    pub(super) outbox: Outbox,
    pub(super) receiver: Arc<CountingReceiver>,
}

/// What a receiver does with the next delivery.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Mood {
    Confirms,
    /// It does it, and its answer is lost.
    LosesAnswer,
    /// It does it, and whoever delivers it panics.
    Panics,
    /// It does it, and never answers: the worker is killed meanwhile.
    Hangs,
    RefusesConnections,
    /// The same, in words that PostgreSQL cannot keep.
    RefusesInBytes,
    RefusesForGood,
}

/// A receiver that counts what it does. It remembers keys for ever, or takes none.
#[derive(Default)]
pub(super) struct CountingReceiver {
    pub(super) takes_no_key: bool,
    done: Mutex<BTreeMap<String, u32>>,
    order: Mutex<Vec<String>>,
    mood: Mutex<Option<Mood>>,
    pub(super) was_asked: Notify,
    pub(super) asked: Mutex<u32>,
}

impl CountingReceiver {
    pub(super) fn set(&self, mood: Mood) {
        *self.mood.lock().unwrap() = Some(mood);
    }

    /// How often each effect was done, by its content.
    pub(super) fn done(&self) -> BTreeMap<String, u32> {
        self.done.lock().unwrap().clone()
    }

    pub(super) fn order(&self) -> Vec<String> {
        self.order.lock().unwrap().clone()
    }

    /// Does what is asked, once for each key.
    fn does(&self, delivery: &Delivery) {
        let content = String::from_utf8(delivery.payload().to_vec()).unwrap();
        let mut done = self.done.lock().unwrap();
        let name = if self.takes_no_key { content.clone() } else { delivery.key().to_owned() };
        let times = done.entry(name).or_default();
        if self.takes_no_key || *times == 0 {
            *times += 1;
            self.order.lock().unwrap().push(content);
        }
    }

    pub(super) async fn receives(
        self: Arc<Self>,
        delivery: Delivery,
    ) -> Result<DeliveryEnd, DeliveryError> {
        *self.asked.lock().unwrap() += 1;
        self.was_asked.notify_one();
        let mood = (*self.mood.lock().unwrap()).unwrap_or(Mood::Confirms);
        match mood {
            Mood::RefusesConnections => return Ok(DeliveryEnd::no_effect("connection refused")),
            Mood::RefusesInBytes => return Ok(DeliveryEnd::no_effect("it said \0 and no more")),
            Mood::RefusesForGood => return Ok(DeliveryEnd::rejected("422")),
            Mood::Confirms | Mood::LosesAnswer | Mood::Panics | Mood::Hangs => self.does(&delivery),
        }
        match mood {
            Mood::LosesAnswer => Err("reset by peer".into()),
            Mood::Panics => panic!("on purpose"),
            Mood::Hangs => std::future::pending().await,
            _ => Ok(DeliveryEnd::Delivered(Delivered::known_as(format!("ref {}", delivery.id())))),
        }
    }
}

impl OutboxStage {
    pub(super) async fn new() -> Self {
        Self::with(CountingReceiver::default()).await
    }

    pub(super) async fn without_keys() -> Self {
        Self::with(CountingReceiver { takes_no_key: true, ..CountingReceiver::default() }).await
    }

    async fn with(receiver: CountingReceiver) -> Self {
        let url = database().await;
        sql(&url, "UPDATE retrysafe_test.clock SET still = true, ms = 1700000000000").await;
        let pool = PgPool::connect(&url).await.unwrap();
        let outbox = Outbox::new(pool.clone());
        Self { url, pool, outbox, receiver: Arc::new(receiver) }
    }

    /// Stages an effect in a transaction of its own.
    pub(super) async fn stage(&self, effect: Effect) -> Staged {
        let mut tx = self.pool.begin().await.unwrap();
        let staged = self.outbox.stage(&mut tx, effect).await.unwrap();
        tx.commit().await.unwrap();
        self.outbox.wake();
        staged
    }

    /// What is known of the receiver.
    pub(super) fn known(&self) -> Receiver {
        let known = if self.receiver.takes_no_key {
            Receiver::takes_no_key()
        } else {
            Receiver::remembers_keys_for(HOUR)
        };
        known.deadline(Duration::from_secs(5)).backoff(Duration::ZERO, Duration::ZERO)
    }

    /// A worker that delivers effects of kind `mail` to the receiver.
    pub(super) fn worker(&self, known: Receiver) -> Worker {
        let receiver = Arc::clone(&self.receiver);
        Worker::new(self.pool.clone())
            .deliver("mail", known, move |delivery| Arc::clone(&receiver).receives(delivery))
    }

    /// Turns the clock of the database on.
    pub(super) async fn later(&self, by: Duration) {
        let by = by.as_millis();
        sql(&self.url, &format!("UPDATE retrysafe_test.clock SET ms = ms + {by}")).await;
    }

    pub(super) async fn count(&self, state: i16) -> i64 {
        let table = if state < 5 { "effect" } else { "effect_done" };
        number(&self.url, &format!("SELECT count(*) FROM retrysafe.{table} WHERE state = {state}"))
            .await
    }

    /// Waits until so many effects are in a state.
    pub(super) async fn wait_for(&self, state: i16, effects: i64) {
        let waiting = async {
            while self.count(state).await != effects {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        if tokio::time::timeout(PATIENCE, waiting).await.is_err() {
            let all = "SELECT coalesce(string_agg(concat_ws(' ', id, state, fence, last_error), '; '), 'none')
                FROM retrysafe.effect";
            let all: String = sqlx::query_scalar(all).fetch_one(&self.pool).await.unwrap();
            panic!("no {effects} effects are in state {state}; there are: {all}");
        }
    }
}

pub(super) fn mail(content: &str) -> Effect {
    Effect::new("mail").body("text/plain", content.to_owned())
}
