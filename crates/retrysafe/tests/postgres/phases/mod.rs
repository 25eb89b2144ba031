//! Does an operation of several phases take effect once, wherever it is broken off?

mod begins;
mod breaks;
mod calls;
mod completer;
mod given_up;
mod late_owners;
mod layer;
mod limits;
mod results;
mod rides;
mod transactions;
mod versions;
