//! Does the PostgreSQL store keep the promises of a store?

mod common;

use common::bench::Direct;

retrysafe_core::conformance!(postgres, Direct: Still + Damage + Reopen);
