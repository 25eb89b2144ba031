//! Does what stands in `deploy/` fit the program, and each file the others?
//!
//! No container engine runs here. So the files are read as their programs read them, and what they
//! say of the gateway is tried on the gateway itself.

use std::collections::BTreeMap;
use std::path::PathBuf;

use retrysafe_core::event::METRICS;
use serde_json::Value;

use super::kit::{program, program_with};

fn path(file: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../..").join(file)
}

fn read(file: &str) -> String {
    std::fs::read_to_string(path(file)).unwrap_or_else(|error| panic!("{file}: {error}"))
}

fn yaml(file: &str) -> Value {
    serde_saphyr::from_str(&read(file)).unwrap_or_else(|error| panic!("{file}: {error}"))
}

fn texts(list: &Value) -> Vec<&str> {
    list.as_array().into_iter().flatten().filter_map(Value::as_str).collect()
}

/// What the program would do with these variables and this file, in this folder.
fn printed(variables: &[(&str, &str)], file: Option<&str>) -> toml::Table {
    let folder = tempfile::tempdir().unwrap();
    let mut variables = variables.to_vec();
    if let Some(text) = file {
        std::fs::write(folder.path().join("c.toml"), text).unwrap();
        variables.retain(|(name, _)| *name != "RETRYSAFE_CONFIG");
        variables.push(("RETRYSAFE_CONFIG", "c.toml"));
    }
    let (code, out, err) = program_with(&["config", "print"], folder.path(), &variables);
    assert_eq!(code, 0, "{err}");
    out.parse().unwrap()
}

#[test]
fn every_metric_that_is_watched_exists() {
    for file in ["deploy/alerts.yml", "deploy/grafana.json", "docs/operating.md"] {
        let text = read(file);
        let words = text.split(|c: char| !c.is_ascii_lowercase() && c != '_');
        let named: Vec<&str> = words.filter(|word| word.starts_with("retrysafe_")).collect();
        assert!(named.len() > 5, "{file}");
        for name in named {
            let bare = name.strip_suffix("_bucket").unwrap_or(name);
            assert!(METRICS.iter().any(|metric| metric.name == bare), "{name} in {file}");
        }
    }
}

const FILE: &str = "upstream = \"http://127.0.0.1:1\"\nlisten = \"127.0.0.1:7000\"\n\
                    store = \"disk:/srv/records\"\n[admin]\nlisten = \"127.0.0.1:7001\"\n";

fn assert_file_holds(shown: &toml::Table, who: &str) {
    assert_eq!(shown["store"].as_str(), Some("disk:/srv/records"), "{who} overrules the store");
    assert_eq!(shown["listen"].as_str(), Some("127.0.0.1:7000"), "{who} overrules listen");
    let admin = shown["admin"]["listen"].as_str();
    assert_eq!(admin, Some("127.0.0.1:7001"), "{who} overrules admin.listen");
}

/// An operator who wrote `store = "postgres://…"` into the file ran on the unit's disk store.
#[test]
fn the_unit_overrules_nothing_of_the_file() {
    let unit = read("deploy/retrysafe.service");
    let lines = |name: &str| -> Vec<&str> {
        unit.lines().filter_map(|line| line.strip_prefix(name)?.strip_prefix('=')).collect()
    };
    let variables: Vec<(&str, &str)> =
        lines("Environment").iter().filter_map(|line| line.split_once('=')).collect();
    assert_file_holds(&printed(&variables, Some(FILE)), "the unit");
    for command in [lines("ExecStart"), lines("ExecStartPre")].concat() {
        let words: Vec<&str> = command.split(' ').skip(1).collect();
        assert!(
            words.iter().all(|word| *word == "--config" || !word.starts_with("--")),
            "{command}"
        );
        accepts(&words);
    }
    // Without a store in the file, records are kept in the folder that systemd makes for the unit.
    let folder = format!("/var/lib/{}", lines("StateDirectory")[0]);
    assert_eq!(lines("WorkingDirectory"), [folder]);
    let shown = printed(&[("RETRYSAFE_UPSTREAM", "http://127.0.0.1:1")], None);
    assert!(shown["store"].as_str().is_some_and(|store| store.starts_with("disk:./")));
}

/// Asserts that the command line is one of the program's.
fn accepts(words: &[&str]) {
    let folder = tempfile::tempdir().unwrap();
    let (code, out, err) = program(&[words, &["--help"]].concat(), folder.path());
    assert!(code == 0 && out.contains("Usage"), "{words:?}: {err}");
}

#[test]
fn the_image_overrules_nothing_of_the_file() {
    let image = read("deploy/Dockerfile");
    let lines = |name: &str| -> Vec<&str> {
        image.lines().filter_map(|line| line.strip_prefix(name)?.strip_prefix(' ')).collect()
    };
    let variables: Vec<(&str, &str)> =
        lines("ENV").iter().filter_map(|line| line.split_once('=')).collect();
    assert_file_holds(&printed(&variables, Some(FILE)), "the image");

    // The file that lies in the image is read from where it is put, and is valid.
    let copied = lines("COPY").into_iter().find(|line| line.ends_with(".toml")).unwrap();
    let (from, to) = copied.split_once(' ').unwrap();
    assert_eq!(variables, [("RETRYSAFE_CONFIG", to)]);
    let upstream = [("RETRYSAFE_UPSTREAM", "http://127.0.0.1:1")];
    let shown = printed(&upstream, Some(&read(from)));
    let port = shown["listen"].as_str().unwrap().strip_prefix("0.0.0.0:").unwrap();
    assert_eq!(lines("EXPOSE"), [port], "it is reached from outside of the container");
    let volume = lines("VOLUME")[0];
    assert!(shown["store"].as_str().unwrap().starts_with(&format!("disk:{volume}/")));

    let words = |line: &str| serde_json::from_str::<Vec<String>>(line).unwrap();
    let health = image.split("CMD ").nth(1).unwrap().lines().next().unwrap();
    for line in [health, lines("CMD")[0]] {
        let words = words(line);
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        accepts(words.strip_prefix(&["retrysafe"]).unwrap_or(&words));
    }
}

/// The variables of a service, with what a `.env` would say.
fn environment(service: &Value) -> Vec<(String, String)> {
    let filled = |text: &str| {
        let mut out = String::new();
        let mut rest = text;
        while let Some((before, after)) = rest.split_once("${") {
            let (name, after) = after.split_once('}').expect("it is closed");
            out.push_str(before);
            out.push_str(name.split_once(":-").map_or("0123456789abcdef", |(_, default)| default));
            rest = after;
        }
        out + rest
    };
    let members = service["environment"].as_object().cloned().unwrap_or_default();
    members.into_iter().map(|(name, value)| (name, filled(value.as_str().unwrap()))).collect()
}

#[test]
fn the_files_of_compose_fit_each_other_and_the_program() {
    let compose = yaml("deploy/compose.yaml");
    let services = compose["services"].as_object().unwrap();
    let mut mounted: BTreeMap<String, String> = BTreeMap::new();
    for (name, service) in services {
        for other in texts(&service["depends_on"]) {
            assert!(services.contains_key(other), "{name} depends on {other}");
        }
        for volume in texts(&service["volumes"]) {
            let mut parts = volume.split(':');
            let (from, to) = (parts.next().unwrap(), parts.next().unwrap());
            match from.strip_prefix("./") {
                Some(file) => {
                    assert!(path("deploy").join(file).is_file(), "{name} mounts {from}");
                    mounted.insert(to.to_owned(), file.to_owned());
                }
                None => assert!(compose["volumes"].get(from).is_some(), "{name} mounts {from}"),
            }
        }
    }
    let build = &services["gateway"]["build"];
    let context = path("deploy").join(build["context"].as_str().unwrap());
    assert!(context.join(build["dockerfile"].as_str().unwrap()).is_file());

    // The gateway, as its container would start it.
    let variables = environment(&services["gateway"]);
    let variables: Vec<_> = variables.iter().map(|(n, v)| (n.as_str(), v.as_str())).collect();
    let shown = printed(&variables, Some(&read("deploy/retrysafe.toml")));
    let port_of = |address: &str| address.rsplit(':').next().unwrap().to_owned();
    let inside = |service: &Value| -> Vec<String> {
        texts(&service["ports"]).into_iter().map(port_of).collect()
    };
    let admin = shown["admin"]["listen"].as_str().unwrap();
    assert!(admin.starts_with("0.0.0.0:"), "reached from other containers: {admin}");
    let listen = shown["listen"].as_str().unwrap();
    assert_eq!(inside(&services["gateway"]), [port_of(listen), port_of(admin)]);
    let database = environment(&services["database"]);
    let of =
        |name: &str| database.iter().find(|(n, _)| n == name).map(|(_, v)| v.as_str()).unwrap();
    let url = variables.iter().find(|(name, _)| *name == "RETRYSAFE_STORE").unwrap().1;
    let (user, password) = (of("POSTGRES_USER"), of("POSTGRES_PASSWORD"));
    let wanted = format!("postgres://{user}:{password}@database:5432/{}", of("POSTGRES_DB"));
    assert_eq!(url.split('?').next(), Some(wanted.as_str()));

    // Prometheus: its file, the gateway's address, and the job of the alert rules.
    let prometheus = yaml("deploy/prometheus.yml");
    for rules in texts(&prometheus["rule_files"]) {
        assert_eq!(mounted.get(rules).map(String::as_str), Some("alerts.yml"), "{rules}");
    }
    let job = &prometheus["scrape_configs"][0];
    assert_eq!(
        texts(&job["static_configs"][0]["targets"]),
        [format!("gateway:{}", port_of(admin))]
    );
    let alerts = read("deploy/alerts.yml");
    assert!(alerts.contains(&format!("up{{job={}}}", job["job_name"])), "the job's name");

    // Grafana: where the data come from, and where the dashboard lies.
    let source = yaml("deploy/grafana/datasource.yaml");
    let url = source["datasources"][0]["url"].as_str().unwrap();
    assert_eq!(url, format!("http://prometheus:{}", inside(&services["prometheus"])[0]));
    let folder = yaml("deploy/grafana/dashboards.yaml");
    let folder = folder["providers"][0]["options"]["path"].as_str().unwrap();
    assert_eq!(mounted.get(&format!("{folder}/retrysafe.json")).unwrap(), "grafana.json");
    for kind in ["datasources", "dashboards"] {
        assert!(mounted.contains_key(&format!("/etc/grafana/provisioning/{kind}/retrysafe.yaml")));
    }
    let dashboard: Value = serde_json::from_str(&read("deploy/grafana.json")).unwrap();
    let kind = &source["datasources"][0]["type"];
    assert_eq!(&dashboard["templating"]["list"][0]["query"], kind, "the dashboard's source");
}

#[test]
fn every_alert_says_when_and_what() {
    let alerts = yaml("deploy/alerts.yml");
    let rules = alerts["groups"][0]["rules"].as_array().unwrap();
    assert!(rules.len() > 5);
    for rule in rules {
        let text =
            |pointer: &str| rule.pointer(pointer).and_then(Value::as_str).unwrap_or_default();
        assert!(text("/alert").starts_with("Retrysafe"), "{rule}");
        assert!(text("/expr").contains("retrysafe"), "{rule}");
        assert!(!text("/annotations/summary").is_empty(), "{rule}");
        assert!(["page", "ticket"].contains(&text("/labels/severity")), "{rule}");
    }
}
