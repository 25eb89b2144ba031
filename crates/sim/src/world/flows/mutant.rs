//! Where are the planted faults between a flow's run and the engine?
//!
//! Here, and only here: what is decided before the wire, what a commit holds, and which flows a process takes for its own. Nothing of this can reach a build of the product.

use retrysafe_core::machine::flows::SendDecision;
use retrysafe_core::store::{Stamped, StoreError};

use super::super::handle::Handle;
use super::super::wire::{Commit, Parts, Request, Response};
use crate::fault::Fault;
use crate::flow_plan::{NEW_VERSION, OLD_VERSION};

/// The versions that a process goes on with: an old one that does not look takes any.
pub fn known_versions(fault: Option<Fault>, known: &'static [u32]) -> &'static [u32] {
    let is_old = known == [OLD_VERSION];
    if fault == Some(Fault::RunsUnknownVersion) && is_old {
        &[OLD_VERSION, NEW_VERSION]
    } else {
        known
    }
}

/// What is decided before the wire, as a faulty process takes it.
pub fn before_wire(fault: Option<Fault>, decided: SendDecision) -> SendDecision {
    match (fault, decided) {
        (Some(Fault::UncheckedSend), SendDecision::TooLate)
        | (Some(Fault::OtherBytesSent), SendDecision::OtherBytes)
        // Two rules forbid a second call without a key: this one is taken away with the other.
        | (Some(Fault::UnkeyedCallResumed), SendDecision::NotRepeatable) => SendDecision::Send,
        (_, decided) => decided,
    }
}

/// A phase's rows in a commit of their own, and the recovery point in the next one.
pub async fn commit_apart(
    handle: &Handle,
    commit: Commit,
) -> Result<Stamped<Response>, StoreError> {
    let Commit { key, version, reserved, phase, force, .. } = commit;
    let write = commit.write.clone();
    let rows = Commit { key, version, reserved, write, phase, force, parts: Parts::RowsOnly };
    handle.ask(Request::Commit(rows)).await?;
    handle.ask(Request::Commit(Commit { parts: Parts::RecordOnly, ..commit })).await
}
