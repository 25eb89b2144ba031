//! What will handler and upstream do with an execution?
//!
//! What is drawn when a request is sent, and what has become of it.

use retrysafe_core::record::Standing;

use crate::history::SaidSo;

/// One execution, and what becomes of it.
#[derive(Clone)]
pub struct Execution {
    pub key: u8,
    /// Its fence; none where nothing protects it.
    pub fence: Option<u32>,
    pub plan: Plan,
    pub took_effect: bool,
    /// How its owner wants to settle it.
    pub to_settle: Option<Standing>,
    /// How its owner has settled it.
    pub settled: Option<Standing>,
}

/// What handler and upstream will do, drawn when the request is sent.
#[derive(Clone, Copy)]
pub struct Plan {
    pub way_ms: u64,
    pub work_ms: u64,
    pub rest_ms: u64,
    /// Whether the message arrives, and whether its answer does.
    pub arrives: bool,
    pub answers: bool,
    pub effect: bool,
    pub status: u16,
    pub said: SaidSo,
    pub long: bool,
    pub whole: bool,
    pub piece_ms: u64,
    pub handler: Handler,
    pub ttl_ms: Option<u64>,
    pub says: Says,
}

/// What kind of handler it is.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Handler {
    Proxy,
    Panics,
    Errs,
    /// It never waits for anything, and uses up its task's budget.
    Busy,
    Refuses,
}

/// By what a handler says its outcome.
#[derive(Clone, Copy)]
pub enum Says {
    Header,
    Extension,
    Attempt,
}
