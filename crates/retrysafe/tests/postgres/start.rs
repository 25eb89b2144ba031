//! Does the store keep the word of its URL, whoever opens it?

use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use crate::kit::cluster::Cluster;
use crate::kit::{client, database, number, server_url, sql};
use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
use retrysafe::core::engine::{Ask, Begun, Engine};
use retrysafe::core::fingerprint::{Fingerprint, RulesId};
use retrysafe::core::record::{About, Answer, Outcome};
use retrysafe::core::response::StoredResponse;
use retrysafe::core::store::{Query, Store as _};
use retrysafe::core::{Key, Scope};
use retrysafe::stores::postgres::{PostgresStore, SCHEMA_VERSION, migrate, script, script_from};

const TTL: Duration = Duration::from_secs(60);

/// The URL of a database without a schema.
async fn empty() -> String {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    let name = format!("empty_{}_{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
    sql(&server_url("postgres"), &format!("CREATE DATABASE {name}")).await;
    server_url(&name)
}

async fn has_schema(url: &str) -> bool {
    let sql = "SELECT count(*) FROM pg_namespace WHERE nspname = 'retrysafe'";
    number(url, sql).await == 1
}

async fn refusal(url: &str) -> String {
    PostgresStore::connect(url).await.expect_err("it must not open").to_string()
}

async fn begin(engine: &Engine<PostgresStore>, key: &str) -> Begun {
    let about = About { method: "POST".into(), route: "/r".into(), path: "/r/1".into() };
    let ask = Ask {
        scope: &Scope::anonymous(),
        mark: None,
        key: Key::new(key).unwrap().digest(),
        prints: &Fingerprint::from_parts(1, RulesId::from_bytes([1; 8]), [2; 32]),
        about: &about,
        ttl: TTL,
        lease: Duration::from_secs(30),
        owner: 1,
        request_id: None,
    };
    engine.begin(&ask).await.expect("it is answered")
}

/// Begins and settles: a first request, or a panic.
async fn execute(engine: &Engine<PostgresStore>, key: &str) {
    let Begun::Execute(lease) = begin(engine, key).await else { panic!("{key} is not new") };
    let answer =
        StoredResponse { status: http::StatusCode::CREATED, headers: vec![], body: "paid".into() };
    engine.settle(lease, &Outcome::Completed(Answer::Kept(answer))).await.expect("it settles");
}

#[tokio::test(flavor = "multi_thread")]
async fn expired_records_are_kept_for_people_only_where_the_url_says_so() {
    for (expiry, kept) in [("delete", 0), ("keep", 2)] {
        let url = database().await;
        let store = PostgresStore::connect(&format!("{url}?expiry={expiry}")).await.unwrap();
        let engine = Engine::new(store);
        execute(&engine, "reaped").await;
        execute(&engine, "begun anew").await;
        let later = format!("UPDATE retrysafe_test.clock SET ms = {}", TTL.as_millis() * 2);
        sql(&url, &later).await;
        execute(&engine, "begun anew").await;
        assert_eq!(engine.reap(10).await.unwrap(), 1);
        let expired = number(&url, "SELECT count(*) FROM retrysafe.expired WHERE state = 1").await;
        assert_eq!(expired, kept, "expiry={expiry}");
        assert_eq!(number(&url, "SELECT count(*) FROM retrysafe.record").await, 1);
        execute(&engine, "reaped").await;
        assert!(matches!(begin(&engine, "reaped").await, Begun::Replay(..)));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn with_migrate_off_the_schema_is_left_alone() {
    let url = empty().await;
    let off = format!("{url}?migrate=off");
    let told = refusal(&off).await;
    assert!(told.contains("the schema is at 0") && told.contains("store migrate"), "{told}");
    assert!(!has_schema(&url).await, "nothing was made");
    let steps = migrate(&off.parse().unwrap()).await.unwrap();
    assert_eq!(steps, SCHEMA_VERSION as usize, "asked for by name, it is done");
    execute(&Engine::new(PostgresStore::connect(&off).await.unwrap()), "k").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn many_that_start_at_once_make_the_schema_once() {
    let url = empty().await;
    let starts: Vec<_> = (0..12)
        .map(|_| {
            let url = url.clone();
            tokio::spawn(async move { PostgresStore::connect(&url).await })
        })
        .collect();
    for (n, start) in starts.into_iter().enumerate() {
        let store = start.await.unwrap().unwrap_or_else(|error| panic!("start {n}: {error}"));
        execute(&Engine::new(store), &format!("k{n}")).await;
    }
    let steps = number(&url, "SELECT count(*) FROM retrysafe.migration").await;
    assert_eq!(steps, i64::from(SCHEMA_VERSION));
}

#[tokio::test(flavor = "multi_thread")]
async fn the_script_makes_the_same_schema() {
    let url = empty().await;
    sql(&url, &script()).await;
    assert_eq!(migrate(&url.parse().unwrap()).await.unwrap(), 0, "nothing is left to do");
    execute(&Engine::new(PostgresStore::connect(&url).await.unwrap()), "k").await;
}

/// A schema that an older program has made and used, brought up to date by this one or by hand.
#[tokio::test(flavor = "multi_thread")]
async fn a_schema_of_any_version_is_brought_up_to_date_with_its_records() {
    assert_eq!(script_from(SCHEMA_VERSION + 1), None);
    for from in 1..SCHEMA_VERSION {
        for by_hand in [false, true] {
            let url = empty().await;
            sql(&url, &script_up_to(from)).await;
            let told = refusal(&format!("{url}?migrate=off")).await;
            assert!(told.contains(&format!("the schema is at {from}")), "{told}");
            if by_hand {
                let rest = script_from(from).unwrap();
                let wrong = script_from(from - 1).unwrap();
                assert!(
                    client(&url).await.batch_execute(&wrong).await.is_err(),
                    "of another version"
                );
                sql(&url, &rest).await;
                assert!(client(&url).await.batch_execute(&rest).await.is_err(), "a second time");
            } else {
                let steps = migrate(&url.parse().unwrap()).await.unwrap();
                assert_eq!(steps, (SCHEMA_VERSION - from) as usize);
            }
            execute(&Engine::new(PostgresStore::connect(&url).await.unwrap()), "k").await;
        }
    }
}

/// The steps up to this version: what the whole script has before the later ones.
fn script_up_to(version: u32) -> String {
    let whole = script();
    let rest = script_from(version).unwrap();
    let first_of_rest = rest.split("END $$;\n").nth(1).unwrap();
    let (steps, _) = whole.split_once(first_of_rest).unwrap();
    format!("{steps}COMMIT;\n")
}

/// The documentation says which rights a role needs that may create nothing.
#[tokio::test(flavor = "multi_thread")]
async fn a_role_without_rights_of_its_own_serves_what_another_has_made() {
    let page = include_str!("../../../../docs/postgres.md");
    let grants = page.split("```sql\n").find(|block| block.starts_with("GRANT")).unwrap();
    let grants = grants.split("```").next().unwrap();
    let url = empty().await;
    let role = format!("app_{}", std::process::id());
    sql(&url, &format!("CREATE ROLE {role} LOGIN")).await;
    let low = url.replace("postgres@", &format!("{role}@"));

    let told = refusal(&low).await;
    assert!(told.contains("cannot be migrated") && told.contains("permission denied"), "{told}");
    migrate(&url.parse().unwrap()).await.unwrap();
    let told = refusal(&low).await;
    assert!(told.contains("permission denied"), "{told}");

    // Whoever may look at the schema may not make or drop its partitions.
    sql(&url, &format!("GRANT USAGE ON SCHEMA retrysafe TO {role}")).await;
    for call in ["SELECT retrysafe.make_days()", "SELECT retrysafe.drop_day(1)"] {
        let denied = client(&low).await.batch_execute(call).await.unwrap_err();
        assert_eq!(denied.code().map(|code| code.code()), Some("42501"), "{call}: {denied}");
    }
    sql(&url, &grants.replace("TO app;", &format!("TO {role};"))).await;
    let engine = Engine::new(PostgresStore::connect(&low).await.unwrap());
    execute(&engine, "k").await;
    assert!(matches!(begin(&engine, "k").await, Begun::Replay(..)));
    assert_eq!(engine.store().scan(Query::default()).await.unwrap().value.records.len(), 1);
    assert_eq!(engine.reap(10).await.unwrap(), 0);
    let denied = client(&low).await.batch_execute("CREATE TABLE retrysafe.mine ()").await;
    assert!(denied.is_err(), "it may create nothing");
}

/// Writes an authority and a certificate for `localhost`, readable by the server.
fn certificates(folder: &Path) {
    let authority = |name: &str| {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::new(vec![]).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.distinguished_name.push(rcgen::DnType::CommonName, name);
        std::fs::write(folder.join(name), params.self_signed(&key).unwrap().pem()).unwrap();
        Issuer::new(params, key)
    };
    authority("stranger.pem");
    let ours = authority("ours.pem");
    let key = KeyPair::generate().unwrap();
    let server = CertificateParams::new(vec!["localhost".into()]).unwrap();
    std::fs::write(folder.join("server.pem"), server.signed_by(&key, &ours).unwrap().pem())
        .unwrap();
    let path = folder.join("server.key");
    std::fs::write(&path, key.serialize_pem()).unwrap();
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
    let owned = Command::new("chown").arg("--reference").arg(folder).arg(&path).status();
    assert!(owned.unwrap().success(), "the key belongs to the server's user");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_encrypted_connection_is_verified_or_refused() {
    let folder = crate::kit::cluster::folder();
    certificates(&folder);
    let file = |name: &str| folder.join(name).display().to_string();
    let (certificate, key) = (file("server.pem"), file("server.key"));
    let server =
        Cluster::start(&[("ssl", "on"), ("ssl_cert_file", &certificate), ("ssl_key_file", &key)]);
    let at = |host: &str, query: &str| {
        format!("postgres://postgres@{host}:{}/postgres?{query}", server.port)
    };
    let (ours, stranger) = (file("ours.pem"), file("stranger.pem"));

    for mode in ["require", "verify-ca", "verify-full"] {
        let url = at("localhost", &format!("sslmode={mode}&sslrootcert={ours}"));
        let engine = Engine::new(PostgresStore::connect(&url).await.unwrap());
        execute(&engine, mode).await;
        let plain = "SELECT count(*) FROM pg_stat_activity a JOIN pg_stat_ssl s USING (pid)
            WHERE a.application_name = 'retrysafe' AND NOT s.ssl";
        assert_eq!(server.sql("postgres", plain), "0", "all connections are encrypted");
    }
    for (url, why) in [
        (at("localhost", &format!("sslrootcert={stranger}")), "UnknownIssuer"),
        (at("localhost", "sslmode=require"), "UnknownIssuer"),
        (at("127.0.0.1", &format!("sslrootcert={ours}")), "not valid for name"),
        (at("localhost", "sslrootcert=/nonexistent"), "sslrootcert cannot be read"),
    ] {
        let told = refusal(&url).await;
        assert!(told.contains(why), "{url}: {told}");
    }
    std::fs::remove_dir_all(&folder).unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_without_encryption_is_refused_where_it_is_demanded() {
    let told = refusal(&format!("{}?sslmode=require", server_url("postgres"))).await;
    assert!(told.contains("does not support TLS"), "{told}");
}
