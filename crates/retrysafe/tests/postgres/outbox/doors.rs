//! Does SQL stage what Rust stages, for a role that may touch no table?

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use retrysafe::outbox::{Effect, OutboxError};
use sqlx::postgres::PgListener;
use tokio_postgres::Client;

use super::stage::{OutboxStage, mail};
use crate::kit::{client, number, sql};

/// A connection of a role that has nothing but `retrysafe_app`.
async fn application(stage: &OutboxStage) -> Client {
    let name = stage.url.rsplit('/').next().unwrap().replace('-', "_");
    let role = format!("app_of_{name}");
    sql(&stage.url, &format!("CREATE ROLE {role} LOGIN IN ROLE retrysafe_app")).await;
    client(&stage.url.replace("postgres@", &format!("{role}@"))).await
}

/// The code, the detail and the hint of a refusal.
async fn refusal(app: &Client, statement: &str) -> (String, Option<String>, Option<String>) {
    let error = app.batch_execute(statement).await.unwrap_err();
    let error = error.as_db_error().unwrap_or_else(|| panic!("{statement}: {error:?}")).clone();
    let text = |text: Option<&str>| text.map(str::to_owned);
    (error.code().code().to_owned(), text(error.detail()), text(error.hint()))
}

/// Everything that is kept of the one effect but its number, as text.
const ROW: &str = "SELECT concat_ws('|', e.kind, e.state, e.at, e.fence, e.lane, e.name, e.downstream_key,
        e.destination, e.content_type, encode(e.payload, 'hex'), e.staged_at, encode(n.digest, 'hex'), n.effect_id = e.id)
    FROM retrysafe.effect e LEFT JOIN retrysafe.effect_name n ON n.kind = e.kind AND n.name = e.name";

#[tokio::test]
async fn what_rust_and_sql_stage_is_the_same_row() {
    let stage = OutboxStage::new().await;
    let app = application(&stage).await;
    let later = UNIX_EPOCH + Duration::from_millis(1_700_000_900_123);
    let whole = || {
        let effect = Effect::new("mail").to("https://mail.example/ä").body("text/plain", "hällo");
        effect.lane("acct 1").name("ride 7").key_by("7 ü").not_before(later)
    };
    let whole_sql = "SELECT id, is_new, downstream_key FROM retrysafe.stage('mail', convert_to('hällo', 'UTF8'),
        'text/plain', destination => 'https://mail.example/ä', lane => 'acct 1', name => 'ride 7', key_by => '7 ü',
        not_before => to_timestamp(1700000900.123))";
    let bare_sql = "SELECT id, is_new, downstream_key FROM retrysafe.stage('mail', key_by => 'x')";
    let json = || Effect::new("mail").body("application/json", r#"{"a": 1}"#).key_by("x");
    let json_sql = "SELECT id, is_new, downstream_key FROM retrysafe.stage_json('mail', '{\"a\":1}', key_by => 'x')";
    for (effect, statement) in
        [(whole(), whole_sql), (Effect::new("mail").key_by("x"), bare_sql), (json(), json_sql)]
    {
        let staged = stage.stage(effect).await;
        let by_rust: String = app_owner(&stage).await.query_one(ROW, &[]).await.unwrap().get(0);
        sql(&stage.url, "DELETE FROM retrysafe.effect; DELETE FROM retrysafe.effect_name").await;
        let row = app.query_one(statement, &[]).await.unwrap();
        let by_sql: String = app_owner(&stage).await.query_one(ROW, &[]).await.unwrap().get(0);
        assert_eq!(by_rust, by_sql);
        assert!(row.get::<_, i64>(0) > staged.id && row.get::<_, bool>(1));
        assert_eq!(row.get::<_, String>(2), staged.key);
        if statement == whole_sql {
            // Each knows the other's names.
            let again = stage.stage(whole()).await;
            assert_eq!((again.id, again.is_new), (row.get(0), false));
            let mut tx = stage.pool.begin().await.unwrap();
            let other = stage.outbox.stage(&mut tx, mail("other").name("ride 7")).await;
            assert!(matches!(other, Err(OutboxError::OtherContent)), "{other:?}");
        }
        sql(&stage.url, "DELETE FROM retrysafe.effect; DELETE FROM retrysafe.effect_name").await;
    }
}

async fn app_owner(stage: &OutboxStage) -> Client {
    client(&stage.url).await
}

#[tokio::test]
async fn an_effect_that_sql_stages_exists_if_its_transaction_commits_and_is_delivered() {
    let stage = OutboxStage::new().await;
    let app = application(&stage).await;
    app.batch_execute("BEGIN; SELECT retrysafe.stage('mail', 'never'); ROLLBACK").await.unwrap();
    assert_eq!(stage.count(1).await, 0);
    app.batch_execute("BEGIN; SELECT retrysafe.stage('mail', 'hello'); COMMIT").await.unwrap();
    let working = stage.worker(stage.known()).start();
    stage.wait_for(5, 1).await;
    assert!(working.stop(Duration::from_secs(60)).await);
    assert_eq!(stage.receiver.order(), ["hello"]);
}

#[tokio::test]
async fn what_cannot_be_staged_is_refused_with_a_code_and_a_cure() {
    let stage = OutboxStage::new().await;
    let app = application(&stage).await;
    app.batch_execute("SELECT retrysafe.stage('mail', 'a', name => 'n')").await.unwrap();
    for (statement, code) in [
        ("SELECT retrysafe.stage('')", "RS007"),
        ("SELECT retrysafe.stage(NULL)", "RS007"),
        ("SELECT retrysafe.stage('mail', NULL)", "RS007"),
        ("SELECT retrysafe.stage_json('mail', NULL)", "RS007"),
        ("SELECT retrysafe.stage('mail', convert_to(repeat('x', 1048577), 'UTF8'))", "RS007"),
        ("SELECT retrysafe.stage('mail', '', lane => '')", "RS007"),
        ("SELECT retrysafe.stage('mail', '', name => repeat('n', 257))", "RS007"),
        ("SELECT retrysafe.stage('mail', '', destination => repeat('d', 2049))", "RS007"),
        ("SELECT retrysafe.stage('mail', '', not_before => 'infinity')", "RS007"),
        ("SELECT retrysafe.cancel_effect(NULL)", "RS007"),
        ("SELECT retrysafe.stage('mail', 'b', name => 'n')", "RS020"),
        ("BEGIN; SELECT retrysafe.stage('mail', 'b'); SELECT retrysafe.wake_workers()", "RS021"),
        (
            "BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT retrysafe.stage('mail', 'b', lane => 'l')",
            "RS002",
        ),
    ] {
        let (refused, _, hint) = refusal(&app, statement).await;
        assert_eq!(refused, code, "{statement}");
        assert!(hint.is_some(), "{statement}");
        app.batch_execute("ROLLBACK").await.unwrap();
    }
    assert_eq!(stage.count(1).await, 1);
}

#[tokio::test]
async fn sql_takes_an_effect_back_or_says_why_it_is_too_late() {
    let stage = OutboxStage::new().await;
    let app = application(&stage).await;
    let cancel = async |id: i64| {
        let row = app.query_one("SELECT retrysafe.cancel_effect($1)", &[&id]).await.unwrap();
        row.get::<_, String>(0)
    };
    let id = stage.stage(mail("a")).await.id;
    app.batch_execute(&format!("BEGIN; SELECT retrysafe.cancel_effect({id}); ROLLBACK"))
        .await
        .unwrap();
    assert_eq!(stage.count(1).await, 1, "what was rolled back did not happen");
    assert_eq!((cancel(id).await, cancel(id).await), ("cancelled".into(), "cancelled".into()));
    assert_eq!(cancel(999).await, "absent");
    for (change, answer) in [
        ("state = 2, fence = 1, marked_by = 1", "may_have_been_sent"),
        ("state = 3, fence = 1, marked_by = 1", "unknown"),
    ] {
        let id = stage.stage(mail("b")).await.id;
        sql(&stage.url, &format!("UPDATE retrysafe.effect SET {change} WHERE id = {id}")).await;
        assert_eq!(cancel(id).await, answer);
    }
    sql(&stage.url, "DELETE FROM retrysafe.effect").await;
    let id = stage.stage(mail("c")).await.id;
    let working = stage.worker(stage.known()).start();
    stage.wait_for(5, 1).await;
    assert!(working.stop(Duration::from_secs(60)).await);
    assert_eq!(cancel(id).await, "delivered");
}

#[tokio::test]
async fn workers_are_woken_after_the_commit_and_seldom() {
    let stage = OutboxStage::new().await;
    let app = application(&stage).await;
    let mut listener = PgListener::connect_with(&stage.pool).await.unwrap();
    listener.listen("retrysafe staged").await.unwrap();
    let begun = Instant::now();
    let mut woken = 0;
    for _ in 0..100 {
        let row = app.query_one("SELECT retrysafe.wake_workers()", &[]).await.unwrap();
        woken += u128::from(row.get::<_, bool>(0));
    }
    // One for the beginning, one for each 50 milliseconds, and one for what they are counted from.
    let most = begun.elapsed().as_millis() / 50 + 2;
    assert!((1..=most).contains(&woken), "{woken} of 100 within {:?}", begun.elapsed());
    for _ in 0..woken {
        assert_eq!(listener.recv().await.unwrap().channel(), "retrysafe staged");
    }
    // A clock that has gone back wakes too.
    let ahead = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_millis() + 3_600_000;
    sql(&stage.url, &format!("SELECT setval('retrysafe.woken_at', {ahead})")).await;
    let woken = "SELECT retrysafe.wake_workers()::integer::bigint";
    assert_eq!(number(&stage.url, woken).await, 1);
}

/// The functions for workers and operators are of the owner of the tables.
#[tokio::test]
async fn the_role_stages_and_does_nothing_else() {
    let stage = OutboxStage::new().await;
    let app = application(&stage).await;
    stage.stage(mail("a")).await;
    for statement in [
        "SELECT * FROM retrysafe.claim_effects_v1('mail', 1, 1000)",
        "SELECT retrysafe.cancel_effect_v1(1)",
        "SELECT retrysafe.requeue_effect_v1(1)",
        "SELECT retrysafe.resolve_effect_v1(1, 0, 1::smallint, 0, NULL, 'x')",
        "SELECT retrysafe.operate_v1('list', '{\"states\": [1], \"most\": 1}')",
        "SELECT retrysafe.operate_v1('pause', '{\"kind\": \"mail\", \"who\": \"a\", \"reason\": \"b\"}')",
        "SELECT retrysafe.make_effect_days()",
        "SELECT nextval('retrysafe.woken_at')",
    ] {
        assert_eq!(refusal(&app, statement).await.0, "42501", "{statement}");
    }
}
