//! Who asks the store, and what does that show?
//!
//! The product's store is not told who asks. What a write says, whose handle it came through and who was
//! granted what shows it; from that the checker's view of owners and their settles is written down.

use retrysafe_core::record::{Answer, Becomes, Happened, Judge, Record, Standing, Write};
use retrysafe_core::store::{Inserted, Stamped, StoreError, Swapped};

use super::answer::exec_of;
use super::records::{Reply, Request};
use super::stage::{Life, State};
use crate::history::{By, Found, NONE, OUTSIDE, Role, SettleHeard, What};

/// Who asks.
#[derive(Clone)]
pub enum Asker {
    /// The layer of a process.
    Layer(Life),
    /// The upkeep of a process.
    Upkeep(Life),
    /// Somebody outside, whom nothing goes wrong for.
    Outside(Role),
}

impl Request {
    pub fn writes(&self) -> bool {
        match self {
            Self::Insert(_) | Self::Swap(_) | Self::Reap(_) => true,
            Self::Load(_) | Self::Scan(_) => false,
        }
    }

    /// Numbers that name a request: its verb and its key.
    pub fn name(&self, state: &State) -> (u64, u64) {
        let key = |id| state.key_of(id).map_or(99, u64::from);
        match self {
            Self::Insert(first) => (0, key(&first.id)),
            Self::Load(id) => (1, key(id)),
            Self::Swap(swap) => (2, key(&swap.0.id)),
            Self::Scan(_) => (3, 99),
            Self::Reap(_) => (4, 99),
        }
    }

    /// The attempt of a client for which it would begin.
    fn begins_for(&self) -> Option<u16> {
        match self {
            Self::Insert(first) => conn_of(first.request_id.as_deref()),
            Self::Swap(swap) => match &swap.1.what {
                Some(Happened::Began(request_id)) => conn_of(request_id.as_deref()),
                Some(_) | None => None,
            },
            Self::Load(_) | Self::Scan(_) | Self::Reap(_) => None,
        }
    }

    /// What an owner settles with it: the record that it read, the standing and the body.
    fn settles(&self, state: &State) -> Option<(u32, Standing, u16)> {
        let Self::Swap(swap) = self else { return None };
        let (from, write) = &**swap;
        let Some(Happened::Settled(standing, _)) = &write.what else { return None };
        let fence = from.fence.0 as u32;
        let is_owner = state.granted.contains(&fence);
        is_owner.then(|| (owner_of(state, fence, write), *standing, body_of(write)))
    }
}

/// In which role a write is asked for. The store is not told; what the write says and who was
/// granted what shows it.
pub fn role_of(state: &State, key: u8, from: &Record, write: &Write, asker: &Asker) -> Role {
    if let Asker::Outside(role) = asker {
        return *role;
    }
    let fence = from.fence.0 as u32;
    match &write.what {
        None => Role::Owner { fence },
        Some(Happened::Began(request_id)) => {
            Role::Begin { conn: conn_of(request_id.as_deref()).unwrap_or(NONE) }
        }
        Some(Happened::Settled(..)) => {
            if state.granted.contains(&fence) {
                Role::Owner { fence: owner_of(state, fence, write) }
            } else {
                Role::Withdraw
            }
        }
        Some(Happened::Doubted(_)) => match asker {
            Asker::Layer(_) => Role::Begin { conn: NONE },
            Asker::Upkeep(_) | Asker::Outside(_) => Role::Sweeper,
        },
        Some(Happened::LateResult(late)) => Role::Owner { fence: late.fence.0 as u32 },
        Some(Happened::Advanced(_)) => Role::Owner { fence },
        Some(Happened::LookedUp(_)) => Role::Reader,
        Some(Happened::Resolved(_, Judge::Webhook, reason)) => match evidence_of(reason) {
            Some((fence, evidence)) => Role::Judge { fence, evidence },
            None => Role::Reader,
        },
        Some(Happened::Resolved(_, Judge::Reconciler | Judge::Operator, reason)) => {
            let evidence = match &**reason {
                "found as executed" => Found::Effect,
                "proven not to be executed" => Found::Burnt,
                _ => Found::Absence,
            };
            let mine = state.findings.iter().rev().filter(|finding| {
                asker.by(Role::Reader).gateway == finding.gateway
                    && finding.key == key
                    && finding.found == evidence
            });
            let about: Vec<_> = mine.map(|finding| finding.fence).collect();
            let fence =
                if about.contains(&fence) { fence } else { about.first().copied().unwrap_or(0) };
            Role::Judge { fence, evidence }
        }
        Some(Happened::Expired(_)) => Role::Expirer,
    }
}

/// Whose settle it is. An answer's bytes say whose execution it is of, whatever record it lands on.
fn owner_of(state: &State, fence: u32, write: &Write) -> u32 {
    let of_body = state.execs.get(usize::from(body_of(write))).and_then(|exec| exec.fence);
    of_body.unwrap_or(fence)
}

fn body_of(write: &Write) -> u16 {
    let Becomes::Completed(Answer::Kept(response)) = &write.becomes else { return NONE };
    exec_of(&response.body)
}

pub fn conn_of(request_id: Option<&str>) -> Option<u16> {
    request_id.and_then(|text| text.strip_prefix('c')).and_then(|text| text.parse().ok())
}

/// An owner asks for a settle, or hears that it is too late for one.
pub fn note_asked(state: &mut State, request: &Request, asker: &Asker) {
    let Asker::Layer(_) = asker else { return };
    if let Some((fence, standing, body)) = request.settles(state) {
        state.wants_to_settle(fence, standing);
        state.record(What::SettleAsked { fence, standing, body });
    }
    if let Request::Swap(swap) = request
        && let Some(Happened::LateResult(late)) = &swap.1.what
    {
        let contradiction = matches!(
            (late.standing, swap.0.standing()),
            (Standing::Completed, Standing::FailedRetryable)
                | (Standing::FailedRetryable, Standing::Completed)
        );
        let heard = SettleHeard::Lost { contradiction };
        state.record(What::SettleHeard { fence: late.fence.0 as u32, heard });
    }
}

/// The layer has its answer.
pub fn note_heard(
    state: &mut State,
    request: &Request,
    result: &Result<Stamped<Reply>, StoreError>,
    asker: &Asker,
) {
    let Asker::Layer(life) = asker else { return };
    if let Some(conn) = request.begins_for() {
        let granted = match result.as_ref().map(|stamped| &stamped.value) {
            Ok(Reply::Inserted(Inserted::New(record)) | Reply::Swapped(Swapped::Done(record))) => {
                Some(record.fence.0 as u32)
            }
            Ok(_) => None,
            Err(error) => {
                if let Some(conn) = state.conn(conn) {
                    conn.failed = true;
                }
                let ambiguous = error.may_have_applied();
                state.record(What::BeginFailed { conn, ambiguous });
                None
            }
        };
        if let Some(fence) = granted {
            state.granted.push(fence);
            let Life { gateway, epoch, .. } = *life;
            state.record(What::Begun { conn, gateway, epoch, fence });
        }
    }
    let Some((fence, standing, _)) = request.settles(state) else { return };
    let heard = match result.as_ref().map(|stamped| &stamped.value) {
        Ok(Reply::Swapped(Swapped::Lost(Some(current)))) => {
            let is_repeated = current.fence.0 as u32 == fence && current.standing() == standing;
            is_repeated.then_some(SettleHeard::Done)
        }
        Ok(Reply::Swapped(Swapped::Done(_))) => Some(SettleHeard::Done),
        Ok(_) => None,
        Err(error) => Some(SettleHeard::Failed { ambiguous: error.may_have_applied() }),
    };
    if let Some(heard) = heard {
        if heard == SettleHeard::Done {
            state.settled(fence, standing);
        }
        state.record(What::SettleHeard { fence, heard });
    }
}

impl Asker {
    /// Who it is, in this role.
    pub fn by(&self, role: Role) -> By {
        match self {
            Self::Layer(life) | Self::Upkeep(life) => {
                By { gateway: life.gateway, epoch: life.epoch, role }
            }
            Self::Outside(_) => By { gateway: OUTSIDE, epoch: 0, role },
        }
    }
}

/// What the verdict of an event goes by, as the reason of the verdict names the event.
fn evidence_of(reason: &str) -> Option<(u32, Found)> {
    let event = reason.strip_prefix("event ")?.split(' ').next()?;
    let mut parts = event.split('-');
    let found = match parts.next()? {
        "done" => Found::Effect,
        "refused" => Found::Burnt,
        _ => return None,
    };
    Some((parts.next()?.parse().ok()?, found))
}
