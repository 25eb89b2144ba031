//! How are two ways compared fairly on a machine that wanders?
//!
//! Each round times both, one after the other, in alternating order, and keeps the ratio of that round. The median of the
//! ratios is the figure; the range shows how far it can be trusted.

use std::time::{Duration, Instant};

/// Odd, so that the median is a measured round.
pub const ROUNDS: usize = 9;

/// Long enough that the clock and a scheduler tick do not matter.
const ROUND: Duration = Duration::from_millis(150);

/// One comparison: medians in seconds per call, and the ratios of the rounds, sorted.
pub struct Compared {
    pub baseline: f64,
    pub ours: f64,
    pub ratios: Vec<f64>,
}

/// How many times as fast as the baseline we are.
pub fn compare(mut baseline: impl FnMut(), mut ours: impl FnMut()) -> Compared {
    let (mut baselines, mut all_ours, mut ratios) = (Vec::new(), Vec::new(), Vec::new());
    time(&mut baseline);
    time(&mut ours);
    for round in 0..ROUNDS {
        let (slow, fast) = if round % 2 == 0 {
            let slow = time(&mut baseline);
            (slow, time(&mut ours))
        } else {
            let fast = time(&mut ours);
            (time(&mut baseline), fast)
        };
        baselines.push(slow);
        all_ours.push(fast);
        ratios.push(slow / fast);
    }
    ratios.sort_by(f64::total_cmp);
    Compared { baseline: median(baselines), ours: median(all_ours), ratios }
}

impl Compared {
    pub fn row(&self, name: &str) -> String {
        format!(
            "| {name:<34} | {:>9.2} | {:>9.2} | {:>6.2} | {:>5.2} – {:<5.2} |",
            self.baseline * 1e6,
            self.ours * 1e6,
            self.ratios[self.ratios.len() / 2],
            self.ratios[0],
            self.ratios[self.ratios.len() - 1],
        )
    }
}

/// Seconds per call over one round.
fn time(work: &mut impl FnMut()) -> f64 {
    let begun = Instant::now();
    let mut calls = 0u32;
    while begun.elapsed() < ROUND {
        for _ in 0..16 {
            work();
        }
        calls += 16;
    }
    begun.elapsed().as_secs_f64() / f64::from(calls)
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}
