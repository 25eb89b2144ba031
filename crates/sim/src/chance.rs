//! Where does chance come from?
//!
//! From the seed, and from nowhere else: a history is a pure function of its seed and its options,
//! so whatever it shows can be shown again. The generator is splitmix64: one multiplication chain
//! per draw, no state to warm up, and streams that differ in one bit share nothing.

/// A stream of numbers that look random and are not.
#[derive(Clone, Debug)]
pub struct Chance(u64);

impl Chance {
    /// A stream of a seed. Streams of different purposes are independent.
    pub fn of(seed: u64, purpose: u64) -> Self {
        let mut chance = Self(seed ^ purpose.wrapping_mul(0xd6e8_feb8_6659_fd93));
        chance.next();
        chance
    }

    /// The next 64 bits.
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below `n`; zero if `n` is zero.
    pub fn below(&mut self, n: u64) -> u64 {
        ((u128::from(self.next()) * u128::from(n)) >> 64) as u64
    }

    /// A number from `low` to `high`, both included.
    pub fn between(&mut self, low: u64, high: u64) -> u64 {
        low + self.below(high.saturating_sub(low).saturating_add(1))
    }

    /// A number from `low` to `high` whose order of magnitude is drawn first, so that small and
    /// large lengths are equally frequent.
    pub fn scaled(&mut self, low: u64, high: u64) -> u64 {
        let doublings = (high / low.max(1)).max(1).ilog2();
        let floor = low << self.below(u64::from(doublings) + 1);
        self.between(floor, floor.saturating_mul(2).min(high).max(floor))
    }

    /// True `percent` times of a hundred.
    pub fn percent(&mut self, percent: u64) -> bool {
        self.below(100) < percent
    }

    /// One of these; the first if there are none to choose from.
    pub fn pick<T: Copy>(&mut self, first: T, others: &[T]) -> T {
        match self.below(others.len() as u64 + 1) {
            0 => first,
            at => others.get(at as usize - 1).copied().unwrap_or(first),
        }
    }

    /// A number from 0 to 1.
    pub fn unit(&mut self) -> f64 {
        self.below(1 << 20) as f64 / f64::from(1 << 20)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_always_says_the_same_and_its_streams_differ() {
        let draws = |seed, purpose| {
            let mut chance = Chance::of(seed, purpose);
            (0..8).map(move |_| chance.next()).collect::<Vec<_>>()
        };
        assert_eq!(draws(7, 1), draws(7, 1));
        assert_ne!(draws(7, 1), draws(7, 2));
        assert_ne!(draws(7, 1), draws(8, 1));
    }

    #[test]
    fn draws_stay_within_their_bounds() {
        let mut chance = Chance::of(1, 1);
        for _ in 0..10_000 {
            assert!(chance.below(3) < 3);
            assert!((5..=9).contains(&chance.between(5, 9)));
            assert!((10..=5_000).contains(&chance.scaled(10, 5_000)));
            assert!((0.0..=1.0).contains(&chance.unit()));
        }
        assert_eq!(chance.below(0), 0);
        assert_eq!(chance.between(4, 4), 4);
    }
}
