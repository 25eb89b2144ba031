//! What does an event decide about an effect?
//!
//! It goes through the outbox's operator, with the fence that was read before, and is written down there as every decision is.

use retrysafe_core::store::{Store, StoreError};

use super::super::end::{EventEnd, EventSubject};
use super::super::event::{EventName, plain};
use super::super::inbox::NamedEffect;
use super::{EventJudge, JudgedEvent, RACES_MAX, Subject};
use crate::evidence::{DocumentVerdict, JsonDocument};
use crate::outbox::{Delivered, EffectSearch, Operator, OutboxError};

/// The state of effects as the outbox numbers them.
const EFFECT_UNKNOWN: i16 = 3;
const EFFECT_DEAD: i16 = 4;
const EFFECT_DELIVERED: i16 = 5;
const EFFECT_CANCELLED: i16 = 6;

impl<S: Store> EventJudge<'_, S> {
    pub(super) async fn find_effect(&self, name: &EventName) -> Result<Subject, StoreError> {
        let Some(inbox) = self.inbox.filter(|_| !self.provider.kinds.is_empty()) else {
            return Ok(Subject::None);
        };
        Ok(match inbox.effects(name, &self.provider.kinds).await?.as_slice() {
            [] => Subject::None,
            [effect] => Subject::Effect(*effect),
            [_, _, ..] => Subject::Several,
        })
    }

    pub(super) async fn judge_effect(
        &self,
        event: &JudgedEvent<'_>,
        document: &JsonDocument<'_>,
        verdict: &DocumentVerdict,
        name: &EventName,
        mut effect: NamedEffect,
    ) -> Result<EventEnd, StoreError> {
        let Some(inbox) = self.inbox else {
            return Ok(EventEnd::Waits("effects are kept in PostgreSQL alone".into()));
        };
        let who = format!("webhook {}", self.provider.name);
        let operator = Operator::of_store(inbox.store.clone(), &who);
        let reason = format!("event {} of {}", event.event_id, self.provider.name);
        for _ in 0..RACES_MAX {
            let subject =
                EventSubject { name: format!("effect {}", effect.id), fence: effect.fence };
            let found = match (effect.state, verdict) {
                (_, DocumentVerdict::Pending | DocumentVerdict::Inconclusive(_)) => {
                    return Ok(EventEnd::Waits("it says nothing final".into()));
                }
                (EFFECT_UNKNOWN, DocumentVerdict::Executed(_)) => {
                    let reference = self.provider.reference.as_ref();
                    let reference = reference.and_then(|pointer| plain(document, pointer));
                    EffectSearch::Found(
                        reference.map_or_else(Delivered::default, Delivered::known_as),
                    )
                }
                // With one delivery there is one that it can be about. A former delivery that had no effect counts too: the
                // event may be about that one, and be late.
                (EFFECT_UNKNOWN, DocumentVerdict::Declined(_)) if effect.deliveries == Some(1) => {
                    EffectSearch::Unwanted
                }
                (EFFECT_UNKNOWN, DocumentVerdict::NotExecuted) if effect.deliveries == Some(1) => {
                    EffectSearch::NoEffect
                }
                (EFFECT_UNKNOWN, DocumentVerdict::Declined(_) | DocumentVerdict::NotExecuted) => {
                    let why = "it says that something had no effect, and not which of several deliveries: a person must decide";
                    return Ok(EventEnd::Waits(why.into()));
                }
                (EFFECT_DELIVERED, DocumentVerdict::Executed(_))
                | (
                    EFFECT_DEAD | EFFECT_CANCELLED,
                    DocumentVerdict::Declined(_) | DocumentVerdict::NotExecuted,
                ) => {
                    return Ok(EventEnd::Agrees(subject, "it was known"));
                }
                (EFFECT_DELIVERED, DocumentVerdict::Declined(_) | DocumentVerdict::NotExecuted) => {
                    let why = "the effect is delivered, and the event says that it had no effect";
                    return Ok(EventEnd::Contradicts(subject, why));
                }
                (EFFECT_DEAD | EFFECT_CANCELLED, DocumentVerdict::Executed(_)) => {
                    let why = "the effect was given up or taken back, and the event says that it was done";
                    return Ok(EventEnd::Contradicts(subject, why));
                }
                (
                    _,
                    DocumentVerdict::Executed(_)
                    | DocumentVerdict::Declined(_)
                    | DocumentVerdict::NotExecuted,
                ) => return Ok(EventEnd::Waits("what it names is under way".into())),
            };
            match operator.resolve(effect.id, effect.fence, found, &reason).await {
                Ok(()) => return Ok(EventEnd::Applied(subject)),
                Err(OutboxError::Store(error)) => return Err(error),
                // Somebody else has decided: what is there now?
                Err(_) => match self.find_effect(name).await? {
                    Subject::Effect(now) => effect = now,
                    Subject::Record(_) | Subject::Several | Subject::None => {
                        return Ok(EventEnd::Waits("what it names is under way".into()));
                    }
                },
            }
        }
        Ok(EventEnd::Waits("what it names changes all the time".into()))
    }
}
