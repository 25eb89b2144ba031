//! What is the server told of deliveries that have ended?
//!
//! How they ended, in one statement for a batch, and what was claimed and not sent. What it has not heard is told again; the fence makes
//! that harmless.

use super::store::{
    BATCH_MAX, EffectStore, EffectStoreError, Held, Told, note_failure, within_time,
};

/// What the server has heard of what was to be told.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Heard {
    Everything,
    /// Everything but what is about effects that another transaction holds at this moment.
    AllButHeld,
    /// Something is left that the server did not answer.
    NotEverything,
}

/// What the server is to be told.
#[derive(Default)]
pub(super) struct Ended {
    pub(super) to_tell: Vec<Told>,
    pub(super) to_hand_back: Vec<Held>,
    /// How many of both the server was told and has not heard.
    pub(super) unheard: usize,
}

impl Ended {
    pub(super) fn is_empty(&self) -> bool {
        self.to_tell.is_empty() && self.to_hand_back.is_empty()
    }
}

/// Who tells which server, and about which kind.
pub(super) struct Teller<'a, S> {
    pub(super) store: &'a S,
    pub(super) kind: &'a str,
    pub(super) failures_max: u32,
}

impl<S: EffectStore> Teller<'_, S> {
    /// Says how deliveries ended, and gives back what was not sent.
    pub(super) async fn tell(&self, ended: &mut Ended) -> Heard {
        let told = self.tell_and_hand_back(ended).await;
        ended.unheard = ended.to_tell.len().saturating_add(ended.to_hand_back.len());
        match told {
            Ok(()) if ended.is_empty() => Heard::Everything,
            Ok(()) => Heard::AllButHeld,
            Err(error) => {
                note_failure(self.kind, &error);
                Heard::NotEverything
            }
        }
    }

    /// What another transaction holds is left for the next time, and keeps nothing else waiting.
    async fn tell_and_hand_back(&self, ended: &mut Ended) -> Result<(), EffectStoreError> {
        let mut untold = ended.to_tell.len();
        while untold > 0 {
            let most = untold.min(BATCH_MAX);
            let batch = ended.to_tell.get(..most).unwrap_or_default();
            let held_by_others = match self.finish(batch).await {
                Err(error @ EffectStoreError::Refused(_)) => {
                    note_failure(self.kind, &error);
                    self.tell_one_by_one(batch).await?
                }
                heard => heard?,
            };
            let told: Vec<Told> = ended.to_tell.drain(..most).collect();
            let again = told.into_iter().filter(|told| held_by_others.contains(&told.held.id));
            // Behind the others, which are told in this turn.
            ended.to_tell.extend(again);
            untold = untold.saturating_sub(most);
        }
        if !ended.to_hand_back.is_empty() {
            let hand_back = self.store.hand_back(&ended.to_hand_back);
            let held_by_others = within_time(hand_back).await?;
            ended.to_hand_back.retain(|held| held_by_others.contains(&held.id));
        }
        Ok(())
    }

    async fn finish(&self, told: &[Told]) -> Result<Vec<i64>, EffectStoreError> {
        within_time(self.store.finish(told, self.failures_max)).await
    }

    /// The server has refused a batch. One text that it cannot keep must not cost the ends of all the others: each is
    /// told by itself, and what is refused again is told without its texts. Returns what somebody else holds.
    async fn tell_one_by_one(&self, batch: &[Told]) -> Result<Vec<i64>, EffectStoreError> {
        let mut held_by_others = Vec::new();
        for told in batch {
            let heard = match self.finish(std::slice::from_ref(told)).await {
                Err(EffectStoreError::Refused(_)) => {
                    let bare = Told { reference: None, error: None, ..told.clone() };
                    self.finish(&[bare]).await
                }
                // What was not answered is told again, with everything that is to be kept.
                heard => heard,
            };
            held_by_others.extend(heard?);
        }
        Ok(held_by_others)
    }
}
