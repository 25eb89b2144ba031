//! Do the SQL functions keep what the program promises?

mod caller;
mod guards;
mod histories;
mod late_owners;
mod machine;
mod names;
mod quarantine;
mod races;
mod repeats;
#[cfg(feature = "axum")]
mod replay;
mod rights;
mod waits;
