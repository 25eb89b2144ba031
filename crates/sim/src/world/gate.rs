//! What does every task of a gateway process need?

use std::sync::Arc;
use std::time::Duration;

use retrysafe_core::Policy;
use retrysafe_core::problem::Refusal;
use retrysafe_core::record::Answer;

use super::conn::Reply;
use super::tables::{self, Said, Tables};
use super::{Sim, World};
use crate::fault::Fault;
use crate::history::{By, Class, NONE, Role};
use crate::options::Options;

/// What the tasks of a gateway process share.
#[derive(Clone)]
pub struct Gate {
    pub sim: Sim,
    pub number: u8,
    pub epoch: u16,
    pub options: Arc<Options>,
    pub tables: Arc<Tables>,
    pub policy: Arc<Policy>,
}

impl Gate {
    pub fn by(&self, role: Role) -> By {
        By { gateway: self.number, epoch: self.epoch, role }
    }

    /// The process's monotonic clock.
    pub fn clock(&self) -> u64 {
        self.sim.with(|world| world.clock_of(self.number))
    }

    pub fn fault(&self, fault: Fault) -> bool {
        self.options.fault == Some(fault)
    }

    pub fn answer(&self, conn: u16, reply: Reply) {
        self.sim.with(|world| world.answer(conn, reply));
    }

    pub fn refuse(&self, conn: u16, refusal: &Refusal) {
        let Some((class, said)) = self.tables.refusals.of(refusal) else { return };
        let wait = refusal.retry_after().unwrap_or(0).min(65_535) as u16;
        let Said { status, code } = said;
        self.answer(conn, Reply { class, status, code, body: NONE, retry_after: wait });
    }

    pub fn answer_kept(&self, conn: u16, class: Class, answer: &Answer) {
        let (status, body) = tables::status_and_body(answer);
        match answer {
            Answer::Kept(_) => {
                self.answer(conn, Reply { class, status, code: None, body, retry_after: 0 });
            }
            Answer::NotKept { .. } => {
                let Said { status, code } = self.tables.refusals.gone;
                let reply = Reply { class: Class::Gone, status, code, body, retry_after: 0 };
                self.answer(conn, reply);
            }
        }
    }

    /// The process's own clock, as the product reads it.
    pub fn now(&self) -> Duration {
        Duration::from_millis(self.clock())
    }

    pub async fn sleep(&self, pause: Duration) {
        self.sim.sleep(pause.as_millis().max(1) as u64).await;
    }
}

impl Sim {
    /// The present life of a gateway.
    pub fn gate(&self, number: u8) -> Gate {
        self.with(|world| Gate {
            sim: self.clone(),
            number,
            epoch: world.gateways.get(usize::from(number)).map(|it| it.epoch).unwrap_or_default(),
            options: world.options.clone(),
            tables: world.tables.clone(),
            policy: world.policy.clone(),
        })
    }
}

impl World {
    fn clock_of(&self, gateway: u8) -> u64 {
        match self.gateways.get(usize::from(gateway)) {
            Some(process) => {
                process.frozen_at.unwrap_or(self.now).saturating_add_signed(process.astray_ms)
            }
            None => self.now,
        }
    }
}
