//! What goes wrong between a worker and a receiver?
//!
//! A packet that was sent is on its way, also if its sender has given up or died. It may be lost, late or doubled, the
//! receiver may work for longer than anybody waits, turn it away, fail, and its answer may be lost.

use retrysafe_core::effect::EffectEnd;

use super::worker::retry_pause;
use super::{EffectWorld, Event};
use crate::effects::receiver::{Arrival, Heard, PacketFate, Seen};
use crate::fault::Fault;
use crate::history::EffectEvent;
use crate::options::Kind;

/// A packet, and what its sender will hear.
pub(super) struct Packet {
    pub worker: u8,
    pub epoch: u16,
    pub seen: Seen,
    heard: Option<Heard>,
    /// Whether its sender waits no more.
    pub is_closed: bool,
}

impl EffectWorld {
    /// Sends an effect to its receiver.
    pub(super) fn send(&mut self, worker: u8, epoch: u16, effect: u8, fence: u32, kind: u8) {
        let packet = self.packets.len() as u16;
        let fate = self.draw_fate(kind);
        let window_ms = self.plan.window_ms(kind);
        let is_made_up = self.planted.is(Fault::EffectNewKeyPerDelivery);
        let key = if is_made_up { 1_000 + u32::from(packet) } else { effect.into() };
        let seen = Seen { effect, fence, key, window_ms, fate };
        self.note(EffectEvent::Sent { packet, effect, fence, worker, epoch });
        self.packets.push(Packet { worker, epoch, seen, heard: None, is_closed: false });
        if let Some(way_ms) = fate.way_ms {
            self.after(way_ms, Event::PacketArrives(packet));
            if let Some(copy_ms) = fate.copy_ms {
                self.after(copy_ms, Event::PacketArrives(packet));
            }
        }
        let waits = if self.planted.is(Fault::EffectLeaseNotRenewed) { 20 } else { 1 };
        self.after(waits * self.plan.deadline_ms, Event::DeadlinePasses(packet));
    }

    fn draw_fate(&mut self, kind: u8) -> PacketFate {
        let plan = self.plan;
        let is_lost = self.strike(Kind::UpstreamLost, 10);
        let is_late = self.strike(Kind::UpstreamSlow, 15);
        let way_ms = if is_late {
            self.chance.scaled(10, plan.way_max_ms)
        } else {
            self.chance.between(1, 20)
        };
        let is_slow = self.strike(Kind::UpstreamSlow, 15);
        let work_ms = if is_slow {
            self.chance.scaled(10, plan.work_max_ms)
        } else {
            self.chance.between(1, 20)
        };
        let remembers = plan.resend_for(kind).is_some();
        let is_doubled = remembers && self.strike(Kind::Disconnect, 10);
        let copy_ms = is_doubled.then(|| self.chance.between(1, plan.way_max_ms));
        let is_answer_lost = self.strike(Kind::AnswerLost, 15);
        let back_ms = (!is_answer_lost).then(|| self.chance.between(1, 20));
        PacketFate {
            way_ms: (!is_lost).then_some(way_ms),
            copy_ms,
            is_turned_away: self.strike(Kind::UpstreamErrors, 15),
            work_ms,
            back_ms,
            is_error: self.strike(Kind::UpstreamErrors, 12),
            fails_before: self.strike(Kind::UpstreamErrors, 8),
        }
    }

    pub(super) fn packet_arrives(&mut self, number: u16) {
        let Some(packet) = self.packets.get(usize::from(number)) else { return };
        let seen = packet.seen;
        match self.receivers.arrives(&seen, self.now) {
            Arrival::Works => self.after(seen.fate.work_ms, Event::PacketWorks(number)),
            Arrival::Confirms => self.answer(number, Heard::Confirmed),
            Arrival::InUse | Arrival::Fails => self.answer(number, Heard::Error),
            Arrival::Refuses => self.answer(number, Heard::Refused),
            Arrival::TurnsAway => self.answer(number, Heard::TurnedAway),
            Arrival::Bounces => {}
        }
    }

    pub(super) fn packet_works(&mut self, number: u16) {
        let Some(packet) = self.packets.get(usize::from(number)) else { return };
        let seen = packet.seen;
        self.receivers.does(&seen);
        self.note(EffectEvent::Happened { packet: number, effect: seen.effect });
        let heard = if seen.fate.is_error { Heard::Error } else { Heard::Confirmed };
        self.answer(number, heard);
    }

    fn answer(&mut self, number: u16, heard: Heard) {
        let Some(packet) = self.packets.get_mut(usize::from(number)) else { return };
        // The answer to a copy reaches nobody.
        if packet.heard.is_none() {
            packet.heard = Some(heard);
            if let Some(back_ms) = packet.seen.fate.back_ms {
                self.after(back_ms, Event::AnswerArrives(number));
            }
        }
    }

    pub(super) fn answer_arrives(&mut self, number: u16) {
        let Some(packet) = self.packets.get(usize::from(number)) else { return };
        let Packet { worker, epoch, is_closed, heard, .. } = *packet;
        if is_closed || !self.is_awake(worker, epoch, Event::AnswerArrives(number)) {
            return;
        }
        let retry_after = retry_pause(&mut self.chance, &self.plan);
        let end = match heard {
            Some(Heard::Confirmed) => EffectEnd::Delivered,
            Some(Heard::Refused) => EffectEnd::Rejected,
            Some(Heard::TurnedAway) => EffectEnd::NoEffect { retry_after },
            Some(Heard::Error) | None => EffectEnd::NoAnswer { retry_after },
        };
        self.delivery_ends(number, end);
    }

    pub(super) fn deadline_passes(&mut self, number: u16) {
        let Some(packet) = self.packets.get(usize::from(number)) else { return };
        let Packet { worker, epoch, is_closed, seen, .. } = *packet;
        if is_closed || !self.is_awake(worker, epoch, Event::DeadlinePasses(number)) {
            return;
        }
        self.note(EffectEvent::GivenUp { packet: number, effect: seen.effect });
        let retry_after = retry_pause(&mut self.chance, &self.plan);
        self.delivery_ends(number, EffectEnd::NoAnswer { retry_after });
    }
}
