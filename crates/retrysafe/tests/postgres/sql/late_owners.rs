//! What can an owner still do that has lost its record?

use super::caller::{Asked, Begun, Caller, Told};
use crate::kit::{database, number, sql};

struct Rides {
    url: String,
    first: Caller,
    second: Caller,
}

impl Rides {
    async fn open() -> Self {
        let url = database().await;
        sql(&url, "CREATE TABLE ride (place text)").await;
        sql(&url, "UPDATE retrysafe_test.clock SET still = true, ms = 1700000000000").await;
        Self { first: Caller::connect(&url).await, second: Caller::connect(&url).await, url }
    }

    /// A flow of the first owner's, started.
    async fn started(&self) -> Begun {
        let begun = self.first.begin(&Asked::flow("k")).await.unwrap();
        self.first.start(begun.owner(), "ride/1", b"{}").await.unwrap();
        begun
    }

    /// The lease of the first one ends, and the second takes over.
    async fn taken_over(&self) -> Begun {
        sql(&self.url, "UPDATE retrysafe_test.clock SET ms = ms + 60000").await;
        let taken = self.second.begin(&Asked::flow("k")).await.unwrap();
        assert_eq!(taken.decision, "execute");
        taken
    }

    async fn rides(&self) -> i64 {
        number(&self.url, "SELECT count(*) FROM ride").await
    }

    async fn notes(&self) -> i64 {
        let sql = "SELECT count(*) FROM retrysafe.history WHERE what LIKE 'late result of fence%'";
        number(&self.url, sql).await
    }
}

const RIDE: &str = "INSERT INTO ride VALUES ('here')";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_rows_of_a_late_owner_are_rolled_back() {
    let rides = Rides::open().await;
    let late = rides.started().await;
    // It was paused after its guard, and before its last statement.
    rides.first.run("BEGIN").await.unwrap();
    rides.first.guard(late.owner()).await.unwrap();
    rides.first.run(RIDE).await.unwrap();
    let taken = rides.taken_over().await;
    assert_eq!(taken.recovery_point.as_deref(), Some("before 0"));
    assert!(taken.fence > late.fence);
    let told = rides.first.advance_in(late.owner(), "before 0", b"7").await;
    assert_eq!(told, Err("RS001".into()));
    // Even an application that does not look at the error cannot commit.
    rides.first.run("COMMIT").await.unwrap();
    assert_eq!(rides.rides().await, 0);
    // And what it begins anew is refused by its first statement.
    rides.first.run("BEGIN").await.unwrap();
    assert_eq!(rides.first.guard(late.owner()).await, Err("RS001".into()));
    rides.first.run("ROLLBACK").await.unwrap();

    rides.second.run("BEGIN").await.unwrap();
    rides.second.guard(taken.owner()).await.unwrap();
    rides.second.run(RIDE).await.unwrap();
    rides.second.advance_in(taken.owner(), "before 0", b"7").await.unwrap();
    rides.second.run("COMMIT").await.unwrap();
    assert_eq!(rides.rides().await, 1);
    for told in [
        rides.first.advance(late.owner(), "before 1", b"").await.map(drop),
        rides.first.about_to_call(late.owner(), "before 1", b"", None, 1).await.map(drop),
        rides.first.renew(late.owner(), 60_000, 600_000).await.map(drop),
    ] {
        assert_eq!(told, Err("RS001".into()));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_late_result_of_a_call_changes_nothing_and_is_kept_as_evidence() {
    let rides = Rides::open().await;
    let late = rides.started().await;
    let call = rides
        .first
        .about_to_call(late.owner(), "before 0", b"charge", Some(600_000), 1)
        .await
        .unwrap();
    assert_eq!(call.decision, "send");
    let taken = rides.taken_over().await;
    assert_eq!(taken.recovery_point.as_deref(), Some("calling 0"));
    let again = rides
        .second
        .about_to_call(taken.owner(), "calling 0", b"charge", Some(600_000), 1)
        .await
        .unwrap();
    assert_eq!((&*again.decision, &again.call_key), ("send", &call.call_key), "the same key");
    assert_eq!(
        rides.second.advance(taken.owner(), "calling 0", b"ch_1").await.unwrap(),
        "before 1"
    );
    for _ in 0..2 {
        let told = rides.first.advance(late.owner(), "calling 0", b"ch_late").await;
        assert_eq!(told, Err("RS001".into()));
        assert_eq!(rides.notes().await, 1, "once");
    }
    let told = rides.first.settle(late.owner(), &Told::completed("late"), Some("before 1")).await;
    assert_eq!(told, Err("RS001".into()));
    let seen = rides.second.ask("SELECT * FROM retrysafe.look($1)", &[&taken.id]).await.unwrap();
    assert_eq!(seen.get::<_, Vec<Vec<u8>>>("outputs"), [b"ch_1"]);
    assert_eq!(seen.get::<_, String>("state"), "in_progress");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_result_of_an_unknown_call_counts_and_somebody_else_goes_on() {
    let rides = Rides::open().await;
    let late = rides.started().await;
    // The provider takes no key, so nobody may call again.
    let call =
        rides.first.about_to_call(late.owner(), "before 0", b"charge", None, 1).await.unwrap();
    assert_eq!(call.decision, "send");
    sql(&rides.url, "UPDATE retrysafe_test.clock SET ms = ms + 60000").await;
    assert_eq!(rides.second.begin(&Asked::flow("k")).await.unwrap().decision, "unknown");
    assert_eq!(rides.second.begin(&Asked::flow("k")).await.unwrap().decision, "unknown");
    assert_eq!(rides.first.advance(late.owner(), "calling 0", b"ch_1").await, Err("RS005".into()));
    let next = rides.second.begin(&Asked::flow("k")).await.unwrap();
    assert_eq!((&*next.decision, next.recovery_point.as_deref()), ("execute", Some("before 1")));
    assert_eq!(next.outputs, Some(vec![b"ch_1".to_vec()]));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_owner_that_asks_twice_calls_a_provider_without_keys_once() {
    let rides = Rides::open().await;
    let begun = rides.started().await;
    let call =
        rides.first.about_to_call(begun.owner(), "before 0", b"charge", None, 1).await.unwrap();
    assert_eq!(call.decision, "send");
    // Its HTTP client gave up, and it tries once more.
    let again =
        rides.first.about_to_call(begun.owner(), "calling 0", b"charge", None, 1).await.unwrap();
    assert_eq!(again.decision, "unknown");
    assert_eq!(rides.second.begin(&Asked::flow("k")).await.unwrap().decision, "unknown");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nobody_calls_again_once_the_provider_has_forgotten_the_key() {
    let rides = Rides::open().await;
    let begun = rides.started().await;
    // Two minutes, of which the deadline of a second and a millisecond of lease_max are taken off.
    let call = rides
        .first
        .about_to_call(begun.owner(), "before 0", b"charge", Some(120_000), 1_000)
        .await
        .unwrap();
    assert_eq!((&*call.decision, call.send_within_ms), ("send", Some(59_000)));
    sql(&rides.url, "UPDATE retrysafe_test.clock SET ms = ms + 118998").await;
    let taken = rides.second.begin(&Asked::flow("k")).await.unwrap();
    assert_eq!(taken.decision, "execute", "a millisecond is left");
    sql(&rides.url, "UPDATE retrysafe_test.clock SET ms = ms + 1").await;
    let again = rides
        .second
        .about_to_call(taken.owner(), "calling 0", b"charge", Some(120_000), 1_000)
        .await
        .unwrap();
    assert_eq!((&*again.decision, again.call_key), ("too_late", None));
    assert_eq!(rides.first.begin(&Asked::flow("k")).await.unwrap().decision, "unknown");
}

/// The first attempt was told that the provider remembers keys. It does not, and the next attempt knows.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whoever_says_that_the_provider_takes_no_key_does_not_repeat_a_call() {
    let rides = Rides::open().await;
    let begun = rides.started().await;
    let day = Some(86_400_000);
    let call = rides.first.about_to_call(begun.owner(), "before 0", b"charge", day, 1).await;
    assert_eq!(call.unwrap().decision, "send");
    let taken = rides.taken_over().await;
    let again = rides.second.about_to_call(taken.owner(), "calling 0", b"charge", None, 1).await;
    let again = again.unwrap();
    assert_eq!((&*again.decision, again.call_key), ("unknown", None));
    // Whatever is said after that.
    assert_eq!(rides.first.begin(&Asked::flow("k")).await.unwrap().decision, "unknown");
    let doubted = "SELECT count(*) FROM retrysafe.record r WHERE r.state = 3
        AND (retrysafe.read_detail(r.detail)).doubt = 8";
    assert_eq!(number(&rides.url, doubted).await, 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn other_bytes_than_the_first_attempts_are_not_sent() {
    let rides = Rides::open().await;
    let begun = rides.started().await;
    rides
        .first
        .about_to_call(begun.owner(), "before 0", b"100 cents", Some(600_000), 1)
        .await
        .unwrap();
    let taken = rides.taken_over().await;
    let call = rides
        .second
        .about_to_call(taken.owner(), "calling 0", b"101 cents", Some(600_000), 1)
        .await
        .unwrap();
    assert_eq!((&*call.decision, call.call_key), ("unknown", None));
    assert_eq!(rides.first.begin(&Asked::flow("k")).await.unwrap().decision, "unknown");
}

/// Only the owner that has set a mark can know that none of its bytes has left.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_next_owner_cannot_say_that_the_former_one_has_sent_nothing() {
    let rides = Rides::open().await;
    let late = rides.started().await;
    let call = async |caller: &Caller, begun: &Begun, from: &str| {
        let called = caller.about_to_call(begun.owner(), from, b"charge", Some(600_000), 1).await;
        called.unwrap().decision
    };
    assert_eq!(call(&rides.first, &late, "before 0").await, "send");
    let taken = rides.taken_over().await;
    let told = rides.second.call_not_sent(taken.owner(), "calling 0").await;
    assert_eq!(told.unwrap(), "in_progress", "its lease is over, and the mark stands");
    let next = rides.second.begin(&Asked::flow("k")).await.unwrap();
    assert_eq!(next.recovery_point.as_deref(), Some("calling 0"));
    assert_eq!(rides.second.advance(next.owner(), "calling 0", b"ch_1").await.unwrap(), "before 1");

    // Its own mark it may clear.
    assert_eq!(call(&rides.second, &next, "before 1").await, "send");
    let told = rides.second.call_not_sent(next.owner(), "calling 1").await;
    assert_eq!(told.unwrap(), "failed_retryable");
    let next = rides.first.begin(&Asked::flow("k")).await.unwrap();
    assert_eq!(next.recovery_point.as_deref(), Some("before 1"));
}

/// A second call would have as large a result.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_call_whose_result_is_too_large_to_keep_is_not_made_again() {
    let rides = Rides::open().await;
    let begun = rides.started().await;
    rides
        .first
        .about_to_call(begun.owner(), "before 0", b"charge", Some(600_000), 1)
        .await
        .unwrap();
    let told = rides.first.advance(begun.owner(), "calling 0", &vec![0; 262_144]).await;
    assert_eq!(told, Err("RS006".into()));
    sql(&rides.url, "UPDATE retrysafe_test.clock SET ms = ms + 60000").await;
    assert_eq!(rides.second.begin(&Asked::flow("k")).await.unwrap().decision, "unknown");
}
