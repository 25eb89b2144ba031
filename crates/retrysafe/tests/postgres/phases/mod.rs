//! Does an operation of several phases take effect once, wherever it is broken off?

mod breaks;
mod calls;
mod completer;
mod late_owners;
mod layer;
mod rides;
mod transactions;
mod versions;
