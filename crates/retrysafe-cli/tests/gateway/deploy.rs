//! Does what stands in `deploy/` fit the program, and each file the others?
//!
//! No container engine runs here. So the files are read as their programs read them, and what they
//! say of the gateway is tried on the gateway itself.

use std::collections::BTreeMap;
use std::io::Write as _;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use retrysafe_core::event::METRICS;
use serde_json::Value;

use super::kit::{Gateway, Upstream, key, program, program_with};

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
        let ours = ["retrysafe_", "http_server_"];
        let named: Vec<&str> =
            words.filter(|word| ours.iter().any(|start| word.starts_with(start))).collect();
        assert!(named.len() > 5, "{file}");
        for name in named {
            let bare = ["_bucket", "_count"].iter().find_map(|end| name.strip_suffix(end));
            let bare = bare.unwrap_or(name);
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

/// The report of a comparison can be read by its owner alone. The gateway of the unit ran as a dynamic user, and the documented comparison as
/// root, so the dashboard could not read what it was told to show.
#[test]
fn the_gateway_of_the_unit_may_read_what_the_daily_comparison_leaves() {
    let page = super::pages::Page::read("docs/ledger.md".as_ref());
    let blocks = page.blocks();
    let daily = blocks.iter().find(|block| block.text.contains("ledger.service")).unwrap();
    let (service, _) = daily.text.split_once("ledger.timer").unwrap();
    let unit = read("deploy/retrysafe.service");
    let line = |unit: &str, name: &str| -> String {
        let found = unit.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix('='));
        found.unwrap_or_else(|| panic!("{name} in {unit}")).to_owned()
    };
    for name in ["User", "DynamicUser", "StateDirectory"] {
        assert_eq!(line(service, name), line(&unit, name), "{name}");
    }
    let folder = format!("/var/lib/{}/", line(&unit, "StateDirectory"));
    let mut words = service.split_whitespace().skip_while(|word| *word != "--report-file");
    let report = words.nth(1).unwrap();
    assert!(report.starts_with(&folder), "{report}");
    assert!(page.text.contains(&format!("ledger_reports = [\"{report}\"]")), "{report}");
    // Nothing else may be written to by a unit with a dynamic user, unless it says so.
    for option in ["--differences-file", "--metrics-file"] {
        let file = service.split_whitespace().skip_while(|word| *word != option).nth(1).unwrap();
        let is_writable = file.starts_with(&folder)
            || file.starts_with(&format!("{}/", line(service, "ReadWritePaths")));
        assert!(is_writable, "{option} {file}");
    }
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

/// The documents of a manifest, by kind.
fn manifest(file: &str) -> BTreeMap<String, Value> {
    let text = read(file);
    let documents = text.split("\n---\n").map(|document| -> Value {
        serde_saphyr::from_str(document).unwrap_or_else(|error| panic!("{file}: {error}"))
    });
    documents.map(|document| (document["kind"].as_str().unwrap().to_owned(), document)).collect()
}

/// A length such as `60s` or `1m`, in seconds.
fn seconds(length: &str) -> u64 {
    let (number, unit) = length.split_at(length.len() - 1);
    let number: u64 = number.parse().unwrap();
    match unit {
        "s" => number,
        "m" => number * 60,
        other => panic!("{length}: {other}"),
    }
}

#[test]
fn the_manifests_fit_themselves_and_the_program() {
    for (file, kind) in [("postgres.yaml", "Deployment"), ("disk.yaml", "StatefulSet")] {
        let documents = manifest(&format!("deploy/kubernetes/{file}"));
        let set = &documents[kind]["spec"];
        let pod = &set["template"]["spec"];
        let gateway = &pod["containers"][0];

        // The file of the config map, as the image reads it, with the files of the secret.
        let folder = tempfile::tempdir().unwrap();
        let mut variables = Vec::new();
        for variable in gateway["env"].as_array().unwrap() {
            let name = variable["name"].as_str().unwrap();
            let path = folder.path().join(name);
            let is_store = name == "RETRYSAFE_STORE_FILE";
            let secret = if is_store { "postgres://a@db/a" } else { "0123456789abcdef" };
            std::fs::write(&path, secret).unwrap();
            variables.push((name, path.display().to_string()));
            let mounted = variable["value"].as_str().unwrap();
            assert!(mounted.starts_with("/run/secrets/retrysafe/"), "{mounted}");
        }
        let variables: Vec<_> = variables.iter().map(|(n, v)| (*n, v.as_str())).collect();
        let text = documents["ConfigMap"]["data"]["retrysafe.toml"].as_str().unwrap();
        let shown = printed(&variables, Some(text));

        // Where it listens is where it is asked.
        let ports = gateway["ports"].as_array().unwrap();
        for (name, listen) in [("http", &shown["listen"]), ("admin", &shown["admin"]["listen"])] {
            let port = ports.iter().find(|port| port["name"] == name).unwrap();
            let wanted = format!("0.0.0.0:{}", port["containerPort"]);
            assert_eq!(listen.as_str(), Some(wanted.as_str()), "{file}: {name}");
        }
        for (probe, path) in
            [("startupProbe", "/livez"), ("livenessProbe", "/livez"), ("readinessProbe", "/readyz")]
        {
            let asked = &gateway[probe]["httpGet"];
            assert_eq!((&asked["path"], &asked["port"]), (&path.into(), &"admin".into()), "{file}");
        }
        let service = &documents["Service"]["spec"];
        assert_eq!(service["ports"][0]["targetPort"], "http", "the admin port is not published");

        // A start may wait for its store, and a stop may settle what is running.
        let length = |name: &str| seconds(shown[name].as_str().unwrap());
        let probe = &gateway["startupProbe"];
        let start =
            probe["periodSeconds"].as_u64().unwrap() * probe["failureThreshold"].as_u64().unwrap();
        assert!(start > length("store_wait_max"), "{file}: {start}");
        let stop = pod["terminationGracePeriodSeconds"].as_u64().unwrap();
        assert!(stop > length("drain_delay") + length("drain_max"), "{file}: {stop}");

        // Labels find their pods, mounts find their volumes, and what is written can be written.
        let labels = &set["template"]["metadata"]["labels"];
        assert_eq!((&set["selector"]["matchLabels"], &service["selector"]), (labels, labels));
        let claims = set["volumeClaimTemplates"].as_array().into_iter().flatten();
        let claims = claims.map(|claim| claim["metadata"]["name"].as_str().unwrap());
        let volumes = pod["volumes"].as_array().unwrap().iter();
        let volumes: Vec<&str> =
            volumes.map(|volume| volume["name"].as_str().unwrap()).chain(claims).collect();
        let mounts = gateway["volumeMounts"].as_array().unwrap();
        for mount in mounts {
            assert!(volumes.contains(&mount["name"].as_str().unwrap()), "{file}: {mount}");
        }
        let written = mounts.iter().find(|mount| mount["readOnly"] != true).unwrap();
        let written = written["mountPath"].as_str().unwrap();
        let place = match shown.get("state_folder") {
            Some(folder) => folder.as_str().unwrap(),
            None => shown["store"].as_str().unwrap().strip_prefix("disk:").unwrap(),
        };
        assert!(place.starts_with(written), "{file}: {place} is not below {written}");
        let replicas = set["replicas"].as_u64().unwrap();
        assert_eq!(replicas == 1, kind == "StatefulSet", "a disk store has one owner");
    }
}

/// The rules of the alerts.
fn alert_rules() -> Vec<Value> {
    let alerts = yaml("deploy/alerts.yml");
    alerts["groups"][0]["rules"].as_array().unwrap().clone()
}

fn text_at<'a>(value: &'a Value, pointer: &str) -> &'a str {
    value.pointer(pointer).and_then(Value::as_str).unwrap_or_default()
}

#[test]
fn every_alert_says_when_and_what() {
    let rules = alert_rules();
    assert!(rules.len() > 30);
    for rule in &rules {
        assert!(text_at(rule, "/alert").starts_with("Retrysafe"), "{rule}");
        assert!(text_at(rule, "/expr").contains("retrysafe"), "{rule}");
        assert!(!text_at(rule, "/annotations/summary").is_empty(), "{rule}");
        assert!(["page", "ticket"].contains(&text_at(rule, "/labels/severity")), "{rule}");
    }
}

/// Somebody who is woken has a page with the same four headings every time, and at most three commands to type.
#[test]
fn every_alert_leads_to_its_runbook() {
    const PAGES: &str = "https://github.com/retrysafe/retrysafe/blob/main/";
    let index = read("docs/runbooks/README.md");
    let rules = alert_rules();
    for rule in &rules {
        let alert = text_at(rule, "/alert");
        let page = text_at(rule, "/annotations/runbook_url").strip_prefix(PAGES);
        assert_eq!(page, Some(&*format!("docs/runbooks/{alert}.md")));
        let text = read(page.unwrap());
        let headings: Vec<&str> = text.lines().filter(|line| line.starts_with('#')).collect();
        let wanted = ["## What it means", "## Look at", "## Do", "## It is over when"];
        assert_eq!(headings[0], format!("# {alert}"));
        assert_eq!(headings[1..], wanted, "{alert}");
        let severity = format!("Severity: {}", text_at(rule, "/labels/severity"));
        assert!(text.contains(&severity), "{alert} is not of {severity}");
        let commands = text.split("```sh\n").nth(1).and_then(|rest| rest.split("```").next());
        let count = commands.unwrap_or_default().lines().count();
        assert!((1..=3).contains(&count), "{alert} has {count} commands");
        assert!(index.contains(&format!("[{alert}]({alert}.md)")), "the index lacks {alert}");
    }
    let pages = std::fs::read_dir(path("docs/runbooks")).unwrap().count();
    assert_eq!(pages, rules.len() + 1, "a runbook of an alert that is gone");
}

/// Runs `promtool` (installed by `cargo xtask test`), and gives what it says where it complains.
fn promtool(arguments: &[&str], input: &str) -> Result<(), String> {
    let mut child = Command::new("promtool")
        .args(arguments)
        .current_dir(path("deploy"))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap_or_else(|error| panic!("promtool: {error}; `cargo xtask test` installs it"));
    child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    let said = [output.stdout, output.stderr].concat();
    let said = String::from_utf8_lossy(&said).into_owned();
    if output.status.success() { Ok(()) } else { Err(said) }
}

#[test]
fn every_alert_fires_when_it_should_and_only_then() {
    promtool(&["check", "rules", "alerts.yml"], "").unwrap();
    promtool(&["test", "rules", "alerts_test.yml"], "").unwrap();
    let tests = yaml("deploy/alerts_test.yml");
    let tests = tests["tests"].as_array().unwrap();
    for rule in alert_rules() {
        let alert = text_at(&rule, "/alert");
        let expected: Vec<usize> = tests
            .iter()
            .flat_map(|test| test["alert_rule_test"].as_array().unwrap())
            .filter(|test| text_at(test, "/alertname") == alert)
            .map(|test| test["exp_alerts"].as_array().unwrap().len())
            .collect();
        assert!(expected.contains(&1) && expected.contains(&0), "{alert} is tried: {expected:?}");
    }
}

/// A picture whose query cannot be read stays empty, and nobody notices.
#[test]
fn every_query_of_the_dashboard_can_be_read() {
    let dashboard: Value = serde_json::from_str(&read("deploy/grafana.json")).unwrap();
    let panels = dashboard["panels"].as_array().unwrap().iter();
    let queries: Vec<&str> = panels
        .flat_map(|panel| panel["targets"].as_array().unwrap())
        .map(|target| text_at(target, "/expr"))
        .collect();
    assert!(queries.len() > 30);
    let rules: Vec<Value> = queries
        .iter()
        .enumerate()
        .map(|(at, query)| {
            let query = query.replace("$__rate_interval", "1m");
            serde_json::json!({"record": format!("query:{at}"), "expr": query})
        })
        .collect();
    let file = tempfile::NamedTempFile::new().unwrap();
    let groups = serde_json::json!({"groups": [{"name": "queries", "rules": rules}]});
    std::fs::write(file.path(), groups.to_string()).unwrap();
    promtool(&["check", "rules", file.path().to_str().unwrap()], "").unwrap();
}

/// The other way round: rules that never fire are found.
#[test]
fn an_alert_that_does_not_fire_is_found() {
    let folder = tempfile::tempdir().unwrap();
    let rules =
        read("deploy/alerts.yml").replace("retrysafe_unknown) >= 1", "retrysafe_unknown) >= 9");
    assert_ne!(rules, read("deploy/alerts.yml"));
    std::fs::write(folder.path().join("alerts.yml"), rules).unwrap();
    let tests = folder.path().join("alerts_test.yml");
    std::fs::copy(path("deploy/alerts_test.yml"), &tests).unwrap();
    let said = promtool(&["test", "rules", tests.to_str().unwrap()], "").unwrap_err();
    assert!(said.contains("RetrysafeUnknown"), "{said}");
}

/// What is served is judged by Prometheus' own rules for names, units and help texts.
#[test]
fn the_metrics_of_a_gateway_pass_the_checks_of_prometheus() {
    let upstream = Upstream::start();
    let gateway = Gateway::start(&upstream, "");
    let key = key();
    for body in ["{}", "{}", "{\"a\":1}"] {
        gateway.post("/metered", &key, body);
    }
    let shown = gateway.metrics();
    for part in ["answer=\"replay\"} 1", "retrysafe_scope_misuses{", "http_server_request_duration"]
    {
        assert!(shown.contains(part), "no {part} in {shown}");
    }
    promtool(&["check", "metrics"], &shown).unwrap();
    promtool(&["check", "metrics"], "# TYPE wrong_total gauge\nwrong_total 1\n").unwrap_err();
}
