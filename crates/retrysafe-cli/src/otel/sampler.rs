//! Which traces are recorded?

/// Whether a trace is recorded, by the rules that OpenTelemetry has named.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Sampler {
    /// Whether the caller's word counts, where it has said one.
    pub follows_parent: bool,
    /// The share of the other traces that is recorded, from 0 to 1.
    pub ratio: f64,
}

impl Default for Sampler {
    /// `parentbased_always_on`.
    fn default() -> Self {
        Self { follows_parent: true, ratio: 1.0 }
    }
}

impl Sampler {
    /// Whether a trace is taken. The same trace is taken by everybody who uses the same share.
    pub(super) fn takes(&self, trace_id: &[u8; 16], is_parent_sampled: Option<bool>) -> bool {
        if let Some(is_sampled) = is_parent_sampled.filter(|_| self.follows_parent) {
            return is_sampled;
        }
        let [.., a, b, c, d, e, f, g, h] = *trace_id;
        let chance = u64::from_be_bytes([a, b, c, d, e, f, g, h]) >> 11;
        // 53 bits: as many as a number of this kind keeps.
        (chance as f64) < self.ratio * (1_u64 << 53) as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_share_of_the_traces_is_taken_and_the_parent_is_followed() {
        let ids: Vec<[u8; 16]> = (0..10_000_u64)
            .map(|at| u128::from(super::super::mixed(7, at)).to_be_bytes())
            .collect();
        let taken = |ratio| {
            let sampler = Sampler { follows_parent: true, ratio };
            ids.iter().filter(|id| sampler.takes(id, None)).count()
        };
        assert_eq!((taken(0.0), taken(1.0)), (0, 10_000));
        assert!((2_000..3_000).contains(&taken(0.25)), "{}", taken(0.25));
        let never = Sampler { follows_parent: true, ratio: 0.0 };
        assert!(ids.iter().all(|id| never.takes(id, Some(true))));
        let deaf = Sampler { follows_parent: false, ratio: 1.0 };
        assert!(ids.iter().all(|id| deaf.takes(id, Some(false))));
    }
}
