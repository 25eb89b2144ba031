//! Does what a route may hold fit into memory?

use retrysafe::layer::MemoryBudget;

use super::{Complaint, RouteRules};

/// How much memory keyed requests may hold unless something else is said: a quarter of the smallest
/// machine that is rented out.
pub(super) const HELD_BYTES_MAX: usize = 256 << 20;

/// What is wrong with a route whose largest body or answer would never find room.
pub(super) fn too_large(held_bytes_max: usize, route: &RouteRules) -> Vec<Complaint> {
    let RouteRules { path, policy, .. } = route;
    let body_max = MemoryBudget::body_bytes_max(held_bytes_max);
    let answer_max = MemoryBudget::replay_bytes_max(held_bytes_max);
    let complain = |setting: &str, part: &str| {
        let what = format!(
            "is too small for `{setting}` on {path}, which may be {part} of it at the most: raise \
             `held_bytes_max` or lower `{setting}`"
        );
        Complaint::new("held_bytes_max", what)
    };
    let body = (policy.request_bytes_max > body_max).then(|| complain("request_bytes_max", "half"));
    let answer = (policy.response_bytes_max > answer_max)
        .then(|| complain("response_bytes_max", "a quarter"));
    body.into_iter().chain(answer).collect()
}

/// Whether two routes may hold the same, so that one complaint is about both.
pub(super) fn is_alike(one: &RouteRules, other: &RouteRules) -> bool {
    let sizes =
        |route: &RouteRules| (route.policy.request_bytes_max, route.policy.response_bytes_max);
    sizes(one) == sizes(other)
}
