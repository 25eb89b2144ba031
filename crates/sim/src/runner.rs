//! How does one history run, and how is it judged?

use crate::checker::{Checker, Judgement, Rules, Violation};
use crate::options::Options;
use crate::world::{Cost, Executor};

/// Runs histories and judges them.
pub struct Runner {
    executor: Executor,
    checker: Checker,
}

impl Runner {
    pub fn new() -> Self {
        Self { executor: Executor::new(), checker: Checker::new() }
    }

    /// Runs one history. Says what was broken, in the order in which it showed.
    pub fn run(&mut self, options: &Options) -> (Vec<Violation>, Cost) {
        self.judge(options, |judgement| judgement.violations.to_vec())
    }

    /// Runs one history, and shows how it was judged.
    pub fn judge<T>(
        &mut self,
        options: &Options,
        note: impl FnOnce(&Judgement<'_>) -> T,
    ) -> (T, Cost) {
        let Self { executor, checker } = self;
        executor.run(options, |log| note(&checker.judge(Rules::of(options), log)))
    }
}
