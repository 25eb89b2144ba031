//! Where does chance come from? From a seed, so that inputs can be repeated.

/// A small generator (splitmix64). Good enough to choose mutations; not for secrets.
pub(crate) struct Chance(u64);

/// A seed that differs from run to run.
pub(crate) fn seed_of_now() -> u64 {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    now.map_or(1, |now| u64::from(now.subsec_nanos()) ^ now.as_secs()) % 1_000_000_000
}

impl Chance {
    /// A generator for one of many threads or connections of a run.
    pub(crate) fn of(seed: u64, part: u64) -> Self {
        let mut chance = Self(seed ^ part.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        chance.number();
        chance
    }

    pub(crate) fn number(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// A number below a bound; zero if the bound is.
    pub(crate) fn below(&mut self, bound: usize) -> usize {
        let bound = bound as u64;
        usize::try_from(self.number().checked_rem(bound).unwrap_or(0)).unwrap_or(0)
    }

    /// True once in so many times.
    pub(crate) fn one_in(&mut self, times: usize) -> bool {
        self.below(times) == 0
    }

    /// One of several.
    pub(crate) fn pick<'a, T: ?Sized>(&mut self, several: &[&'a T]) -> Option<&'a T> {
        several.get(self.below(several.len())).copied()
    }

    pub(crate) fn bytes(&mut self, length: usize) -> Vec<u8> {
        (0..length).map(|_| self.number().to_le_bytes()[0]).collect()
    }

    /// Changes bytes in one to four places.
    pub(crate) fn mutate(&mut self, bytes: &mut Vec<u8>, tokens: &[&[u8]]) {
        for _ in 0..=self.below(4) {
            self.mutate_once(bytes, tokens);
        }
    }

    fn mutate_once(&mut self, bytes: &mut Vec<u8>, tokens: &[&[u8]]) {
        let at = self.below(bytes.len() + 1);
        let end = (at + self.below(24)).min(bytes.len());
        match self.below(7) {
            0 => {
                let flipped = 1 << self.below(8);
                if let Some(byte) = bytes.get_mut(at) {
                    *byte ^= flipped;
                }
            }
            1 => drop(bytes.drain(at..end)),
            2 => {
                let again: Vec<u8> = bytes.get(at..end).unwrap_or_default().to_vec();
                drop(bytes.splice(at..at, again));
            }
            3 => {
                let count = self.below(9);
                let random = self.bytes(count);
                drop(bytes.splice(at..at, random));
            }
            4 => bytes.truncate(at),
            _ => {
                // A token at the beginning of a line does the most harm.
                let lines: Vec<usize> = bytes
                    .windows(2)
                    .enumerate()
                    .filter_map(|(at, pair)| (pair == b"\r\n").then_some(at + 2))
                    .collect();
                let at = if self.one_in(2) {
                    at
                } else {
                    lines.get(self.below(lines.len())).copied().unwrap_or(at)
                };
                if let Some(token) = self.pick(tokens) {
                    drop(bytes.splice(at..at, token.iter().copied()));
                }
            }
        }
    }
}
