//! Are effects delivered, once?

mod crashes;
mod delivering;
mod doors;
mod failover;
mod held_rows;
mod lookups;
mod operator;
mod rules;
mod stage;
mod staging;
