//! What does the stage know of effects?

use std::sync::Arc;

use tokio::sync::{Notify, oneshot};

use crate::effects::receiver::{Heard, Receivers};
use crate::effects::table::EffectTable;

/// Effects, and who receives them.
#[derive(Default)]
pub struct Outbox {
    pub table: EffectTable,
    pub receivers: Receivers,
    pub packets: u16,
    /// How many packets may still arrive or take effect.
    pub packets_on_the_way: u32,
    /// Who waits for an answer that does not come, up to the deadline.
    pub unanswered: Vec<oneshot::Sender<Heard>>,
    /// The marks of which workers have heard.
    pub marks_heard: Vec<(u8, u32)>,
    /// By this workers hear that something was staged.
    pub hint: Arc<Notify>,
    /// By how much the store's clock was turned back, all in all.
    pub turned_back_ms: u64,
}
