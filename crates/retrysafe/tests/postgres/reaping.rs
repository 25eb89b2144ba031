//! Does a reaper with much to do hold up nobody?

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use retrysafe::core::store::Store as _;

use crate::kit::load::{History, id};
use crate::kit::{client, database, number, sql, store};

/// How many records are over.
const OVER: usize = 600;

/// How many of them one step of a reaper takes.
const STEP: usize = 200;

/// How many new keys callers get answers for meanwhile.
const ANSWERS: usize = 200;

/// Much longer than all of it takes: whoever waits so long is locked out.
const PATIENCE: Duration = Duration::from_secs(60);

async fn answered(
    history: &Arc<History>,
    store: &retrysafe::stores::postgres::PostgresStore,
    wanted: usize,
) {
    let stop = Arc::new(AtomicBool::new(false));
    let callers = history.run(store, 8, &stop);
    let served = async {
        while history.answers() < wanted {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    let served = tokio::time::timeout(PATIENCE, served).await;
    stop.store(true, Ordering::Relaxed);
    assert!(served.is_ok(), "{} of {wanted} were answered", history.answers());
    for caller in callers {
        tokio::time::timeout(PATIENCE, caller).await.expect("nobody is locked out").unwrap();
    }
}

/// One step of a reaper has deleted its records and has not committed, for as long as it takes: callers begin, settle and are answered,
/// and another reaper takes everything else.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reaper_in_the_middle_of_its_step_locks_nobody_out() {
    let url = database().await;
    let store = store(&url).await;
    let former = Arc::new(History::default());
    answered(&former, &store, OVER).await;
    let over = former.answers();
    sql(&url, "UPDATE retrysafe_test.clock SET ms = ms + 7200000").await;

    let slow = client(&url).await;
    slow.batch_execute("BEGIN").await.unwrap();
    let taken = format!("SELECT reaped FROM retrysafe.reap_v1(NULL, {STEP}, false)");
    let taken: i64 = slow.query_one(&taken, &[]).await.unwrap().get(0);
    assert_eq!(taken, STEP as i64, "no step takes more than it is told to");

    // Keys that were never used, beside a second reaper.
    let history = Arc::new(History::named("new"));
    let reaping = async {
        let mut reaped = 0;
        loop {
            let step = store.reap(STEP).await.unwrap().value;
            assert!(step <= STEP);
            reaped += step;
            if step == 0 {
                return reaped;
            }
        }
    };
    let both = async { tokio::join!(answered(&history, &store, ANSWERS), reaping) };
    let ((), reaped) = tokio::time::timeout(PATIENCE, both).await.expect("nobody is locked out");
    assert_eq!(reaped, over - STEP, "what the slow one holds is left to it");
    slow.batch_execute("COMMIT").await.unwrap();
    let kept = history.check(&store).await;
    assert_eq!(number(&url, "SELECT count(*) FROM retrysafe.record").await, kept as i64);
    assert!(store.load(id("k0")).await.unwrap().value.is_none());
}
