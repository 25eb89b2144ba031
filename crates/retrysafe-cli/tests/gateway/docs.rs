//! Is everything true that the pages tell people to type?
//!
//! Every command line of the README and of `docs/` is run: those of the program against a gateway with
//! real records, `curl` against the same. Every configuration is checked by the program, and every
//! setting and variable that is named must exist. What cannot be run here is listed by name, with
//! the reason.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::net::{SocketAddr, TcpStream};
use std::process::{Command, Stdio};

use retrysafe::stores::disk::DiskOptions;
use serde_json::Value;

use super::kit::{
    Gateway, Step, TOKEN, Upstream, free, key, program, program_with, reply, request, send, until,
};
use super::pages::{self, Block, Page, Span};
use super::postgres::{database, new_database, server};
use super::redis;

/// Command lines that are not run, and why. Each begins a line of some page.
const NOT_RUN: [(&str, &str); 6] = [
    ("cargo run --release -- demo", "tests/demo.rs runs it, and it takes its time"),
    ("cargo xtask", "it would run this test, or measure; its verbs are looked up"),
    ("cargo run --release -p sim", "the simulator's own tests run it; its words are looked up"),
    ("docker", "no container engine runs here; tests/gateway/deploy.rs tries what it would start"),
    ("cd deploy", "the folder of the lines that follow it"),
    ("kubectl", "no cluster runs here; tests/gateway/deploy.rs reads what it would apply"),
];

/// A secret that every scheme of webhooks takes.
const WEBHOOK_SECRET: &str = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";

// ------------------------------------------------------------------ the pages

#[test]
fn every_command_line_does_what_the_page_says() {
    let mut house = House::open();
    let mut faults = Vec::new();
    let mut reasons = BTreeSet::new();
    let pages = pages::all();
    let pages = pages.iter().filter(|page| !is_played(page));
    for block in pages.flat_map(Page::blocks) {
        for command in block.commands() {
            match NOT_RUN.iter().find(|(begins, _)| command.starts_with(begins)) {
                Some((begins, _)) => {
                    reasons.insert(*begins);
                    faults.extend(
                        looked_up(&command).err().map(|why| told(&block.at, &command, &why)),
                    );
                }
                None => {
                    let ended = house.run(&command);
                    faults.extend(ended.err().map(|why| told(&block.at, &command, &why)));
                }
            }
        }
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
    assert_eq!(reasons.len(), NOT_RUN.len(), "a reason that no page needs any more");
    assert!(house.count > 12, "only {} command lines were run", house.count);
}

#[test]
fn every_command_between_backticks_exists() {
    let spans: Vec<Span> = pages::all().iter().flat_map(Page::spans).collect();
    let (count, faults) = unknown_commands(&spans);
    assert!(faults.is_empty(), "{}", faults.join("\n"));
    assert!(count > 10, "{count}");
}

#[test]
fn every_configuration_is_valid() {
    let blocks: Vec<Block> = pages::all().iter().flat_map(Page::blocks).collect();
    let (count, faults) = wrong_configurations(&blocks);
    assert!(faults.is_empty(), "{}", faults.join("\n"));
    assert!(count > 3, "{count}");
}

#[test]
fn every_setting_and_variable_that_is_named_exists() {
    let faults: Vec<String> = pages::all().iter().flat_map(unknown_settings).collect();
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

/// The checks above are no empty words: each finds what somebody makes up.
#[test]
fn what_is_made_up_is_found() {
    let page = |text: &str| Page { name: "made-up.md".into(), text: text.into() };
    let mut house = House::open();
    for command in [
        "retrysafe keys resolve ID --completed --reason x",
        "retrysafe keys mend ID",
        "retrysafe keys resolve ID --outcome completed",
        "retrysafe keys show 0000000000000000000000000000000000000000000000000000000000000000",
        "retrysafe serve --upstrem http://127.0.0.1:3000",
        "retrysafe config check --config missing.toml",
        "curl -i http://127.0.0.1:8080/refused",
        "curl -i http://127.0.0.1:8081/api/v1/made-up -H \"Authorization: Bearer $RETRYSAFE_ADMIN_TOKEN\"",
        "export RETRYSAFE_STROE=x",
        "make coffee",
    ] {
        let blocks = page(&format!("```sh\n{command}\n```\n")).blocks();
        assert_eq!(blocks[0].commands(), [command]);
        let ended = house.run(command);
        assert!(ended.is_err(), "{command}: taken for good");
    }
    for command in [
        "cargo xtask polish",
        "cargo run --release -p sim -- run --wishes 3",
        "kubectl apply -f deploy/made-up.yaml",
        "kubectl exec deployment/retrysafe -- retrysafe keys mend",
    ] {
        assert!(looked_up(command).is_err(), "{command}");
    }
    for span in ["retrysafe keys resolve ID --completed", "retrysafe audit", "store polish"] {
        let (_, faults) = unknown_commands(&page(&format!("Type `{span}` now.\n")).spans());
        assert_eq!(faults.len(), 1, "{span}: {faults:?}");
    }
    for block in ["```toml\n[defaults]\nleese = \"3s\"\n```\n", "```json\n{\n```\n"] {
        let (_, faults) = wrong_configurations(&page(block).blocks());
        assert_eq!(faults.len(), 1, "{block}: {faults:?}");
    }
    for text in [
        "Set `admin.lisen`.",
        "Say `key = \"please\"`.",
        "Say `leese = \"3s\"`.",
        "Set RETRYSAFE_STROE.",
        "See `[reconcil]`.",
        "| setting | default |\n| --- | --- |\n| `leese` | `60s` |\n",
    ] {
        assert_eq!(unknown_settings(&page(text)).len(), 1, "{text}");
    }
}

/// Whether a test of its own plays a page from top to bottom: `tests/tutorials.rs`, or `backup.rs` beside this file.
fn is_played(page: &Page) -> bool {
    ["docs/start.md", "docs/backup.md"].contains(&page.name.as_str())
        || page.name.starts_with("docs/tutorials/")
}

fn told(at: &str, what: &str, why: &str) -> String {
    format!("{at}: {what}\n    {}", why.trim().replace('\n', "\n    "))
}

// ------------------------------------------------------------------ command lines

/// Ledgers that say the same.
const LEDGERS: [(&str, &str); 4] = [
    ("payments.csv", "id,amount,currency,status\npay_1,12.50,EUR,paid\n"),
    (
        "provider.jsonl",
        "{\"reference\":\"pay_1\",\"money\":{\"value\":12.5,\"currency\":\"EUR\"},\"status\":\"paid\"}\n",
    ),
    ("provider.csv", "id,amount,currency\npay_1,12.5,EUR\n"),
    ("payments.sql", "SELECT 'pay_1' AS id, 12.50 AS amount, 'EUR' AS currency;\n"),
];

/// A gateway with records, for the command lines to be run against.
struct House {
    upstream: Upstream,
    gateway: Gateway,
    /// A gateway whose store has an outbox.
    office: Gateway,
    /// The name of its database.
    database: String,
    /// Where calls are journalled, and nothing else is.
    home: tempfile::TempDir,
    count: usize,
}

impl House {
    fn open() -> Self {
        let upstream = Upstream::start();
        upstream.script("/lost", vec![Step::Drop]);
        upstream.script("/refused", vec![reply(404, "{}")]);
        // The folder of the gateway is the folder of the commands.
        let gateway = Gateway::start(
            &upstream,
            "[reconcile]\nurl = \"/lookup/{id}\"\nschedule = [\"24h\"]\n\
             [[route]]\npath = \"/orders\"\nkey = \"required\"\n",
        );
        let document = r#"{"openapi": "3.1.0", "paths": {"/orders": {"post": {}}}}"#;
        std::fs::write(gateway.folder.join("api.json"), document).unwrap();
        let document = "openapi: 3.1.0\npaths:\n  /orders:\n    post: {}\n";
        std::fs::write(gateway.folder.join("api.yaml"), document).unwrap();
        std::fs::write(gateway.folder.join("store-url"), database()).unwrap();
        let worker = format!(
            "store = \"{}\"\n[effects.mail]\nurl = \"https://mail.example\"\ntakes_no_key = true\n",
            database()
        );
        std::fs::write(gateway.folder.join("worker.toml"), worker).unwrap();
        for (name, text) in LEDGERS {
            std::fs::write(gateway.folder.join(name), text).unwrap();
        }
        // A store that nobody has open, for the commands that look after one.
        let closed = DiskOptions::new().segment_bytes(1 << 20);
        closed.open(gateway.folder.join("retrysafe-data")).unwrap().close();
        let database = new_database();
        let office = Gateway::start_as(&upstream, "", |office| {
            office.store = server().url(&database);
            let secret = office.folder.join("secret");
            std::fs::write(&secret, WEBHOOK_SECRET).unwrap();
            office.toml = format!(
                "[webhooks.bank]\npath = \"/bank\"\nscheme = \"standard\"\nsecret_files = [{:?}]\n\
                 match = [{{ by = \"id\", at = \"/id\" }}]\noutcomes.executed.when = {{ \"/done\" = true }}\n",
                secret.display().to_string()
            );
        });
        let home = tempfile::tempdir().unwrap();
        Self { upstream, gateway, office, database, home, count: 0 }
    }

    /// Runs one command line, with what it names put in place of the names.
    fn run(&mut self, command: &str) -> Result<(), String> {
        self.count += 1;
        if let Some(variable) = command.strip_prefix("export ") {
            return exported(variable);
        }
        let command = self.filled(command);
        let words: Vec<&str> = command.split(' ').collect();
        let program = words.iter().find(|word| !word.contains('=')).copied().unwrap_or_default();
        match program {
            "retrysafe" if words.contains(&"serve") => self.serve(&command),
            // A start takes what the check takes; tests/worker starts it.
            "retrysafe" if words.contains(&"worker") && !words.contains(&"--check-config") => {
                self.shell(&format!("{command} --check-config")).map(|_| ())
            }
            "retrysafe" | "for" => self.shell(&command).map(|_| ()),
            "curl" => {
                let answer = self.shell(&command)?;
                match answer.lines().next().is_some_and(|line| line.contains(" 2")) {
                    true => Ok(()),
                    false => Err(format!("no answer of the kind 2xx (is `-i` there?): {answer}")),
                }
            }
            _ => Err("nothing that is run here; list it in NOT_RUN with a reason".into()),
        }
    }

    /// The command line with our addresses, ids and files.
    fn filled(&self, command: &str) -> String {
        let command = command
            .replace("cargo run --release -- ", "retrysafe ")
            .replace("127.0.0.1:8080", &self.gateway.address.to_string())
            .replace("127.0.0.1:8081", &self.gateway.admin.to_string())
            .replace("127.0.0.1:3000", &self.upstream.address.to_string())
            .replace("127.0.0.1:6379", &format!("127.0.0.1:{}", redis::server().port))
            .replace("/run/secrets/store", "store-url")
            .replace('…', "secret");
        // Whatever a page looks for is a record that is here: to find nothing is a failure.
        let command = match command.strip_prefix("retrysafe keys find ") {
            Some(_) => "retrysafe keys find ID".to_owned(),
            None => command,
        };
        let command = self.with_words(&command, "ID", || self.unknown());
        let command = self.with_words(&command, "EFFECT", || self.unknown_effect());
        let command = self.with_words(&command, "EVENT", || self.event());
        self.with_words(&command, "URL", || format!("http://{}/payments", self.gateway.address))
    }

    /// A command line with something in place of a word.
    fn with_words(&self, command: &str, word: &str, value: impl Fn() -> String) -> String {
        let words =
            command.split(' ').map(|given| if given == word { value() } else { given.to_owned() });
        words.collect::<Vec<_>>().join(" ")
    }

    /// The id of a new record whose outcome nobody knows.
    fn unknown(&self) -> String {
        let key = key();
        self.gateway.post("/lost", &key, "{}");
        let found = self.gateway.ask("GET", "/api/v1/keys?state=unknown&limit=1000", "").json();
        let records = found["keys"].as_array().unwrap();
        let open =
            records.iter().find(|record| record["path"] == "/lost" && record["state"] == "unknown");
        open.unwrap_or_else(|| panic!("{found}"))["id"].as_str().unwrap().to_owned()
    }

    /// The number of a new effect of which nobody knows whether it happened.
    fn unknown_effect(&self) -> String {
        let stage = "SELECT id FROM retrysafe.stage('receipt', 'x')";
        let id = server().sql(&self.database, stage);
        let lose = "UPDATE retrysafe.effect SET state = 3, fence = 1, marked_by = 1 WHERE id =";
        server().sql(&self.database, &format!("{lose} {id}"));
        id
    }

    /// The number of a webhook that says nothing.
    fn event(&self) -> String {
        let keep =
            r#"{"provider": "bank", "event_id": "evt_1", "state": 5, "names": [], "wait_ms": 1}"#;
        let kept = format!("SELECT retrysafe.inbox_v1('keep', '{keep}', '{{}}') ->> 'id'");
        server().sql(&self.database, &kept)
    }

    /// Runs a line by the shell, as people do, and gives what it says.
    fn shell(&self, line: &str) -> Result<String, String> {
        let binary = env!("CARGO_BIN_EXE_retrysafe");
        let is_of_effects = ["retrysafe outbox ", "retrysafe dlq ", "retrysafe inbox "]
            .iter()
            .any(|it| line.starts_with(it));
        let gateway = if is_of_effects { &self.office } else { &self.gateway };
        // Not the store of the configuration file in this folder: a gateway has it open.
        let store = line
            .starts_with("retrysafe store ")
            .then_some(("RETRYSAFE_STORE", "disk:./retrysafe-data"));
        let line = line.replace("retrysafe ", &format!("{binary} "));
        let output = Command::new("sh")
            .args(["-c", &line])
            .current_dir(&self.gateway.folder)
            .env("HOME", self.home.path())
            .env_remove("XDG_STATE_HOME")
            .env("RETRYSAFE_ADMIN_TOKEN", TOKEN)
            .env("RETRYSAFE_ADMIN_URL", format!("http://{}", gateway.admin))
            .envs(store)
            .stdin(Stdio::null())
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        match output.status.success() {
            true => Ok(said),
            false => {
                Err(format!("{}: {said}{}", output.status, String::from_utf8_lossy(&output.stderr)))
            }
        }
    }

    /// Starts a gateway by a command line, on addresses of its own, and stops it when it is ready.
    fn serve(&self, line: &str) -> Result<(), String> {
        let folder = tempfile::tempdir().unwrap();
        std::fs::copy(self.gateway.folder.join("store-url"), folder.path().join("store-url"))
            .unwrap();
        let admin = free();
        let line = line.replace("retrysafe ", &format!("{} ", env!("CARGO_BIN_EXE_retrysafe")));
        let log = std::fs::File::create(folder.path().join("log")).unwrap();
        let mut served = Command::new("sh")
            .args(["-c", &format!("exec env {line} --listen {} --admin {admin}", free())])
            .current_dir(folder.path())
            .stdin(Stdio::null())
            .stdout(log.try_clone().unwrap())
            .stderr(log)
            .spawn()
            .unwrap();
        let mut ended = None;
        until("it is ready or has ended", || {
            ended = served.try_wait().unwrap();
            ended.is_some() || is_ready(admin)
        });
        if ended.is_none() {
            let stopped = Command::new("kill").arg(served.id().to_string()).status().unwrap();
            assert!(stopped.success());
        }
        let status = served.wait().unwrap();
        match ended.is_none() && status.success() {
            true => Ok(()),
            false => {
                let log = std::fs::read_to_string(folder.path().join("log")).unwrap();
                Err(format!("{status}: {log}"))
            }
        }
    }
}

/// Whether the admin listener at an address says that its gateway is ready.
fn is_ready(admin: SocketAddr) -> bool {
    TcpStream::connect(admin).is_ok()
        && send(admin, &request("GET", "/readyz", &[], b"")).status() == 200
}

/// A variable that is exported must be one that the program knows.
fn exported(variable: &str) -> Result<(), String> {
    let name = variable.split('=').next().unwrap_or_default();
    let folder = tempfile::tempdir().unwrap();
    let arguments = ["config", "check", "--upstream", "http://127.0.0.1:1"];
    let (_, _, err) = program_with(&arguments, folder.path(), &[(name, "")]);
    if err.contains("names no setting") { Err(err) } else { Ok(()) }
}

/// Looks up the words of a command line that is not run.
fn looked_up(command: &str) -> Result<(), String> {
    let words: Vec<&str> = command.split(' ').filter(|word| !word.is_empty()).collect();
    let read = |path: &str| std::fs::read_to_string(pages::root().join(path)).unwrap_or_default();
    match words.as_slice() {
        ["cargo", "xtask", verb, ..] => {
            let help = read("xtask/src/main.rs");
            let is_verb = help.contains(&format!("cargo xtask {verb} "));
            if is_verb { Ok(()) } else { Err(format!("xtask has no verb {verb}")) }
        }
        ["cargo", "run", "--release", "--", rest @ ..] => accepted(rest),
        ["cargo", "run", "--release", "-p", "sim", "--", verb, rest @ ..] => {
            let help = read("crates/sim/src/main.rs");
            let flags = rest.iter().filter(|word| word.starts_with("--"));
            let missing =
                flags.copied().chain([*verb]).find(|word| !help.contains(word.trim_matches('-')));
            missing.map_or(Ok(()), |word| Err(format!("the simulator knows no {word}")))
        }
        ["kubectl", "apply", "-f", file] => match pages::root().join(file).is_file() {
            true => Ok(()),
            false => Err("there is no such file".into()),
        },
        ["kubectl", "exec", _, "--", "retrysafe", rest @ ..] => accepted(rest),
        ["cd", folder] => match pages::root().join(folder).is_dir() {
            true => Ok(()),
            false => Err("there is no such folder".into()),
        },
        _ => Ok(()),
    }
}

/// Whether the program takes a command line, as far as its words go.
fn accepted(words: &[&str]) -> Result<(), String> {
    let folder = tempfile::tempdir().unwrap();
    let (code, out, err) = program(&[words, &["--help"]].concat(), folder.path());
    if code == 0 && out.contains("Usage") { Ok(()) } else { Err(err) }
}

/// How many command lines of the program stand between backticks, and those that it does not take.
fn unknown_commands(spans: &[Span]) -> (usize, Vec<String>) {
    let mut count = 0;
    let mut faults = Vec::new();
    for Span { at, text } in spans {
        let line = text.split(" | ").next().unwrap_or_default();
        let words: Vec<&str> = line.split(' ').filter(|word| *word != "…").collect();
        let words = match words.as_slice() {
            ["retrysafe", rest @ ..] => rest,
            // Where a page has named the program, it may leave its name out.
            ["keys" | "store" | "config" | "outbox" | "dlq" | "inbox", verb, ..]
                if verb.bytes().all(|b| b.is_ascii_lowercase()) =>
            {
                &words
            }
            _ => continue,
        };
        if words.first().is_some_and(|word| word.bytes().all(|b| b.is_ascii_lowercase())) {
            count += 1;
            faults.extend(accepted(words).err().map(|why| told(at, text, &why)));
        }
    }
    (count, faults)
}

// ------------------------------------------------------------------ configurations

/// How many blocks hold something that a program reads, and those that it does not accept.
fn wrong_configurations(blocks: &[Block]) -> (usize, Vec<String>) {
    let mut count = 0;
    let mut faults = Vec::new();
    for block in blocks {
        let checked = match block.language.as_str() {
            "toml" if block.text.contains("retrysafe = {") => check_dependency(&block.text),
            "toml" if block.text.contains("\nbody = ") => check_template(&block.text),
            "toml" => check_configuration(&block.text),
            "json" => {
                serde_json::from_str::<Value>(&block.text).map(|_| ()).map_err(|e| e.to_string())
            }
            "yaml" => {
                serde_saphyr::from_str::<Value>(&block.text).map(|_| ()).map_err(|e| e.to_string())
            }
            // Commands, and what they say.
            "" | "sh" | "text" => continue,
            // code_blocks.rs beside this file reads programs.
            language if super::code_blocks::is_read(language) => continue,
            other => Err(format!("a block in {other:?}: nothing here can check it")),
        };
        count += 1;
        faults.extend(checked.err().map(|why| told(&block.at, &block.language, &why)));
    }
    (count, faults)
}

/// A part of `retrysafe.toml`. `…` stands for something of the operator's own.
fn check_configuration(text: &str) -> Result<(), String> {
    let folder = tempfile::tempdir().unwrap();
    let mut arguments = vec!["config", "check", "--config", "retrysafe.toml"];
    if !text.contains("upstream = ") {
        arguments.extend(["--upstream", "http://127.0.0.1:1"]);
    }
    // Files of secrets are read when the configuration is.
    for name in text.split("/run/secrets/").skip(1).filter_map(|rest| rest.split('"').next()) {
        std::fs::write(folder.path().join(name), WEBHOOK_SECRET).unwrap();
    }
    let mut text = text
        .replace('…', "secret")
        .replace("/run/secrets/", &format!("{}/", folder.path().display()));
    if text.starts_with("[effects.webhook.signing]") {
        // A part of a table stands for the whole.
        text.push_str("[effects.webhook]\nurl = \"https://hooks.example\"\ntakes_no_key = true\n");
    }
    std::fs::write(folder.path().join("retrysafe.toml"), text).unwrap();
    let (code, _, err) = program(&arguments, folder.path());
    if code == 0 && err.is_empty() { Ok(()) } else { Err(err) }
}

/// A template of `retrysafe check`.
fn check_template(text: &str) -> Result<(), String> {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("template.toml"), text).unwrap();
    let arguments = ["check", "--template", "template.toml", "--dry-run"];
    let (code, _, err) = program(&arguments, folder.path());
    if code == 0 { Ok(()) } else { Err(err) }
}

/// Lines of a `Cargo.toml`, one of which is to be chosen.
fn check_dependency(text: &str) -> Result<(), String> {
    let manifest =
        std::fs::read_to_string(pages::root().join("crates/retrysafe/Cargo.toml")).unwrap();
    let manifest: toml::Table = manifest.parse().unwrap();
    for line in text.lines().filter(|line| !line.is_empty()) {
        let line: toml::Table = line.parse().map_err(|error| format!("{error}"))?;
        for feature in line["retrysafe"]["features"].as_array().into_iter().flatten() {
            let name = feature.as_str().unwrap_or_default();
            if manifest["features"].get(name).is_none() {
                return Err(format!("the library has no feature {name}"));
            }
        }
    }
    Ok(())
}

// ------------------------------------------------------------------ settings and variables

/// Every setting by its full name, such as `defaults.ttl`, and every table.
fn settings() -> &'static BTreeSet<String> {
    static ALL: std::sync::OnceLock<BTreeSet<String>> = std::sync::OnceLock::new();
    ALL.get_or_init(|| {
        let folder = tempfile::tempdir().unwrap();
        let (_, schema, _) = program(&["config", "schema"], folder.path());
        let schema: Value = serde_json::from_str(&schema).unwrap();
        let mut all = BTreeSet::new();
        for (name, value) in schema["properties"].as_object().unwrap() {
            all.insert(name.clone());
            let value = value.get("items").unwrap_or(value);
            let several = value["anyOf"].as_array().into_iter().flatten().chain([value]);
            // A table of tables, such as `effects`, has one schema for all of them.
            let several = several.flat_map(|value| [value, &value["additionalProperties"]]);
            for members in several.filter_map(|value| value["properties"].as_object()) {
                all.extend(members.keys().map(|member| format!("{name}.{member}")));
            }
        }
        assert!(all.contains("admin.listen") && all.contains("jwt.secret"), "{all:?}");
        all
    })
}

/// What a page says about settings and variables that do not exist.
fn unknown_settings(page: &Page) -> Vec<String> {
    let mut faults: Vec<String> = page.spans().iter().filter_map(unknown_setting).collect();
    let variables =
        page.text.split(|c: char| !c.is_ascii_uppercase() && c != '_' && !c.is_ascii_digit());
    let named: BTreeSet<&str> = variables.filter(|word| word.starts_with("RETRYSAFE_")).collect();
    // The prefix alone is how the names are explained.
    for name in named.into_iter().filter(|name| *name != "RETRYSAFE_") {
        faults.extend(exported(name).err().map(|why| told(&page.name, name, &why)));
    }
    faults.extend(unknown_rows(page));
    faults
}

fn unknown_setting(Span { at, text }: &Span) -> Option<String> {
    let is_name = |text: &str| {
        !text.is_empty()
            && text.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'_')
    };
    if let Some((name, value)) = text.split_once(" = ")
        && is_name(name)
    {
        return unfit(name, value).map(|why| told(at, text, &why));
    }
    let missing = || told(at, text, "there is no such setting");
    if let Some(table) = text.strip_prefix('[').and_then(|text| text.strip_suffix(']')) {
        let table = table.trim_matches(['[', ']']);
        return (is_name(table) && !settings().contains(table)).then(missing);
    }
    let (table, name) = text.split_once('.')?;
    let is_setting = settings().iter().any(|known| known.starts_with(&format!("{table}.")));
    (is_name(name) && is_setting && !settings().contains(text.as_str())).then(missing)
}

/// Why `name = value` is not a line of `retrysafe.toml`, in any of its tables.
fn unfit(name: &str, value: &str) -> Option<String> {
    let tables: Vec<&str> = settings()
        .iter()
        .filter_map(|known| match known.rsplit_once('.') {
            Some((table, member)) => (member == name).then_some(table),
            None => (known == name).then_some(""),
        })
        .filter(|table| *table != "route")
        .collect();
    let mut why = format!("no table has a setting {name}\n");
    for table in tables {
        let head = match table {
            "" => String::new(),
            "effects" | "webhooks" => format!("[{table}.x]\n"),
            _ => format!("[{table}]\n"),
        };
        // Other settings of the table may be needed too; what is said of this one counts.
        let jwt =
            "[jwt]\nalgorithms = [\"HS256\"]\nsecret = \"0123456789abcdef0123456789abcdef\"\n";
        let more = if value.contains("jwt:") { jwt } else { "" };
        let text = format!("{head}{name} = {value}\n{more}");
        match check_configuration(&text) {
            Ok(()) => return None,
            Err(told) if !told.contains(&format!("{name}`")) && !told.contains("TOML") => {
                return None;
            }
            Err(told) => drop(writeln!(why, "{told}")),
        }
    }
    Some(why)
}

/// Rows of a table of settings whose first cell names none.
fn unknown_rows(page: &Page) -> Vec<String> {
    let mut faults = Vec::new();
    let mut is_table = false;
    for (number, line) in (1..).zip(page.text.lines()) {
        is_table = line.starts_with('|') && (is_table || line.starts_with("| setting |"));
        let cell = line.split('|').nth(1).filter(|_| is_table).unwrap_or_default();
        for name in cell.split('`').skip(1).step_by(2) {
            let is_known = settings().iter().any(|known| {
                known == name || known.rsplit_once('.').is_some_and(|(_, member)| member == name)
            });
            if !is_known {
                faults.push(told(
                    &format!("{}:{number}", page.name),
                    name,
                    "there is no such setting",
                ));
            }
        }
    }
    faults
}
