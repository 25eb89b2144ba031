//! What if an owner asks twice, calls a phase by another name, or was never an owner?

use super::caller::{Asked, Begun, Call, Caller, Told};
use crate::kit::{database, number, sql};

const MINUTES: Option<i64> = Some(600_000);

/// A started flow, with a clock that stands still.
async fn started() -> (String, Caller, Begun) {
    let url = database().await;
    sql(&url, "UPDATE retrysafe_test.clock SET still = true, ms = 1700000000000").await;
    let caller = Caller::connect(&url).await;
    let begun = caller.begin(&Asked::flow("k")).await.unwrap();
    caller.start(begun.owner(), "ride/1", b"{}").await.unwrap();
    (url, caller, begun)
}

async fn call(caller: &Caller, begun: &Begun, from: &str) -> Call {
    caller.about_to_call(begun.owner(), from, b"charge", MINUTES, 1).await.unwrap()
}

async fn notes(url: &str) -> i64 {
    let sql = "SELECT count(*) FROM retrysafe.history WHERE what LIKE 'late result of fence%'";
    number(url, sql).await
}

/// Until when the call may be repeated.
async fn window(url: &str) -> i64 {
    let sql = "SELECT (retrysafe.read_flow((retrysafe.read_detail(detail)).flow)).resume_until FROM retrysafe.record";
    number(url, sql).await
}

/// Its HTTP client gave up after it had sent, it asks once more, and this time the connection is refused.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_was_told_twice_to_send_cannot_say_that_nothing_has_left() {
    for again in ["before 0", "calling 0"] {
        let (url, caller, begun) = started().await;
        let first = call(&caller, &begun, "before 0").await;
        let until = window(&url).await;
        sql(&url, "UPDATE retrysafe_test.clock SET ms = ms + 1000").await;
        let second = call(&caller, &begun, again).await;
        assert_eq!((&*second.decision, &second.call_key), ("send", &first.call_key));
        assert_eq!(window(&url).await, until, "the provider's memory began with the first");
        let told = caller.call_not_sent(begun.owner(), "calling 0").await;
        assert_eq!(told.unwrap(), "in_progress", "the mark stands");
        let next = caller.begin(&Asked::flow("k")).await.unwrap();
        assert_eq!(next.recovery_point.as_deref(), Some("calling 0"), "asked from {again}");
        let other = caller.about_to_call(next.owner(), "calling 0", b"other", MINUTES, 1).await;
        assert_eq!(other.unwrap().decision, "unknown");
    }
}

/// Nothing was sent if the answer never came.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_was_told_once_can_take_the_mark_back() {
    let (_, caller, begun) = started().await;
    assert_eq!(call(&caller, &begun, "before 0").await.decision, "send");
    let told = caller.call_not_sent(begun.owner(), "calling 0").await;
    assert_eq!(told.unwrap(), "failed_retryable");
}

/// Another name is another key, and to the provider another charge.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_phase_that_was_renamed_does_not_send_under_its_new_name() {
    let (url, caller, begun) = started().await;
    assert_eq!(call(&caller, &begun, "before 0").await.decision, "send");
    sql(&url, "UPDATE retrysafe_test.clock SET ms = ms + 60000").await;
    let taken = caller.begin(&Asked::flow("k")).await.unwrap();
    let renamed =
        "CALL retrysafe.about_to_call($1, $2, 'calling 0', 'payment', 'charge', 600000, 1, 0, 1)";
    let told = caller.ask(renamed, &[&taken.id, &taken.fence]).await.unwrap();
    assert_eq!(told.get::<_, String>("decision"), "unknown");
    assert_eq!(told.get::<_, Option<String>>("call_key"), None);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_result_that_is_too_large_leaves_its_begin_as_evidence() {
    let (url, caller, begun) = started().await;
    call(&caller, &begun, "before 0").await;
    let told = caller.advance(begun.owner(), "calling 0", &vec![b'7'; 262_144]).await;
    assert_eq!(told, Err("RS006".into()));
    let seen = caller.ask("SELECT state FROM retrysafe.look($1)", &[&begun.id]).await.unwrap();
    assert_eq!(seen.get::<_, String>(0), "unknown");
    assert_eq!(notes(&url).await, 1);
}

/// Evidence is of those who were owners of this record, not of whoever can count.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_was_never_an_owner_leaves_no_evidence() {
    let (url, caller, begun) = started().await;
    let (id, fence) = begun.owner();
    for forged in [fence + 1, i64::MAX] {
        let told = caller.advance((id, forged), "calling 0", b"ch_forged").await;
        assert_eq!(told, Err("RS001".into()));
        let told = caller.settle((id, forged), &Told::completed("forged"), Some("before 0")).await;
        assert_eq!(told, Err("RS001".into()));
    }
    let told = caller.ask("CALL retrysafe.settle($1, NULL, 'retryable')", &[&id]).await.map(drop);
    assert_eq!(told, Err("RS001".into()));
    assert_eq!(notes(&url).await, 0);

    // The owner of a record that has expired, of the one that has its key now.
    let done = caller.settle((id, fence), &Told::completed("done"), Some("before 0")).await;
    assert_eq!(done.unwrap(), "completed");
    sql(&url, "UPDATE retrysafe_test.clock SET ms = ms + 3600000").await;
    let next = caller.begin(&Asked::flow("k")).await.unwrap();
    assert_eq!((&*next.decision, &next.id), ("execute", &begun.id));
    let told = caller.settle((id, fence), &Told::completed("late"), None).await;
    assert_eq!(told, Err("RS001".into()));
    assert_eq!(notes(&url).await, 0);
}

/// On a record without a flow the point is NULL too, and the output would be nowhere.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_advance_from_nowhere_is_refused() {
    let caller = Caller::connect(&database().await).await;
    let begun = caller.begin(&Asked::plain("k")).await.unwrap();
    let advance = "CALL retrysafe.advance($1, $2, NULL, 'dropped')";
    let told = caller.ask(advance, &[&begun.id, &begun.fence]).await.map(drop);
    assert_eq!(told, Err("RS007".into()));
}
