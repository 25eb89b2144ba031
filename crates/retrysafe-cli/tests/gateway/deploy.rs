//! Do the alert rules, the dashboard and the pages speak of metrics that exist?

use retrysafe_core::event::METRICS;

#[test]
fn every_metric_that_is_watched_exists() {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../");
    for file in ["deploy/alerts.yml", "deploy/grafana.json", "docs/operating.md"] {
        let text = std::fs::read_to_string(format!("{folder}{file}")).unwrap();
        let words = text.split(|c: char| !c.is_ascii_lowercase() && c != '_');
        let named: Vec<&str> = words.filter(|word| word.starts_with("retrysafe_")).collect();
        assert!(named.len() > 5, "{file}");
        for name in named {
            let bare = name.strip_suffix("_bucket").unwrap_or(name);
            assert!(METRICS.iter().any(|metric| metric.name == bare), "{name} in {file}");
        }
    }
}
