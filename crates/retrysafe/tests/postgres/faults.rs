//! What does the PostgreSQL store do when things break?
//!
//! Each test has its own server, or its own database and proxy, and counts executions where the
//! effect would be.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::kit::cluster::Cluster;
use crate::kit::load::{History, begin, completed, id};
use crate::kit::proxy::{Cut, Proxy};
use crate::kit::{client, database, number, sql, store};
use retrysafe::core::engine::{Begun, Engine, Settled};
use retrysafe::core::record::Standing;
use retrysafe::core::{Store as _, store::StoreErrorKind};
use retrysafe::stores::postgres::PostgresStore;

/// Waits until a condition holds; the test's own time limit is its end.
async fn until(mut holds: impl FnMut() -> bool) {
    while !holds() {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_acknowledged_is_lost_when_the_whole_server_is_killed_twenty_times() {
    let cluster = Arc::new(Cluster::start(&[]));
    let store = store(&cluster.url("postgres")).await;
    let (history, stop) = (Arc::new(History::default()), Arc::new(AtomicBool::new(false)));
    let callers = history.run(&store, 32, &stop);
    for _ in 0..20 {
        // Some work between two crashes, by the same store: it is never opened again.
        let before = history.answers();
        until(|| history.answers() > before + 200).await;
        let cluster = Arc::clone(&cluster);
        tokio::task::spawn_blocking(move || {
            cluster.kill();
            cluster.up();
        })
        .await
        .unwrap();
    }
    let before = history.answers();
    until(|| history.answers() > before + 200).await;
    stop.store(true, Ordering::Relaxed);
    for caller in callers {
        caller.await.unwrap();
    }
    let answers = history.check(&store).await;
    assert!(answers > 4_000, "{answers}");
    println!("20 kills, {answers} answers, none lost, none executed twice");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lost_acknowledgement_of_a_commit_is_decided_by_reading_back() {
    let url = database().await;
    let (base, name) = url.rsplit_once('/').unwrap();
    let port = base.rsplit_once(':').unwrap().1.parse().unwrap();
    let proxy = Proxy::to(port).await;
    let through = format!("postgres://postgres@{}/{name}", proxy.address);
    let engine = Engine::new(store(&through).await);
    let mut cuts = 0;
    for (at, cut) in [Cut::AfterCommit, Cut::BeforeCommit].into_iter().cycle().take(40).enumerate()
    {
        let key = format!("k{at}");
        proxy.arm(cut);
        let begun = begin(&engine, &key, at as u64 + 1).await.unwrap();
        let Begun::Execute(lease) = begun else { panic!("{cut:?} of a begin: {begun:?}") };
        proxy.arm(cut);
        let settled = engine.settle(lease, &completed(&key)).await.unwrap();
        let Settled::Done(record) = settled else { panic!("{cut:?} of a settle: {settled:?}") };
        cuts += 2;
        assert_eq!(proxy.cuts(), cuts, "each of them was cut");
        // What is stored is what was answered, and it was written once.
        assert_eq!(engine.look(id(&key)).await.unwrap().value, Some(record));
        let written =
            format!("SELECT moments::bigint FROM retrysafe.record WHERE id = '\\x{}'", id(&key));
        assert_eq!(number(&url, &written).await, 2, "a begin and a settle of {key}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn terminated_backends_cost_time_and_nothing_else() {
    let url = database().await;
    let store = store(&url).await;
    let (history, stop) = (Arc::new(History::default()), Arc::new(AtomicBool::new(false)));
    let callers = history.run(&store, 32, &stop);
    let admin = client(&url).await;
    for _ in 0..20 {
        let before = history.answers();
        until(|| history.answers() > before + 50).await;
        let ended = admin.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity
            WHERE datname = current_database() AND application_name = 'retrysafe'",
            &[],
        );
        assert!(ended.await.unwrap() > 0);
    }
    stop.store(true, Ordering::Relaxed);
    for caller in callers {
        caller.await.unwrap();
    }
    assert!(history.check(&store).await > 1_000);
}

/// Fails every third write of a record with this code. A sequence counts, because it is not rolled
/// back with the failure.
async fn fail_every_third_write(url: &str, body: &str) {
    let trigger = format!(
        "CREATE SEQUENCE retrysafe_test.writes;
        CREATE FUNCTION retrysafe_test.fail() RETURNS trigger LANGUAGE plpgsql AS $$
        BEGIN
            IF nextval('retrysafe_test.writes') % 3 = 0 THEN {body} END IF;
            RETURN NEW;
        END $$;
        CREATE TRIGGER fail BEFORE INSERT OR UPDATE ON retrysafe.record
            FOR EACH ROW EXECUTE FUNCTION retrysafe_test.fail()"
    );
    sql(url, &trigger).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn deadlocks_serialization_failures_and_timeouts_are_tried_again_and_never_doubled() {
    for (what, deadline, body) in [
        ("deadlock", "5s", "RAISE EXCEPTION 'deadlock' USING ERRCODE = '40P01';"),
        ("serialization failure", "5s", "RAISE EXCEPTION 'again' USING ERRCODE = '40001';"),
        // Longer than the server lets a statement run, which is half of the deadline.
        ("statement timeout", "1s", "PERFORM pg_sleep(10);"),
    ] {
        let url = database().await;
        fail_every_third_write(&url, body).await;
        // Opening it within a short deadline may take several tries on a busy machine.
        let short = format!("{url}?deadline={deadline}");
        let engine = loop {
            if let Ok(store) = PostgresStore::connect(&short).await {
                break Engine::new(store);
            }
        };
        let history = Arc::new(History::default());
        for n in 0..12 {
            let key = format!("k{n}");
            while !history.request(&engine, &key).await {}
        }
        assert_eq!(history.check(&store(&url).await).await, 12, "{what}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_record_that_cannot_be_written_fails_itself_and_not_its_neighbours() {
    let url = database().await;
    let poison = format!(
        "ALTER TABLE retrysafe.record ADD CONSTRAINT poison CHECK (id <> '\\x{}')",
        id("poison")
    );
    sql(&url, &poison).await;
    let store = store(&url).await;
    let engine = Arc::new(Engine::new(store));
    let tasks: Vec<_> = (0..64)
        .map(|n| {
            let engine = Arc::clone(&engine);
            let key = if n == 32 { "poison".into() } else { format!("k{n}") };
            tokio::spawn(async move { (n, begin(&engine, &key, n).await) })
        })
        .collect();
    for task in tasks {
        match task.await.unwrap() {
            (32, Err(error)) => assert!(!error.may_have_applied(), "{error}"),
            (32, Ok(begun)) => panic!("{begun:?}"),
            (_, begun) => assert!(matches!(begun, Ok(Begun::Execute(_))), "{begun:?}"),
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_is_too_slow_is_unavailable_within_the_deadline_and_surely_not_applied() {
    let url = database().await;
    let store = store(&format!("{url}?deadline=4s")).await;
    let engine = Engine::new(store);
    let mut rival = client(&url).await;
    let held = rival.transaction().await.unwrap();
    held.batch_execute("LOCK TABLE retrysafe.record IN ACCESS EXCLUSIVE MODE").await.unwrap();
    let late = begin(&engine, "k", 1).await.unwrap_err();
    assert_eq!(late.kind(), StoreErrorKind::Unavailable);
    assert!(!late.may_have_applied(), "every attempt was refused by the server: {late}");
    held.rollback().await.unwrap();
    assert!(matches!(begin(&engine, "k", 2).await, Ok(Begun::Execute(_))));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_without_free_connections_is_unavailable_and_comes_back() {
    let cluster = Cluster::start(&[
        ("max_connections", "8"),
        ("superuser_reserved_connections", "0"),
        ("max_wal_senders", "0"),
    ]);
    let url = cluster.url("postgres");
    let store = store(&format!("{url}?deadline=4s")).await;
    let engine = Engine::new(store);
    let admin = client(&url).await;
    let mut others = Vec::new();
    while let Ok((other, connection)) = tokio_postgres::connect(&url, tokio_postgres::NoTls).await {
        tokio::spawn(connection);
        others.push(other);
        // Our own connections end and find no room to come back.
        let end = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity
            WHERE application_name = 'retrysafe'";
        admin.execute(end, &[]).await.unwrap();
        if others.len() >= 7 {
            break;
        }
    }
    let crowded = begin(&engine, "k", 1).await;
    if let Err(error) = &crowded {
        assert!(!error.may_have_applied(), "{error}");
    }
    drop(others);
    let again = async {
        loop {
            if let Ok(begun) = begin(&engine, "other", 2).await {
                return begun;
            }
        }
    };
    assert!(matches!(again.await, Begun::Execute(_)));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_cannot_keep_the_promise_is_refused_with_the_reason() {
    let refusal = async |url: &str| PostgresStore::connect(url).await.unwrap_err().to_string();

    let unsafe_server = Cluster::start(&[("fsync", "off")]);
    let told = refusal(&unsafe_server.url("postgres")).await;
    assert!(told.contains("fsync"), "{told}");

    let url = database().await;
    let told = refusal(&format!("{url}?options=-c%20synchronous_commit%3Doff")).await;
    assert!(told.contains("synchronous_commit"), "{told}");

    let name = url.rsplit_once('/').unwrap().1;
    sql(&url, &format!("ALTER DATABASE {name} SET synchronous_commit = off")).await;
    let told = refusal(&url).await;
    assert!(told.contains("synchronous_commit"), "{told}");

    let url = database().await;
    sql(&url, "ALTER TABLE retrysafe.record SET UNLOGGED").await;
    let told = refusal(&url).await;
    assert!(told.contains("unlogged") && told.contains("record"), "{told}");

    let url = database().await;
    sql(&url, "INSERT INTO retrysafe.migration (number, oldest) VALUES (99, 99)").await;
    let told = refusal(&url).await;
    assert!(told.contains("99"), "{told}");

    let told = refusal("postgres://127.0.0.1:1/none?deadline=500ms").await;
    assert!(told.contains("cannot connect"), "{told}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn damage_is_never_taken_for_absence() {
    let url = database().await;
    let engine = Engine::new(store(&url).await);
    let Ok(Begun::Execute(lease)) = begin(&engine, "k", 1).await else { panic!() };
    let Ok(Settled::Done(record)) = engine.settle(lease, &completed("x")).await else { panic!() };
    assert_eq!(record.standing(), Standing::Completed);
    for damage in [
        "UPDATE retrysafe.record SET body = set_byte(body, 0, get_byte(body, 0) # 1)",
        "UPDATE retrysafe.record SET headers = 'x: y\n'",
        "UPDATE retrysafe.record SET status = 200",
        "UPDATE retrysafe.record SET expires_at = expires_at + 1",
        "UPDATE retrysafe.record SET request = set_byte(request, 45, 0)",
        "UPDATE retrysafe.record SET state = 2, status = NULL, headers = NULL, body = NULL",
        "UPDATE retrysafe.record SET request = set_byte(request, 0, 9)",
        "UPDATE retrysafe.record SET body = NULL",
    ] {
        let copy = "CREATE TABLE retrysafe_test.r AS TABLE retrysafe.record";
        sql(&url, copy).await;
        sql(&url, damage).await;
        let loaded = engine.store().load(id("k")).await.unwrap_err();
        assert_eq!(loaded.kind(), StoreErrorKind::Damaged, "{damage}");
        let begun = begin(&engine, "k", 2).await.unwrap_err();
        assert_eq!(begun.kind(), StoreErrorKind::Damaged, "{damage}");
        let page = engine.store().scan(Default::default()).await.unwrap().value;
        assert_eq!((page.records.len(), page.damaged), (0, vec![id("k")]), "{damage}");
        let restore =
            "DELETE FROM retrysafe.record; INSERT INTO retrysafe.record TABLE retrysafe_test.r;
            DROP TABLE retrysafe_test.r";
        sql(&url, restore).await;
        assert_eq!(engine.look(id("k")).await.unwrap().value.as_ref(), Some(&record), "{damage}");
    }
}

// A server that does not know our function, as after a downgrade: said at once, on one connection.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_read_that_is_refused_is_told_and_does_not_reconnect() {
    let url = database().await;
    let store = store(&url).await;
    let name = url.rsplit_once('/').unwrap().1;
    let mine = format!(
        "SELECT coalesce(max(pid), 0)::bigint FROM pg_stat_activity
         WHERE application_name = 'retrysafe' AND datname = '{name}'"
    );
    let _ = store.load(id("k")).await.unwrap();
    let before = number(&url, &mine).await;
    sql(&url, "ALTER FUNCTION retrysafe.load_v1 RENAME TO gone").await;
    let error = store.load(id("k")).await.unwrap_err();
    assert!(error.to_string().contains("42883"), "undefined function: {error}");
    assert_eq!(number(&url, &mine).await, before, "no newer connection");
}

// The first sending is still under way when its connection breaks; the second meets it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_begin_that_meets_its_own_first_sending_executes() {
    let url = database().await;
    let (base, name) = url.rsplit_once('/').unwrap();
    let (address, cut) = Cutter::to(base.rsplit_once(':').unwrap().1.parse().unwrap()).await;
    let through = format!("postgres://postgres@{address}/{name}?deadline=20s");
    let engine = Arc::new(Engine::new(store(&through).await));
    let _ = begin(&engine, "warm", 1).await.unwrap();
    sql(
        &url,
        "CREATE FUNCTION held() RETURNS trigger LANGUAGE plpgsql AS
            $$ BEGIN
                WHILE NOT pg_try_advisory_xact_lock_shared(7) LOOP PERFORM pg_sleep(0.005); END LOOP;
                RETURN NULL;
            END $$;
         CREATE TRIGGER held AFTER INSERT ON retrysafe.record
            FOR EACH ROW EXECUTE FUNCTION held()",
    )
    .await;
    let admin = client(&url).await;
    admin.batch_execute("SELECT pg_advisory_lock(7)").await.unwrap();
    let waiting = {
        let engine = Arc::clone(&engine);
        tokio::spawn(async move { begin(&engine, "k", 2).await })
    };
    let held = "SELECT 1 FROM pg_stat_activity WHERE wait_event = 'PgSleep'";
    while admin.execute(held, &[]).await.unwrap() == 0 {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    cut.send(()).unwrap();
    // The second sending waits for the end of the first.
    let meets = "SELECT 1 FROM pg_locks WHERE locktype = 'transactionid' AND NOT granted";
    while admin.execute(meets, &[]).await.unwrap() == 0 {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    admin.batch_execute("SELECT pg_advisory_unlock(7)").await.unwrap();
    assert!(matches!(waiting.await.unwrap(), Ok(Begun::Execute(_))), "nobody else has begun it");
}

/// A proxy whose clients are cut off while its connections to the server stay open.
struct Cutter;

impl Cutter {
    async fn to(port: u16) -> (std::net::SocketAddr, tokio::sync::watch::Sender<()>) {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (cut, seen) = tokio::sync::watch::channel(());
        tokio::spawn(async move {
            while let Ok((mut client, _)) = listener.accept().await {
                let mut server = tokio::net::TcpStream::connect(("127.0.0.1", port)).await.unwrap();
                let mut seen = seen.clone();
                seen.mark_unchanged();
                tokio::spawn(async move {
                    tokio::select! {
                        // Either side hangs up in the end.
                        _ = tokio::io::copy_bidirectional(&mut client, &mut server) => {}
                        _ = seen.changed() => {
                            drop(client);
                            // Held open until the server is done with it.
                            let _ = tokio::io::copy(&mut server, &mut tokio::io::sink()).await;
                        }
                    }
                });
            }
        });
        (address, cut)
    }
}
