//! Does one win where many ask at once, and is nothing done twice where an answer is lost?

use super::caller::{Asked, Caller, Told};
use crate::kit::cluster::Cluster;
use crate::kit::proxy::{Cut, Proxy};
use crate::kit::{client, database, number, sql};

const CALLERS: usize = 32;

/// As many connections as there are callers.
async fn callers(url: &str) -> Vec<Caller> {
    let mut callers = Vec::with_capacity(CALLERS);
    for _ in 0..CALLERS {
        callers.push(Caller::connect(url).await);
    }
    callers
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_many_that_begin_at_once_one_executes() {
    let url = database().await;
    let mut callers = callers(&url).await;
    for round in 0..6 {
        let key = format!("k{round}");
        let tasks: Vec<_> = callers
            .drain(..)
            .map(|caller| {
                let asked = Asked::flow(&key);
                tokio::spawn(async move { (caller.begin(&asked).await.unwrap(), caller) })
            })
            .collect();
        let mut owners = vec![];
        for task in tasks {
            let (begun, caller) = task.await.unwrap();
            callers.push(caller);
            match &*begun.decision {
                "execute" => owners.push(begun),
                other => assert_eq!(other, "in_progress"),
            }
        }
        assert_eq!(owners.len(), 1, "round {round}");
        // All of them have the fence by mistake, and make the same phase. Its row is there once.
        sql(&url, &format!("CREATE TABLE ride_{round} (place text)")).await;
        let begun = owners.remove(0);
        callers[0].start(begun.owner(), "ride/1", b"{}").await.unwrap();
        let tasks: Vec<_> = callers
            .drain(..)
            .map(|caller| {
                let begun = begun.clone();
                tokio::spawn(async move {
                    caller.run("BEGIN").await.unwrap();
                    caller.run(&format!("INSERT INTO ride_{round} VALUES ('here')")).await.unwrap();
                    let moved = caller.advance_in(begun.owner(), "before 0", b"7").await;
                    caller.run(if moved.is_ok() { "COMMIT" } else { "ROLLBACK" }).await.unwrap();
                    (moved, caller)
                })
            })
            .collect();
        let mut moved = 0;
        for task in tasks {
            let (told, caller) = task.await.unwrap();
            callers.push(caller);
            match told {
                Ok(point) => {
                    assert_eq!(point, "before 1");
                    moved += 1;
                }
                Err(code) => assert_eq!(code, "RS001"),
            }
        }
        let rows = number(&url, &format!("SELECT count(*) FROM ride_{round}")).await;
        assert_eq!((moved, rows), (1, 1), "round {round}");
    }
}

/// An application behind a proxy that can cut its connection, and one that looks at what is there.
struct Shop {
    cluster: Cluster,
    proxy: Proxy,
    url: String,
}

impl Shop {
    async fn open() -> Self {
        let cluster = Cluster::start(&[]);
        let url = cluster.url("postgres");
        retrysafe::stores::postgres::migrate(&url.parse().unwrap()).await.unwrap();
        sql(&url, "CREATE TABLE ride (key text)").await;
        let proxy = Proxy::to(cluster.port).await;
        Self { cluster, proxy, url }
    }

    async fn caller(&self) -> Caller {
        let url = format!("postgres://postgres@{}/postgres", self.proxy.address);
        assert!(self.cluster.port > 0);
        Caller { db: client(&url).await }
    }
}

/// Each write of a flow in turn is cut before it reaches the server, or after it was committed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_answer_that_is_lost_is_asked_for_again_and_nothing_is_done_twice() {
    let shop = Shop::open().await;
    let mut cuts = 0;
    for cut in [Cut::BeforeCommit, Cut::AfterCommit] {
        let key = format!("{cut:?}");
        let asked = Asked::flow(&key);
        // The begin. Nothing was sent, so it is withdrawn, and begun again.
        shop.proxy.arm(cut);
        let begin = "CALL retrysafe.begin($1, $2, $3, $4, owner => $5)";
        let Asked { scope, key: name, fingerprint, flows, owner, .. } = &asked;
        let caller = shop.caller().await;
        let lost = caller.db.query_one(begin, &[scope, name, fingerprint, flows, owner]).await;
        assert!(lost.unwrap_err().is_closed(), "{key}");
        cuts += 1;
        assert_eq!(shop.proxy.cuts(), cuts);
        let caller = shop.caller().await;
        let id: Vec<u8> = caller
            .ask("SELECT retrysafe.record_id($1, $2)", &[&asked.scope, &asked.key])
            .await
            .unwrap()
            .get(0);
        assert_eq!(caller.withdraw(&id, asked.owner).await.unwrap(), cut == Cut::AfterCommit);
        let begun = caller.begin(&asked).await.unwrap();
        assert_eq!(begun.decision, "execute", "{key}");
        let (id, fence) = begun.owner();

        // The steps that commit by themselves are repeated as they were.
        let steps = [
            ("CALL retrysafe.start($1, $2, 'ride/1', '{}')", "before 0"),
            ("COMMIT", "before 1"),
            ("CALL retrysafe.advance($1, $2, 'before 1', '8')", "before 2"),
            (
                "CALL retrysafe.settle($1, $2, 'completed', 201, NULL, 'done', 'before 2')",
                "completed",
            ),
        ];
        for (step, answer) in steps {
            let caller = shop.caller().await;
            if step == "COMMIT" {
                caller.run("BEGIN").await.unwrap();
                caller.guard((id, fence)).await.unwrap();
                caller.run(&format!("INSERT INTO ride VALUES ('{key}')")).await.unwrap();
                caller.advance_in((id, fence), "before 0", b"7").await.unwrap();
                shop.proxy.arm_commit(cut);
                assert!(caller.db.batch_execute("COMMIT").await.unwrap_err().is_closed());
                // Nobody knows. The record does.
                let caller = shop.caller().await;
                let seen = caller.ask("SELECT * FROM retrysafe.look($1)", &[&id]).await.unwrap();
                assert_eq!(seen.get::<_, i64>("fence"), fence);
                let point: String = seen.get("recovery_point");
                assert_eq!(point == answer, cut == Cut::AfterCommit, "{key}: {point}");
                if point != answer {
                    caller.run("BEGIN").await.unwrap();
                    caller.run(&format!("INSERT INTO ride VALUES ('{key}')")).await.unwrap();
                    caller.advance_in((id, fence), "before 0", b"7").await.unwrap();
                    caller.run("COMMIT").await.unwrap();
                }
            } else {
                shop.proxy.arm(cut);
                assert!(caller.db.query_one(step, &[&id, &fence]).await.unwrap_err().is_closed());
                let told = shop.caller().await.ask(step, &[&id, &fence]).await.unwrap();
                assert_eq!(told.get::<_, String>(0), answer, "{key}: {step}");
            }
            cuts += 1;
            assert_eq!(shop.proxy.cuts(), cuts, "{key}: {step}");
        }
        let rides = format!("SELECT count(*) FROM ride WHERE key = '{key}'");
        assert_eq!(number(&shop.url, &rides).await, 1, "{key}");
        let replay = shop.caller().await.begin(&asked).await.unwrap();
        assert_eq!((&*replay.decision, replay.body.as_deref()), ("replay", Some(&b"done"[..])));
    }
    println!("{cuts} cuts: 5 writes, each before and after its commit");
}

/// A mark that was committed and whose answer was lost: nothing was sent, and the next attempt sends once.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lost_answer_before_a_call_is_not_a_second_call() {
    let shop = Shop::open().await;
    for (remembers_ms, after) in [(Some(600_000_i64), "execute"), (None, "unknown")] {
        let key = format!("{remembers_ms:?}");
        let asked = Asked::flow(&key);
        let caller = shop.caller().await;
        let begun = caller.begin(&asked).await.unwrap();
        let (id, fence) = begun.owner();
        caller.start((id, fence), "ride/1", b"{}").await.unwrap();
        shop.proxy.arm(Cut::AfterCommit);
        let call = "CALL retrysafe.about_to_call($1, $2, 'before 0', 'charge', 'x', $3, 1, 0, 1)";
        assert!(
            caller.db.query_one(call, &[&id, &fence, &remembers_ms]).await.unwrap_err().is_closed()
        );
        let caller = shop.caller().await;
        let state = caller.settle((id, fence), &Told::outcome("unknown"), None).await.unwrap();
        assert_eq!(state, if remembers_ms.is_some() { "in_progress" } else { "unknown" });
        assert_eq!(caller.begin(&asked).await.unwrap().decision, after);
    }
}
