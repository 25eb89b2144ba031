//! What does the program say about its configuration?

use super::kit::{program, program_with};

fn check(toml: &str) -> (i32, String) {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("c.toml"), toml).unwrap();
    let (code, out, err) = program(&["config", "check", "--config", "c.toml"], folder.path());
    (code, format!("{out}{err}"))
}

#[test]
fn everything_wrong_is_named_with_its_place() {
    let up = "upstream = \"http://127.0.0.1:1\"\n";
    for (toml, wanted) in [
        ("", vec!["upstream", "which API"]),
        ("[defaults]\nleese = \"3s\"\n", vec!["line 3, column 1", "leese", "lease"]),
        ("[defaults]\nttl = \"3 moons\"\n", vec!["line 3, column 7", "length of time"]),
        ("[defaults]\nttl = \"36501d\"\n", vec!["line 3, column 7", "longer than 36500d"]),
        ("[upkeep]\nreap_every = \"9999999h\"\n", vec!["line 3", "longer than 36500d"]),
        ("[[route]]\npath = \"pay\"\n", vec!["line 3", "slash"]),
        ("[[route]]\nkey = \"required\"\n", vec!["needs a path"]),
        ("[[route]]\npath = \"/a\"\n[[route]]\npath = \"/A\"\n", vec!["line 5", "same path"]),
        ("[defaults]\nmethods = [\"GET\"]\n", vec!["safe method"]),
        ("[defaults]\nscope = [\"jwt:sub\"]\n", vec!["[jwt]"]),
        ("[defaults]\nscope = [\"planet\"]\n", vec!["planet", "credential"]),
        ("[defaults]\nstrict = true\nkey = \"optional\"\n", vec!["line 4", "contradicts"]),
        ("[defaults]\nlease = \"5s\"\nlease_max = \"1s\"\n", vec!["line 4", "at least `lease`"]),
        ("[admin]\ntoken_file = \"/nonexistent\"\n", vec!["/nonexistent"]),
        ("[tls]\ncertificate = \"/nonexistent\"\nkey = \"x\"\n", vec!["tls"]),
        (
            "[reconcile]\nurl = \"/l/{id}\"\nsettle_time = \"89s\"\n[defaults]\nabsence = \"proof\"\n",
            vec!["line 4", "settle_time", "90s", "/{*rest}"],
        ),
        ("[fingerprint]\nexclude = [\"no-slash\"]\n", vec!["line 3", "fingerprint.exclude"]),
    ] {
        let text = if toml.is_empty() { String::new() } else { format!("{up}{toml}") };
        let (code, told) = check(&text);
        assert_eq!(code, 1, "{toml}: {told}");
        for part in wanted {
            assert!(told.contains(part), "{toml} lacks {part:?}: {told}");
        }
    }
    for (toml, part) in [
        ("store = \"floppy:a\"\n", "disk:PATH"),
        ("listen = \"nowhere\"\n", "not an address"),
        ("upstream = \"ftp://x\"\n", "base URL"),
        ("head_time_max = \"0s\"\n", "longer than nothing"),
        ("trusted_networks = [\"10.0.0.0/99\"]\n", "not a network"),
    ] {
        let (code, told) =
            check(&format!("{}{toml}", if toml.starts_with("up") { "" } else { up }));
        assert!(code == 1 && told.contains(part) && told.contains("line"), "{toml}: {told}");
    }
}

#[test]
fn the_example_of_the_documentation_is_valid_and_complete() {
    let page = include_str!("../../../../docs/config.md");
    let example = page.split("```toml\n").nth(1).unwrap().split("```").next().unwrap();
    let (code, told) = check(example);
    assert_eq!(code, 0, "{told}");
    let folder = tempfile::tempdir().unwrap();
    let (_, schema, _) = program(&["config", "schema"], folder.path());
    let schema: serde_json::Value = serde_json::from_str(&schema).unwrap();
    for table in ["defaults", "upkeep", "admin"] {
        for setting in schema["properties"][table]["properties"].as_object().unwrap().keys() {
            assert!(page.contains(&format!("`{setting}`")), "{table}.{setting} is not described");
        }
    }
    for setting in schema["properties"].as_object().unwrap().keys() {
        assert!(page.contains(setting.as_str()), "{setting} is not described");
    }
}

#[test]
fn flags_win_over_environment_over_file() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(
        folder.path().join("c.toml"),
        "upstream = \"http://file:1\"\nlisten = \"127.0.0.1:1001\"\nstore = \"disk:./file\"\n\
         [admin]\ntoken = \"hidden-token\"\n[defaults]\nttl = \"1h\"\n",
    )
    .unwrap();
    let print = |more: &[&str], variables: &[(&str, &str)]| {
        let arguments = [&["config", "print"][..], more].concat();
        let (code, out, err) = program_with(&arguments, folder.path(), variables);
        assert_eq!(code, 0, "{err}");
        out.parse::<toml::Table>().unwrap()
    };
    let environment = [
        ("RETRYSAFE_CONFIG", "c.toml"),
        ("RETRYSAFE_UPSTREAM", "http://environment:2"),
        ("RETRYSAFE_DEFAULTS_TTL", "2h"),
        ("RETRYSAFE_SERVICE_HOST", "10.0.0.1"),
    ];
    let shown = print(&["--upstream", "http://flag:3", "--require-key"], &environment);
    assert_eq!(shown["upstream"].as_str(), Some("http://flag:3"));
    assert_eq!(shown["listen"].as_str(), Some("127.0.0.1:1001"));
    assert_eq!(shown["defaults"]["ttl"].as_str(), Some("2h"));
    assert_eq!(shown["defaults"]["key"].as_str(), Some("required"));
    assert_eq!(shown["defaults"]["lease"].as_str(), Some("1m"), "defaults are shown too");
    assert!(!shown.to_string().contains("hidden-token"));
    let shown = print(&["--config", "c.toml"], &[]);
    assert_eq!(shown["upstream"].as_str(), Some("http://file:1"));
    assert_eq!(shown["defaults"]["ttl"].as_str(), Some("1h"));

    let (code, _, err) = program_with(
        &["config", "check", "--upstream", "http://x"],
        folder.path(),
        &[("RETRYSAFE_DEFAULTS_TTL", "soon")],
    );
    assert!(code == 1 && err.contains("RETRYSAFE_DEFAULTS_TTL"), "{err}");
}
