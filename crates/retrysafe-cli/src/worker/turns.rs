//! Whose turn is it at a destination?
//!
//! The effects of one kind may go to many receivers, and one that is slow or strict must not be sent everything at once. An effect waits a
//! moment for its turn. Then it is given back, so that it takes no place from effects for others. The limits count in this process
//! alone.

use std::collections::HashMap;
use std::num::NonZeroU32;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::Instant;

use crate::config::destinations::Destination;

/// How long an effect waits for its turn: long enough that those which are given back are no load for the database.
const WAIT_MAX: Duration = Duration::from_secs(1);

/// How many destinations are remembered before those are forgotten that nobody waits for.
const REMEMBERED_MAX: usize = 1_024;

/// The turns at all destinations of one kind.
#[derive(Debug)]
pub(super) struct Turns {
    at_once: Option<NonZeroU32>,
    per_second: Option<NonZeroU32>,
    queues: Mutex<HashMap<(String, u16), Arc<DestinationQueue>>>,
}

#[derive(Debug)]
struct DestinationQueue {
    places: Arc<Semaphore>,
    /// When the next delivery may begin.
    next_at: Mutex<Instant>,
}

/// The turn of one delivery, which ends when this is dropped.
#[derive(Debug)]
pub(super) struct Turn {
    _place: Option<OwnedSemaphorePermit>,
}

impl Turns {
    pub(super) fn new(at_once: Option<NonZeroU32>, per_second: Option<NonZeroU32>) -> Self {
        Self { at_once, per_second, queues: Mutex::default() }
    }

    /// Waits a moment for a turn, at most this long; none if it did not come. That takes the whole moment, so that what is given
    /// back is not claimed again at once.
    pub(super) async fn wait_for(
        &self,
        destination: &Destination,
        at_most: Duration,
    ) -> Option<Turn> {
        if self.at_once.is_none() && self.per_second.is_none() {
            return Some(Turn { _place: None });
        }
        let latest = Instant::now() + WAIT_MAX.min(at_most);
        let queue = self.queue(destination);
        let place = Arc::clone(&queue.places).acquire_owned();
        let place = tokio::time::timeout_at(latest, place).await.ok()?.ok()?;
        if let Some(per_second) = self.per_second {
            let pause = Duration::from_secs(1) / per_second.get();
            let Some(begin_at) = queue.reserve(pause, latest) else {
                drop(place);
                tokio::time::sleep_until(latest).await;
                return None;
            };
            tokio::time::sleep_until(begin_at).await;
        }
        Some(Turn { _place: Some(place) })
    }

    fn queue(&self, destination: &Destination) -> Arc<DestinationQueue> {
        let mut queues = self.queues.lock().unwrap_or_else(PoisonError::into_inner);
        let now = Instant::now();
        if queues.len() >= REMEMBERED_MAX {
            queues.retain(|_, queue| Arc::strong_count(queue) > 1 || queue.is_busy(now));
        }
        let places = self.at_once.and_then(|number| usize::try_from(number.get()).ok());
        let new = || {
            let places = places.unwrap_or(Semaphore::MAX_PERMITS);
            Arc::new(DestinationQueue {
                places: Arc::new(Semaphore::new(places)),
                next_at: Mutex::new(now),
            })
        };
        let name = (destination.host.clone(), destination.port);
        Arc::clone(queues.entry(name).or_insert_with(new))
    }
}

impl DestinationQueue {
    /// When a delivery may begin, if that is not too late. The next one begins a pause later.
    fn reserve(&self, pause: Duration, latest: Instant) -> Option<Instant> {
        let mut next_at = self.next_at.lock().unwrap_or_else(PoisonError::into_inner);
        let begin_at = (*next_at).max(Instant::now());
        if begin_at > latest {
            return None;
        }
        *next_at = begin_at + pause;
        Some(begin_at)
    }

    /// Whether a delivery that came now would have to wait, or holds a place.
    fn is_busy(&self, now: Instant) -> bool {
        let next_at = *self.next_at.lock().unwrap_or_else(PoisonError::into_inner);
        next_at > now || Arc::strong_count(&self.places) > 1
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::destinations::Destinations;

    fn destination(url: &str) -> Destination {
        let any = Destinations::of_any_host();
        any.choose(Some(url)).unwrap()
    }

    fn turns(at_once: u32, per_second: u32) -> Turns {
        Turns::new(NonZeroU32::new(at_once), NonZeroU32::new(per_second))
    }

    #[tokio::test(start_paused = true)]
    async fn a_destination_has_so_many_deliveries_and_others_do_not_wait_for_it() {
        let turns = turns(2, 0);
        let slow = destination("https://slow.example/a");
        let one = turns.wait_for(&slow, WAIT_MAX).await.unwrap();
        let _two = turns.wait_for(&destination("https://slow.example/b"), WAIT_MAX).await.unwrap();
        assert!(turns.wait_for(&slow, WAIT_MAX).await.is_none(), "it is given back");
        let began = Instant::now();
        assert!(turns.wait_for(&destination("https://other.example/"), WAIT_MAX).await.is_some());
        assert_eq!(began.elapsed(), Duration::ZERO);
        drop(one);
        assert!(turns.wait_for(&slow, WAIT_MAX).await.is_some());
    }

    #[tokio::test(start_paused = true)]
    async fn a_destination_is_begun_so_often_in_a_second() {
        let turns = turns(0, 4);
        let strict = destination("https://strict.example/");
        let began = Instant::now();
        for number in 0..20 {
            drop(turns.wait_for(&strict, WAIT_MAX).await.unwrap());
            assert_eq!(began.elapsed(), Duration::from_millis(250) * number);
        }
        // Of many that come at once, those are given back whose turn is more than a moment away.
        let turns = Arc::new(self::turns(0, 4));
        let mut tasks = tokio::task::JoinSet::new();
        for _ in 0..50 {
            let (turns, strict) = (Arc::clone(&turns), strict.clone());
            tasks.spawn(async move { turns.wait_for(&strict, WAIT_MAX).await.is_some() });
        }
        let began = Instant::now();
        let had = tasks.join_all().await.into_iter().filter(|had| *had).count();
        assert_eq!(had, 5);
        assert_eq!(began.elapsed(), WAIT_MAX, "what is given back is not claimed again at once");
    }

    #[tokio::test(start_paused = true)]
    async fn destinations_that_nobody_waits_for_are_forgotten() {
        let turns = turns(1, 0);
        let held = turns.wait_for(&destination("https://held.example/"), WAIT_MAX).await.unwrap();
        for number in 0..REMEMBERED_MAX * 2 {
            let url = format!("https://h{number}.example/");
            drop(turns.wait_for(&destination(&url), WAIT_MAX).await.unwrap());
        }
        assert!(turns.queues.lock().unwrap().len() <= REMEMBERED_MAX);
        assert!(turns.wait_for(&destination("https://held.example/"), WAIT_MAX).await.is_none());
        drop(held);
    }
}
