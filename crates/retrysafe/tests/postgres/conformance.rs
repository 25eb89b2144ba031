//! Does the PostgreSQL store keep the promises of a store?

use crate::kit::bench::Direct;

retrysafe_core::conformance!(postgres, Direct: Still + Reopen + Damage);
