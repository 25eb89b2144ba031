//! What does a receiver do with a packet?
//!
//! Where it takes our key it remembers it from its first use on, for a while: the same key is confirmed as before, told
//! to wait while the first is under way, and done a second time once it is forgotten. Some effects it refuses, always.

use crate::chance::Chance;

/// What has been drawn for a packet when it was sent. Its copy has the same.
#[derive(Clone, Copy, Debug)]
pub struct PacketFate {
    /// After how long it arrives; none if it is lost.
    pub way_ms: Option<u64>,
    /// How long after that a copy of it arrives. Only a receiver that takes keys is sent copies.
    pub copy_ms: Option<u64>,
    /// Whether the receiver turns it away for now, without keeping its key.
    pub is_turned_away: bool,
    /// How long the receiver works.
    pub work_ms: u64,
    /// After how long its answer is heard; none if it is lost.
    pub back_ms: Option<u64>,
    /// Whether the answer says nothing about the effect, as most 5xx do.
    pub is_error: bool,
    /// Whether it fails before it has done anything, or kept the key. Then the answer is an error.
    pub fails_before: bool,
}

/// What becomes of a packet that arrives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arrival {
    /// The receiver begins to work.
    Works,
    /// It was done before.
    Confirms,
    /// It is under way, or nobody can say.
    InUse,
    /// It is refused for good.
    Refuses,
    /// It is turned away for now.
    TurnsAway,
    /// The receiver fails before it has done anything.
    Fails,
    /// What was sent so far is not done any more.
    Bounces,
}

/// What a sender hears.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Heard {
    Confirmed,
    Refused,
    TurnedAway,
    Error,
}

/// What all receivers remember.
#[derive(Default)]
pub struct Receivers {
    /// Keys in the order of their last use.
    keys: Vec<KeyUse>,
    /// Up to which fence the packets of an effect bounce.
    burnt: Vec<(u8, u32)>,
    /// Effects that are refused.
    refused: Vec<u8>,
    /// Effects that are being done, and that were, for whoever asks.
    working: Vec<u8>,
    done: Vec<u8>,
}

#[derive(Clone, Copy)]
struct KeyUse {
    key: u32,
    first_at: u64,
    is_done: bool,
}

/// A packet, as its receiver sees it.
#[derive(Clone, Copy, Debug)]
pub struct Seen {
    pub effect: u8,
    pub fence: u32,
    /// Its downstream key: the effect's number, unless a planted fault makes keys up.
    pub key: u32,
    pub window_ms: Option<u64>,
    pub fate: PacketFate,
}

impl Receivers {
    pub fn clear(&mut self) {
        self.keys.clear();
        self.burnt.clear();
        self.refused.clear();
        self.working.clear();
        self.done.clear();
    }

    /// Draws which effects are refused.
    pub fn draw_refused(&mut self, chance: &mut Chance, effects: u8) {
        self.refused.extend((0..effects).filter(|_| chance.percent(8)));
    }

    pub fn arrives(&mut self, seen: &Seen, now: u64) -> Arrival {
        let Seen { effect, fence, key, window_ms, fate } = *seen;
        if self.burnt.iter().any(|(burnt, last)| *burnt == effect && fence <= *last) {
            return Arrival::Bounces;
        }
        let window_ms = window_ms.unwrap_or(0);
        let known = self.keys.iter().rfind(|known| known.key == key);
        match known.filter(|known| now < known.first_at + window_ms) {
            Some(KeyUse { is_done: true, .. }) => return Arrival::Confirms,
            Some(KeyUse { is_done: false, .. }) => return Arrival::InUse,
            None => {}
        }
        if self.refused.contains(&effect) {
            return Arrival::Refuses;
        }
        if fate.is_turned_away {
            return Arrival::TurnsAway;
        }
        if fate.fails_before {
            return Arrival::Fails;
        }
        self.keys.push(KeyUse { key, first_at: now, is_done: false });
        self.working.push(effect);
        Arrival::Works
    }

    /// Its work is done.
    pub fn does(&mut self, seen: &Seen) {
        self.done.push(seen.effect);
        if let Some(known) = self.keys.iter_mut().rfind(|known| known.key == seen.key) {
            known.is_done = true;
        }
    }

    /// Whether it was done, for whoever asks.
    pub fn has_done(&self, effect: u8) -> bool {
        self.done.contains(&effect)
    }

    /// Whether it is being done, or was.
    pub fn has_begun(&self, effect: u8) -> bool {
        self.working.contains(&effect)
    }

    /// Refuses everything of an effect that is sent under fences up to this one.
    pub fn burn(&mut self, effect: u8, fence: u32) {
        self.burnt.push((effect, fence));
    }
}
