//! Does the Redis store keep the promises of a store, however its servers are arranged?

use crate::kit::bench::{Clustered, Guarded, Single};

retrysafe_core::conformance!(single, Single: Still + Reopen + Damage);
retrysafe_core::conformance!(cluster, Clustered: Still);
retrysafe_core::conformance!(sentinel, Guarded: Still);
