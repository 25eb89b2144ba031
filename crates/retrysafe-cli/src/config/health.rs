//! How are upstreams asked how they are?

use std::num::NonZeroU32;
use std::time::Duration;

use super::blot;
use super::file::{File, HealthFile};
use super::length::Length;
use super::source::Complaint;

/// How upstreams are asked how they are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Health {
    pub path: String,
    pub every: Duration,
    pub timeout: Duration,
    pub unhealthy_after: NonZeroU32,
    pub healthy_after: NonZeroU32,
}

impl Health {
    /// The table that would say all of it.
    pub(super) fn whole(&self) -> HealthFile {
        HealthFile {
            path: blot::without_values(&self.path),
            every: Some(Length(self.every)),
            timeout: Some(Length(self.timeout)),
            unhealthy_after: Some(self.unhealthy_after),
            healthy_after: Some(self.healthy_after),
        }
    }
}

/// How long after one check of an upstream the next one begins, how long a check may take, and how many in a row count: a crashed
/// upstream is noticed within a quarter of a minute, and one slow answer means nothing.
const HEALTH_EVERY: Duration = Duration::from_secs(5);
const HEALTH_TIMEOUT: Duration = Duration::from_secs(2);
const UNHEALTHY_AFTER: NonZeroU32 = NonZeroU32::MIN.saturating_add(2);
const HEALTHY_AFTER: NonZeroU32 = NonZeroU32::MIN;

/// Reads the table.
pub(super) fn health(file: &File, wrong: &mut Vec<Complaint>) -> Option<Health> {
    let table = file.health.as_ref()?;
    let is_path = table.path.starts_with('/')
        && table.path.parse::<http::uri::PathAndQuery>().is_ok()
        && !table.path.contains('#');
    if !is_path {
        let what = "is not a path of the upstream, such as /healthz";
        wrong.push(Complaint::new("health.path", what));
    }
    let every = table.every.map_or(HEALTH_EVERY, |length| length.0);
    let timeout = table.timeout.map_or(HEALTH_TIMEOUT, |length| length.0);
    for (setting, length) in [("health.every", every), ("health.timeout", timeout)] {
        if length < HEALTH_LENGTH_MIN {
            wrong.push(Complaint::new(
                setting,
                "is shorter than 10ms, and would only keep everybody busy",
            ));
        }
    }
    Some(Health {
        path: table.path.clone(),
        every,
        timeout,
        unhealthy_after: table.unhealthy_after.unwrap_or(UNHEALTHY_AFTER),
        healthy_after: table.healthy_after.unwrap_or(HEALTHY_AFTER),
    })
}

/// No check is more frequent than this.
const HEALTH_LENGTH_MIN: Duration = Duration::from_millis(10);
