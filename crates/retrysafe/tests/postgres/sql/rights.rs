//! What may an application do that has nothing but the role `retrysafe_app`?

use std::sync::atomic::{AtomicU32, Ordering};

use super::caller::{Asked, Caller, Told};
use crate::kit::{client, database, sql};

/// The URL of a role of its own that is a member of `retrysafe_app`.
async fn member(url: &str) -> String {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    let role = format!("member_{}_{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
    sql(url, &format!("CREATE ROLE {role} LOGIN IN ROLE retrysafe_app")).await;
    url.replace("postgres@", &format!("{role}@"))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_role_does_everything_through_the_functions() {
    let url = database().await;
    let caller = Caller::connect(&member(&url).await).await;
    let asked = Asked::flow("k");
    let begun = caller.begin(&asked).await.unwrap();
    let owner = begun.owner();
    assert_eq!(caller.start(owner, "ride/1", b"{}").await.unwrap(), "before 0");
    caller.run("BEGIN").await.unwrap();
    caller.guard(owner).await.unwrap();
    assert_eq!(caller.advance_in(owner, "before 0", b"7").await.unwrap(), "before 1");
    caller.run("COMMIT").await.unwrap();
    caller.run("BEGIN").await.unwrap();
    caller.guard(owner).await.unwrap();
    assert_eq!(caller.run("COMMIT").await, Err("RS004".into()), "its guards hold too");
    let call =
        caller.about_to_call(owner, "before 1", b"charge", Some(600_000), 1_000).await.unwrap();
    assert_eq!(call.decision, "send");
    let key =
        caller.ask("SELECT retrysafe.downstream_key($1, 'charge')", &[&begun.id]).await.unwrap();
    assert_eq!(key.get::<_, Option<String>>(0), call.call_key);
    assert!(caller.renew(owner, 60_000, 600_000).await.unwrap() > 0);
    assert_eq!(caller.call_not_sent(owner, "calling 1").await.unwrap(), "failed_retryable");
    let begun = caller.begin(&asked).await.unwrap();
    let owner = begun.owner();
    caller.about_to_call(owner, "before 1", b"charge", Some(600_000), 1_000).await.unwrap();
    assert_eq!(caller.advance(owner, "calling 1", b"ch_1").await.unwrap(), "before 2");
    assert_eq!(
        caller.settle(owner, &Told::completed("done"), Some("before 2")).await.unwrap(),
        "completed"
    );
    let seen = caller.ask("SELECT state FROM retrysafe.look($1)", &[&begun.id]).await.unwrap();
    assert_eq!(seen.get::<_, String>(0), "completed");
    assert_eq!(caller.begin(&asked).await.unwrap().decision, "replay");
    caller.run("BEGIN").await.unwrap();
    let local = caller.begin_in(&Asked::plain("local")).await.unwrap();
    caller.settle_in(local.owner(), &Told::completed("done"), None).await.unwrap();
    caller.run("COMMIT").await.unwrap();
    let late = caller.settle((&local.id, 1), &Told::completed("late"), None).await;
    assert_eq!(late, Err("RS001".into()));
    let plain = caller.begin(&Asked::plain("plain")).await.unwrap();
    assert!(caller.withdraw(&plain.id, Asked::plain("plain").owner).await.unwrap());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_role_does_nothing_through_tables_and_inner_functions() {
    let url = database().await;
    let (owner, app) = (client(&url).await, client(&member(&url).await).await);
    let tables = "SELECT c.oid::regclass::text FROM pg_class c
        WHERE c.relnamespace = 'retrysafe'::regnamespace AND c.relkind IN ('r', 'p', 'v', 'S')";
    let tables: Vec<String> =
        owner.query(tables, &[]).await.unwrap().iter().map(|row| row.get(0)).collect();
    assert!(tables.len() > 8, "{tables:?}");
    for table in tables {
        let statements = [
            format!("SELECT * FROM {table}"),
            format!("DELETE FROM {table}"),
            format!("INSERT INTO {table} DEFAULT VALUES"),
            format!("TRUNCATE {table}"),
        ];
        for statement in statements {
            let denied = app.batch_execute(&statement).await.unwrap_err();
            // A sequence is no table, and views cannot be written by anybody.
            let code = denied.code().unwrap().code().to_owned();
            assert!(["42501", "42809", "55000"].contains(&&*code), "{statement}: {denied:?}");
            assert!(code == "42501" || !statement.starts_with("SELECT"), "{statement}: {denied:?}");
        }
    }
    for statement in [
        "SELECT nextval('retrysafe.version')",
        "SELECT retrysafe.make_days()",
        "SELECT retrysafe.drop_day(1)",
        "SELECT * FROM retrysafe.reap_v1(NULL, 1, false)",
        "SELECT retrysafe.guard_v1('', 1)",
        "SELECT retrysafe.lock_record('')",
        "SELECT retrysafe.settle_record('', 1, NULL, 'retryable', 1, NULL, NULL, NULL, NULL)",
        "SELECT retrysafe.trust_v1('on', 1, 'x', 0)",
        "SELECT retrysafe.grant_to('postgres')",
        "CREATE FUNCTION retrysafe.mine() RETURNS int LANGUAGE sql AS 'SELECT 1'",
    ] {
        let denied = app.batch_execute(statement).await.unwrap_err();
        assert_eq!(denied.code().unwrap().code(), "42501", "{statement}: {denied:?}");
    }
    // Whoever is no member cannot even call the functions.
    let stranger = member(&url).await;
    let name = stranger.split("://").nth(1).unwrap().split('@').next().unwrap().to_owned();
    sql(
        &url,
        &format!("REVOKE retrysafe_app FROM {name}; GRANT USAGE ON SCHEMA retrysafe TO {name}"),
    )
    .await;
    let denied = client(&stranger)
        .await
        .batch_execute("SELECT * FROM retrysafe.look('')")
        .await
        .unwrap_err();
    assert_eq!(denied.code().unwrap().code(), "42501", "{denied:?}");
}

/// Functions of the caller's own must not run with the rights of the owner of the schema.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_callers_search_path_changes_nothing() {
    let url = database().await;
    let low = member(&url).await;
    let name = low.split("://").nth(1).unwrap().split('@').next().unwrap().to_owned();
    sql(&url, &format!("CREATE SCHEMA evil AUTHORIZATION {name}")).await;
    let caller = Caller::connect(&low).await;
    let traps = "CREATE FUNCTION evil.sha256(bytea) RETURNS bytea LANGUAGE plpgsql AS
            $$ BEGIN RAISE EXCEPTION 'trapped as %', current_user; END $$;
        CREATE FUNCTION evil.octet_length(bytea) RETURNS integer LANGUAGE plpgsql AS
            $$ BEGIN RAISE EXCEPTION 'trapped as %', current_user; END $$;
        SET search_path = evil, retrysafe, pg_catalog";
    caller.run(traps).await.unwrap();
    let asked = Asked::flow("k");
    let begun = caller.begin(&asked).await.unwrap();
    assert_eq!(
        caller.settle(begun.owner(), &Told::completed("done"), None).await.unwrap(),
        "completed"
    );
    let seen = caller.ask("SELECT state FROM look($1)", &[&begun.id]).await.unwrap();
    assert_eq!(seen.get::<_, String>(0), "completed");
}
