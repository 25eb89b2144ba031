//! Which program is this?

/// What `--version` tells: the version, the commit, and what is compiled in.
pub(crate) const LONG: &str = concat!(
    env!("CARGO_PKG_VERSION"),
    "\ncommit: ",
    env!("BUILT_FROM_COMMIT"),
    "\nfeatures: client, disk, evidence, layer, outbox, postgres, redis, webhooks",
);

#[cfg(test)]
mod tests {
    #[test]
    fn the_features_are_those_that_are_compiled_in() {
        let manifest: toml::Table = include_str!("../Cargo.toml").parse().unwrap();
        let features = manifest["dependencies"]["retrysafe"]["features"].as_array().unwrap();
        let features: Vec<&str> = features.iter().filter_map(|feature| feature.as_str()).collect();
        assert_eq!(
            super::LONG.lines().last(),
            Some(&*format!("features: {}", features.join(", ")))
        );
    }
}
