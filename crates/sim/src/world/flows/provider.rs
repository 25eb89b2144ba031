//! What does the provider do with a charge?
//!
//! It works, takes effect and answers, each of which may be late or lost; or it declines. Where it takes our
//! key it remembers a charge from its arrival on, for a while: the same key is answered as before, told to
//! wait while the first is under way, and made a second time once it is forgotten. Effects are written into
//! the history as they happen: they are the ground truth.

use std::task::Poll;

use super::super::wire::STORE_DEADLINE_MS;
use super::super::{Event, TaskNo, World};
use crate::fault::Fault;
use crate::history::What;
use crate::options::Kind;

/// One packet to the provider, and what becomes of it.
pub struct Charge {
    key: u8,
    name: KeyName,
    fence: u32,
    digest: u8,
    gateway: u8,
    epoch: u16,
    waiter: TaskNo,
    declines: bool,
    said: Option<Heard>,
    heard: bool,
}

/// A downstream key: the same on every attempt at one call of one record, and of no other.
#[derive(Clone, Copy, PartialEq, Eq)]
struct KeyName {
    key: u8,
    /// The fence with which the record was born: another generation has other keys.
    birth: u32,
    phase: u8,
    /// Zero; a planted fault has a key of its own for each attempt.
    attempt: u32,
}

/// What the provider remembers of a downstream key.
pub struct Remembered {
    name: KeyName,
    arrived_at: u64,
    end: End,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum End {
    Working(u16),
    Made(u16),
    Declined(u16),
}

/// What a process hears of its charge.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Heard {
    /// It was made, as this one.
    Made(u16),
    /// It was declined, as this one.
    Declined(u16),
    /// The key is in use, or stands for other bytes, or is refused.
    Busy,
    /// Nothing.
    Nothing,
}

/// What the provider says about a charge to whoever asks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Known {
    Made(u16),
    Declined(u16),
    Absent,
    Burnt,
}

impl World {
    /// A process sends a charge, for the present task.
    pub fn send_charge(
        &mut self,
        key: u8,
        phase: u8,
        fence: u32,
        digest: u8,
        (gateway, epoch): (u8, u16),
    ) -> u16 {
        let charge = self.charges.len() as u16;
        let Some(plan) = self.options.flow else { return charge };
        self.record(What::ChargeSent { charge, key, phase, fence, digest, gateway, epoch });
        let own_key = self.options.fault == Some(Fault::NewKeyPerAttempt);
        let attempt = if own_key { fence } else { 0 };
        let name = KeyName { key, birth: self.birth_of(key), phase, attempt };
        let declines = plan.declines && self.chance.percent(30);
        self.charges.push(Charge {
            key,
            name,
            fence,
            digest,
            gateway,
            epoch,
            waiter: self.current,
            declines,
            said: None,
            heard: false,
        });
        if !self.strike(Kind::UpstreamLost, 6) {
            let ms = if self.strike(Kind::UpstreamSlow, 20) {
                self.chance.scaled(10, plan.way_max_ms)
            } else {
                self.chance.between(1, 10)
            };
            self.after(ms, Event::ChargeArrives(charge));
        }
        charge
    }

    /// The fence with which a record was born.
    fn birth_of(&self, key: u8) -> u32 {
        let first = self.store.record(key).and_then(|record| record.timeline.first());
        first.map(|moment| moment.fence.0 as u32).unwrap_or_default()
    }

    pub fn charge_arrives(&mut self, charge: u16) {
        let Some(plan) = self.options.flow else { return };
        let Some(it) = self.charges.get(usize::from(charge)) else { return };
        let (name, digest, declines, fence) = (it.name, it.digest, it.declines, it.fence);
        if self.is_burnt(name.key, fence) {
            self.record(What::Bounced { key: name.key, fence });
            return self.charge_says(charge, Heard::Busy);
        }
        if let Some(window_ms) = plan.window_ms
            && let Some(known) = self.remembered_charge(name, window_ms)
        {
            let same = self.charges.get(usize::from(known.number())).map(|it| it.digest);
            return self.charge_says(
                charge,
                match known {
                    End::Working(_) => Heard::Busy,
                    End::Made(_) | End::Declined(_) if same != Some(digest) => Heard::Busy,
                    End::Made(made) => Heard::Made(made),
                    End::Declined(declined) => Heard::Declined(declined),
                },
            );
        }
        let end = if declines { End::Declined(charge) } else { End::Working(charge) };
        self.provider.push(Remembered { name, arrived_at: self.now, end });
        if declines {
            self.record(What::ChargeDeclined { charge });
            return self.charge_says(charge, Heard::Declined(charge));
        }
        let ms = if self.strike(Kind::UpstreamSlow, 25) {
            self.chance.scaled(20, plan.work_max_ms)
        } else {
            self.chance.between(1, 40)
        };
        self.after(ms, Event::ChargeTakesEffect(charge));
    }

    /// What the provider remembers of a key: the latest charge, if that is not too long ago.
    fn remembered_charge(&self, name: KeyName, window_ms: u64) -> Option<End> {
        let known = self.provider.iter().rfind(|known| known.name == name)?;
        (self.now < known.arrived_at + window_ms).then_some(known.end)
    }

    pub fn charge_takes_effect(&mut self, charge: u16) {
        let Some(it) = self.charges.get(usize::from(charge)) else { return };
        let (key, fence) = (it.key, it.fence);
        // The burn is checked in the same step as the effect, or it would be no proof.
        if self.is_burnt(key, fence) {
            self.record(What::Bounced { key, fence });
            self.provider.retain(|known| known.end != End::Working(charge));
            return self.charge_says(charge, Heard::Busy);
        }
        self.record(What::ChargeMade { charge });
        for known in self.provider.iter_mut().filter(|known| known.end == End::Working(charge)) {
            known.end = End::Made(charge);
        }
        self.charge_says(charge, Heard::Made(charge));
    }

    fn charge_says(&mut self, charge: u16, said: Heard) {
        if let Some(it) = self.charges.get_mut(usize::from(charge)) {
            it.said = Some(said);
        }
        if !self.strike(Kind::UpstreamLost, 10) {
            let ms = self.chance.between(1, 10);
            self.after(ms, Event::ChargeAnswers(charge));
        }
    }

    pub fn charge_answers(&mut self, charge: u16) {
        let Some(it) = self.charges.get_mut(usize::from(charge)) else { return };
        let process = self.gateways.get(usize::from(it.gateway));
        if process.is_some_and(|process| process.up && process.epoch == it.epoch) {
            it.heard = true;
            self.ready.push(it.waiter);
        }
    }

    /// What a process has heard of its charge, until a time.
    pub fn charge_heard(&self, charge: u16, until: u64) -> Poll<Heard> {
        match self.charges.get(usize::from(charge)) {
            Some(Charge { heard: true, said: Some(said), .. }) => Poll::Ready(*said),
            Some(_) if self.now < until => Poll::Pending,
            Some(_) | None => Poll::Ready(Heard::Nothing),
        }
    }

    /// What the provider tells about the charge of a record's phase. With `burn` it refuses this fence
    /// and all before it, if nothing was made of them. None: no answer.
    pub fn ask_provider(&mut self, key: u8, phase: u8, fence: u32, burn: bool) -> Option<Known> {
        let birth = self.birth_of(key);
        let is_it = |known: &&Remembered| {
            (known.name.key, known.name.birth, known.name.phase) == (key, birth, phase)
        };
        let ends = |is_so: fn(End) -> Option<Known>| {
            self.provider.iter().filter(is_it).find_map(|known| is_so(known.end))
        };
        let made = ends(|end| match end {
            End::Made(charge) => Some(Known::Made(charge)),
            End::Working(_) | End::Declined(_) => None,
        });
        let declined = ends(|end| match end {
            End::Declined(charge) => Some(Known::Declined(charge)),
            End::Working(_) | End::Made(_) => None,
        });
        let is_lost = self.strike(Kind::UpstreamLost, 15);
        if let Some(known) = made.or(declined) {
            return (!is_lost).then_some(known);
        }
        if burn {
            while self.burnt.len() <= usize::from(key) {
                self.burnt.push(0);
            }
            if let Some(burnt) = self.burnt.get_mut(usize::from(key)) {
                *burnt = (*burnt).max(fence);
            }
            self.record(What::Burnt { key, fence });
        }
        (!is_lost).then_some(if burn { Known::Burnt } else { Known::Absent })
    }

    /// How long the provider takes to answer a question.
    pub fn provider_thinks_ms(&mut self) -> u64 {
        if self.strike(Kind::UpstreamSlow, 20) {
            self.chance.scaled(10, 2 * self.options.lease_ms)
        } else {
            self.chance.between(2, STORE_DEADLINE_MS / 20)
        }
    }
}

impl End {
    fn number(self) -> u16 {
        match self {
            Self::Working(charge) | Self::Made(charge) | Self::Declined(charge) => charge,
        }
    }
}
