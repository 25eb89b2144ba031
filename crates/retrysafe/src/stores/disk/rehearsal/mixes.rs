//! What do the scripts dwell on?

use std::collections::BTreeMap;
use std::time::Duration;

use super::script::{Ask, Dice, Step};

/// What happens in a script, in parts of a hundred.
#[derive(Clone, Copy)]
pub(super) struct Mix {
    keys: u64,
    asks: u64,
    body: u64,
    wait: u64,
    reap: u64,
    reopen: u64,
    kill: u64,
    /// Kills inside a commit, and as many flushes that leave their pages clean.
    kill_in: u64,
    ttl: [u64; 2],
    pub(super) room: Option<usize>,
    /// Whether all keys change together, each batch as long as the one before: then a batch of a
    /// former life of a segment lies exactly under the present one.
    is_uniform: bool,
}

const USUAL: Mix = Mix {
    keys: 40,
    asks: 2,
    body: 60,
    wait: 15,
    reap: 15,
    reopen: 2,
    kill: 2,
    kill_in: 4,
    ttl: [1, 20],
    room: None,
    is_uniform: false,
};

/// What the scripts dwell on.
pub(super) const MIXES: [(&str, Mix); 9] = [
    ("few keys, turning over", Mix { keys: 6, wait: 5, reap: 5, ttl: [60, 60], ..USUAL }),
    ("short lives, recycled", Mix { asks: 3, wait: 25, reap: 25, ttl: [1, 5], ..USUAL }),
    (
        "stragglers, copied forward",
        Mix { body: 40, wait: 25, reap: 20, reopen: 1, kill: 3, ttl: [1, 100_000], ..USUAL },
    ),
    (
        "large bodies",
        Mix { keys: 10, body: 12_000, reopen: 3, kill: 3, kill_in: 4, ttl: [2, 10], ..USUAL },
    ),
    (
        "opened again and again",
        Mix { keys: 10, wait: 10, reap: 5, reopen: 20, kill: 20, ttl: [5, 50], ..USUAL },
    ),
    ("large batches", Mix { keys: 60, asks: 12, body: 300, ..USUAL }),
    (
        "a full disk",
        Mix { keys: 30, body: 1_600, wait: 25, reap: 20, ttl: [1, 8], room: Some(4), ..USUAL },
    ),
    ("killed in the middle", Mix { keys: 10, reopen: 5, kill: 5, kill_in: 25, ..USUAL }),
    ("uniform", Mix { keys: 5, wait: 0, reap: 0, ttl: [60, 60], is_uniform: true, ..USUAL }),
];

impl Mix {
    /// The same by one process that nobody kills.
    pub(super) fn in_one_life(self) -> Self {
        Self { reopen: 0, kill: 0, kill_in: 0, ..self }
    }
}

/// How many steps a script has.
const STEPS: usize = 60;

/// After how many calls a process that is killed inside a commit is gone, at most: as a rule before
/// the flush of its batch, now and then while a segment is filled afterwards.
const CALLS_MAX: [u64; 4] = [3, 3, 3, 12];

pub(super) fn script(mix: Mix, seed: u64) -> Vec<Step> {
    let mut dice = Dice(seed);
    (0..STEPS).map(|number| step(mix, &mut dice, number)).collect()
}

fn step(mix: Mix, dice: &mut Dice, number: usize) -> Step {
    let mut roll = dice.below(100);
    let mut is_it = |share: u64| {
        let is_it = roll < share;
        roll = roll.wrapping_sub(share);
        is_it
    };
    if is_it(mix.wait) {
        Step::Wait(Duration::from_millis(500 + dice.below(3_000)))
    } else if is_it(mix.reap) {
        Step::Ask(vec![Ask::Reap { limit: 1 + dice.below(10) as usize }])
    } else if is_it(mix.reopen) {
        Step::Reopen
    } else if is_it(mix.kill) {
        Step::Kill
    } else if is_it(mix.kill_in) {
        let calls_max = CALLS_MAX[dice.below(4) as usize];
        Step::KillIn(asks(mix, dice, number), dice.below(calls_max) as usize)
    } else if is_it(mix.kill_in) {
        Step::LoseFlush(asks(mix, dice, number))
    } else {
        Step::Ask(asks(mix, dice, number))
    }
}

/// Things that are asked at once, each about another key.
fn asks(mix: Mix, dice: &mut Dice, number: usize) -> Vec<Ask> {
    if mix.is_uniform {
        let [ttl, _] = mix.ttl;
        let keys = 0..mix.keys as u32;
        let one = |key| if number == 0 { Ask::Insert { key, ttl } } else { Ask::Touch { key } };
        // A key whose insert came to nothing is tried again.
        return keys
            .map(|key| if number % 7 == 3 { Ask::Insert { key, ttl } } else { one(key) })
            .collect();
    }
    let mut asks: BTreeMap<u32, Ask> = BTreeMap::new();
    for _ in 0..1 + dice.below(mix.asks) {
        let key = dice.below(mix.keys) as u32;
        let ask = match dice.below(10) {
            0..=4 => Ask::Insert { key, ttl: mix.ttl[dice.below(2) as usize] },
            5..=7 => Ask::Complete { key, body: dice.below(mix.body) as usize },
            8 => [Ask::Release { key }, Ask::Doubt { key }][dice.below(2) as usize],
            _ => Ask::Expire { key },
        };
        asks.insert(key, ask);
    }
    asks.into_values().collect()
}
