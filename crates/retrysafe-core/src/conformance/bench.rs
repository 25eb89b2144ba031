//! What does the suite need of a store's tests?
//!
//! A [`Bench`] is one fresh store and a hand on its clock. What only some stores can do is a trait
//! of its own, named in the macro line: a store that cannot be reopened does not name [`Reopen`],
//! and nobody takes it for one that was tested for it.

use std::sync::Arc;
use std::time::Duration;

use crate::scope::Id;
use crate::store::Store;

/// One fresh store under test.
pub trait Bench: Send + Sync + Sized + 'static {
    /// The store.
    type Store: Store;

    /// A bench with an empty store that nobody else uses.
    fn fresh() -> impl Future<Output = Self> + Send;

    /// The store. A case gives its handles up before it has the store reopened.
    fn store(&self) -> Arc<Self::Store>;

    /// Sets the store's clock forward, for everything that is asked from now on.
    fn advance(&self, by: Duration) -> impl Future<Output = ()> + Send;
}

/// A bench whose clock stands still until it is advanced, so that a case can look at the very
/// millisecond at which something ends.
pub trait Still: Bench {}

/// A bench that can damage a record where it is stored.
pub trait Damage: Bench {
    /// Changes one byte of what is stored for this record: the `at`-th, counted around its length.
    fn flip(&self, id: Id, at: usize) -> impl Future<Output = ()> + Send;

    /// Rewrites what is stored for this record as a sound record of a format that does not exist yet.
    fn make_newer(&self, id: Id) -> impl Future<Output = ()> + Send;
}

/// A bench that can close its store and open it again, as a restart of its process does.
pub trait Reopen: Bench {
    /// Closes the store without a farewell, opens it anew over what is stored, and says what
    /// became of the owners.
    fn reopen(&mut self) -> impl Future<Output = Owners> + Send;
}

/// What became of those who were executing when a store was reopened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Owners {
    /// The store has one owner process, and that was it: what was in progress is unknown now.
    Gone,
    /// The store is shared, and others go on: what was in progress still is.
    Remain,
}
