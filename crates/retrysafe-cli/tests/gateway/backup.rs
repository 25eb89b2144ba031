//! Does a backup that was made as the page says bring the records back?
//!
//! For each store a gateway answers a request, the page's commands are run, the store is lost, the page's other commands are
//! run, and a gateway on what was restored must replay.

use std::path::Path;
use std::process::Command;

use super::cluster::Cluster;
use super::kit::{Gateway, Upstream, key, until};
use super::pages::Page;
use super::redis_server::Server;

/// The command lines below one heading of the page, in order.
fn commands(heading: &str) -> Vec<String> {
    let page = Page::read(Path::new("docs/backup.md"));
    let start = page.text.find(&format!("## {heading}\n")).expect("the page has this heading");
    let section = &page.text[start + 3..];
    let text = section.split("\n## ").next().unwrap().to_owned();
    let section = Page { name: page.name, text };
    section.blocks().iter().flat_map(|block| block.commands()).collect()
}

/// Runs a line of the page in a folder, and gives what it says.
fn run(line: &str, folder: &Path, variables: &[(&str, &str)]) -> String {
    let line =
        line.replace("retrysafe store", &format!("{} store", env!("CARGO_BIN_EXE_retrysafe")));
    let output = Command::new("sh")
        .args(["-c", &line])
        .envs(variables.iter().copied())
        .current_dir(folder)
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    let told = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{line}: {}: {said}{told}", output.status);
    said
}

fn stop(gateway: &mut Gateway) {
    gateway.signal("TERM");
    assert_eq!(gateway.wait(), Some(0));
}

#[test]
fn a_disk_store_is_copied_and_restored_as_the_page_says() {
    let upstream = Upstream::start();
    let folder = tempfile::tempdir().unwrap();
    let store = format!("disk:{}", folder.path().join("retrysafe-data").display());
    let mut gateway = Gateway::start_on(&store, &upstream, "");
    let before = key();
    let first = gateway.post("/before", &before, "{}");
    stop(&mut gateway);
    let commands = commands("The disk store");
    let [copy, doctor, aside, back, serve] = commands.as_slice() else { panic!("{commands:?}") };
    run(copy, folder.path(), &[]);
    assert!(run(doctor, folder.path(), &[]).contains("sound"), "the copy can be opened");

    let mut gateway = Gateway::start_on(&store, &upstream, "");
    let after = key();
    assert_eq!(gateway.post("/after", &after, "{}").status(), 201);
    stop(&mut gateway);
    run(aside, folder.path(), &[]);
    run(back, folder.path(), &[]);
    assert!(serve.contains("'disk:./retrysafe-data?create=never'"), "{serve}");
    let gateway = Gateway::start_on(&format!("{store}?create=never"), &upstream, "");
    let replay = gateway.post("/before", &before, "{}");
    assert!(replay.is_replay() && replay.body == first.body);
    // What came after the copy is lost, as the page says.
    assert!(!gateway.post("/after", &after, "{}").is_replay());
    assert_eq!((upstream.count("/before"), upstream.count("/after")), (1, 2));
}

#[test]
fn records_in_postgresql_are_dumped_and_restored_as_the_page_says() {
    let cluster = Cluster::start(&[]);
    let url = cluster.url("postgres");
    let upstream = Upstream::start();
    let folder = tempfile::tempdir().unwrap();
    let mut gateway = Gateway::start_on(&url, &upstream, "");
    let before = key();
    let first = gateway.post("/before", &before, "{}");
    stop(&mut gateway);
    let commands = commands("PostgreSQL");
    let [dump, restore @ ..] = commands.as_slice() else { panic!("{commands:?}") };
    let variables = [("DATABASE_URL", url.as_str())];
    run(dump, folder.path(), &variables);
    assert_eq!(restore.len(), 3);
    restore.iter().for_each(|line| drop(run(line, folder.path(), &variables)));

    let gateway = Gateway::start_on(&url, &upstream, "");
    let replay = gateway.post("/before", &before, "{}");
    assert!(replay.is_replay() && replay.body == first.body);
    assert_eq!(gateway.post("/after", &key(), "{}").status(), 503, "nothing new runs yet");
    assert_eq!((upstream.count("/before"), upstream.count("/after")), (1, 0));
}

#[test]
fn records_in_redis_are_copied_and_restored_as_the_page_says() {
    let settings = [("appendonly", "no"), ("save", "")];
    let redis = Server::start(&settings);
    let upstream = Upstream::start();
    let folder = tempfile::tempdir().unwrap();
    let commands = commands("Redis");
    let [copy, restored] = commands.as_slice() else { panic!("{commands:?}") };
    let address = |port: u16| format!("127.0.0.1:{port}");
    let first_run = restored.replace(" --after-loss", "");
    run(&first_run.replace("127.0.0.1:6379", &address(redis.port)), folder.path(), &[]);
    let mut gateway = Gateway::start_on(&format!("{}/0", redis.url()), &upstream, "");
    let before = key();
    let first = gateway.post("/before", &before, "{}");
    stop(&mut gateway);
    run(&copy.replace("127.0.0.1:6379", &address(redis.port)), folder.path(), &[]);
    drop(redis);

    // A server that finds the copy as its own dump.
    let named = [("appendonly", "no"), ("save", ""), ("dbfilename", "retrysafe.rdb")];
    let place = folder.path().display().to_string();
    let redis = Server::start(&[&named[..], &[("dir", place.as_str())]].concat());
    run(&restored.replace("127.0.0.1:6379", &address(redis.port)), folder.path(), &[]);
    let gateway = Gateway::start_on(&format!("{}/0", redis.url()), &upstream, "");
    until("it replays", || gateway.post("/before", &before, "{}").status() == first.status());
    assert!(gateway.post("/before", &before, "{}").is_replay());
    assert_eq!(gateway.post("/after", &key(), "{}").status(), 503, "nothing new runs yet");
    assert_eq!((upstream.count("/before"), upstream.count("/after")), (1, 0));
}
