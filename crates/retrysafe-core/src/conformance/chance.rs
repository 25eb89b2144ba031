//! Where does a random case take its numbers from?
//!
//! From a seed that its failure prints. `RETRYSAFE_SEED=<seed>` repeats the run.

/// The variable that repeats a random case.
pub const SEED_VARIABLE: &str = "RETRYSAFE_SEED";

/// Numbers that look random and follow from a seed: SplitMix64, because it fits in three lines and
/// any seed is a good one.
#[derive(Clone, Debug)]
pub struct Chance(u64);

impl Chance {
    /// The numbers of this seed.
    pub const fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// The next number.
    pub fn number(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// A number below `bound`, which is not zero. Small bounds only, so the bias does not matter.
    pub fn below(&mut self, bound: usize) -> usize {
        (self.number() % bound as u64) as usize
    }

    /// Whether something happens that happens `per_mille` times in a thousand.
    pub fn happens(&mut self, per_mille: usize) -> bool {
        self.below(1_000) < per_mille
    }

    /// One of these.
    pub fn pick<'a, T>(&mut self, all: &'a [T]) -> &'a T {
        &all[self.below(all.len())]
    }
}

/// A seed: the one asked for by [`SEED_VARIABLE`], or a new one.
///
/// # Panics
///
/// If the variable is set and is not a number: a run that was meant to be repeated must not be
/// another one.
#[expect(clippy::disallowed_methods, reason = "a test may be repeated from the outside")]
#[expect(clippy::disallowed_types, reason = "the one source of chance in std")]
pub(super) fn seed() -> u64 {
    use std::hash::{BuildHasher as _, Hasher as _};
    match std::env::var(SEED_VARIABLE) {
        Ok(text) => text.parse().unwrap_or_else(|_| panic!("{SEED_VARIABLE} is not a number")),
        Err(_) => std::hash::RandomState::new().build_hasher().finish(),
    }
}

/// Runs something random, and says how to repeat it if it fails.
///
/// # Panics
///
/// If it panics, with its message and the seed.
pub(super) async fn repeatable(seed: u64, run: impl Future<Output = ()> + Send + 'static) {
    if let Err(failed) = tokio::spawn(run).await {
        let failure = failed.into_panic();
        let message = failure
            .downcast_ref::<String>()
            .map(String::as_str)
            .or_else(|| failure.downcast_ref::<&str>().copied())
            .unwrap_or_default();
        panic!("{message} ({SEED_VARIABLE}={seed} repeats it)");
    }
}
