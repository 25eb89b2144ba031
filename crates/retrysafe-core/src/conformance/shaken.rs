//! Does a store keep its promises when everybody takes turns?
//!
//! The same bench with its store behind [`Faulty`], which delays operations at random and lets none
//! fail. Every promise must hold there too, and a store that answers at once meets interleavings
//! that it would never see otherwise.

use std::sync::Arc;
use std::time::Duration;

use super::{Bench, Damage, Fault, Faulty, Owners, Reopen, Still};
use crate::scope::Id;

/// How many operations in a thousand are delayed.
const DELAYS_PER_MILLE: usize = 500;

/// A bench whose store delays operations at random.
#[derive(Debug)]
pub struct Shaken<B: Bench> {
    bench: B,
    /// None only while the store is being reopened, when nobody may hold it.
    store: Option<Arc<Faulty<Arc<B::Store>>>>,
}

fn shake<B: Bench>(bench: &B) -> Option<Arc<Faulty<Arc<B::Store>>>> {
    let seed = super::chance::seed();
    let store = Faulty::seeded(bench.store(), seed, DELAYS_PER_MILLE, &[Fault::Delayed]);
    Some(Arc::new(store))
}

impl<B: Bench> Bench for Shaken<B> {
    type Store = Faulty<Arc<B::Store>>;

    async fn fresh() -> Self {
        let bench = B::fresh().await;
        let store = shake(&bench);
        Self { bench, store }
    }

    fn store(&self) -> Arc<Faulty<Arc<B::Store>>> {
        Arc::clone(self.store.as_ref().expect("it is open"))
    }

    async fn advance(&self, by: Duration) {
        self.bench.advance(by).await;
    }
}

impl<B: Still> Still for Shaken<B> {}

impl<B: Damage> Damage for Shaken<B> {
    async fn flip(&self, id: Id, at: usize) {
        self.bench.flip(id, at).await;
    }

    async fn make_newer(&self, id: Id) {
        self.bench.make_newer(id).await;
    }
}

impl<B: Reopen> Reopen for Shaken<B> {
    async fn reopen(&mut self) -> Owners {
        self.store = None;
        let owners = self.bench.reopen().await;
        self.store = shake(&self.bench);
        owners
    }
}
