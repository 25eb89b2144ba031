//! Is a transaction of the application bound to its record?

use super::caller::{Asked, Begun, Caller, Told};
use crate::kit::{database, number, sql};

async fn shop() -> (String, Caller) {
    let url = database().await;
    sql(&url, "CREATE TABLE payment (key text)").await;
    let caller = Caller::connect(&url).await;
    (url, caller)
}

async fn begun(caller: &Caller, key: &str) -> Begun {
    let begun = caller.begin(&Asked::plain(key)).await.unwrap();
    assert_eq!(begun.decision, "execute");
    begun
}

const PAY: &str = "INSERT INTO payment VALUES ('k')";

async fn payments(url: &str) -> i64 {
    number(url, "SELECT count(*) FROM payment").await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_guarded_transaction_commits_with_its_settle_and_only_with_it() {
    let (url, caller) = shop().await;
    let begun = begun(&caller, "k").await;
    caller.run("BEGIN").await.unwrap();
    caller.guard(begun.owner()).await.unwrap();
    caller.run(PAY).await.unwrap();
    assert_eq!(caller.run("COMMIT").await, Err("RS004".into()));
    assert_eq!(payments(&url).await, 0);

    caller.run("BEGIN").await.unwrap();
    caller.guard(begun.owner()).await.unwrap();
    caller.run(PAY).await.unwrap();
    assert_eq!(
        caller.settle_in(begun.owner(), &Told::completed("paid"), None).await.unwrap(),
        "completed"
    );
    caller.run("COMMIT").await.unwrap();
    assert_eq!(payments(&url).await, 1);
    assert_eq!(number(&url, "SELECT count(*) FROM retrysafe.guard").await, 0);

    // The same settle in another transaction: its rows would be the second ones.
    caller.run("BEGIN").await.unwrap();
    caller.run(PAY).await.unwrap();
    let again = caller.settle_in(begun.owner(), &Told::completed("paid"), None).await;
    assert_eq!(again, Err("RS001".into()));
    caller.run("ROLLBACK").await.unwrap();
    // On its own it is fine: nothing else hangs on it.
    assert_eq!(
        caller.settle(begun.owner(), &Told::completed("paid"), None).await.unwrap(),
        "completed"
    );
    assert_eq!(payments(&url).await, 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_advance_lets_a_guarded_transaction_commit_and_a_withdrawal_does_not() {
    let (url, caller) = shop().await;
    let flow = begun(&caller, "flow").await;
    caller.start(flow.owner(), "ride/1", b"{}").await.unwrap();
    caller.run("BEGIN").await.unwrap();
    caller.guard(flow.owner()).await.unwrap();
    caller.run(PAY).await.unwrap();
    assert_eq!(caller.advance_in(flow.owner(), "before 0", b"7").await.unwrap(), "before 1");
    caller.run("COMMIT").await.unwrap();

    let plain = begun(&caller, "plain").await;
    caller.run("BEGIN").await.unwrap();
    caller.guard(plain.owner()).await.unwrap();
    caller.run(PAY).await.unwrap();
    assert!(caller.withdraw(&plain.id, Asked::plain("plain").owner).await.unwrap());
    assert_eq!(caller.run("COMMIT").await, Err("RS004".into()));
    assert_eq!(payments(&url).await, 1, "the key would be free, and the payment made again");
    assert!(caller.withdraw(&plain.id, Asked::plain("plain").owner).await.unwrap());
    assert_eq!(caller.begin(&Asked::plain("plain")).await.unwrap().decision, "execute");
}

// A refused settle leaves the transaction failed, but a savepoint before it brings the transaction back, and the
// payment before that with it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_savepoint_brings_back_what_a_guard_has_bound() {
    let (url, caller) = shop().await;
    let begun = begun(&caller, "k").await;
    caller.run("BEGIN; SAVEPOINT s").await.unwrap();
    assert_eq!(caller.guard(begun.owner()).await, Err("RS003".into()));
    caller.run("ROLLBACK").await.unwrap();

    caller.run("BEGIN").await.unwrap();
    caller.guard(begun.owner()).await.unwrap();
    caller.run(PAY).await.unwrap();
    caller.run("SAVEPOINT s").await.unwrap();
    caller.settle_in(begun.owner(), &Told::completed("undone"), None).await.unwrap();
    caller.run("ROLLBACK TO SAVEPOINT s").await.unwrap();
    assert_eq!(caller.run("COMMIT").await, Err("RS004".into()));
    assert_eq!(payments(&url).await, 0);

    // Begun inside a savepoint it would be rolled back with that, and rows could be committed without it.
    caller.run("BEGIN; SAVEPOINT s").await.unwrap();
    assert_eq!(caller.begin_in(&Asked::plain("local")).await, Err("RS003".into()));
    caller.run("ROLLBACK").await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_transaction_above_read_committed_is_refused() {
    let (_, caller) = shop().await;
    let begun = begun(&caller, "k").await;
    for level in ["REPEATABLE READ", "SERIALIZABLE"] {
        let begin = format!("BEGIN ISOLATION LEVEL {level}");
        for verb in ["guard", "begin_in", "advance_in", "settle_in"] {
            caller.run(&begin).await.unwrap();
            let owner = begun.owner();
            let told = match verb {
                "guard" => caller.guard(owner).await,
                "begin_in" => caller.begin_in(&Asked::plain("local")).await.map(drop),
                "advance_in" => caller.advance_in(owner, "before 0", b"").await.map(drop),
                _ => caller.settle_in(owner, &Told::completed("paid"), None).await.map(drop),
            };
            assert_eq!(told, Err("RS002".into()), "{verb} at {level}");
            caller.run("ROLLBACK").await.unwrap();
        }
    }
    // What commits by itself chooses its own level.
    caller.run("SET default_transaction_isolation = 'serializable'").await.unwrap();
    assert_eq!(caller.begin(&Asked::plain("second")).await.unwrap().decision, "execute");
    assert_eq!(
        caller.settle(begun.owner(), &Told::completed("paid"), None).await.unwrap(),
        "completed"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_commits_by_itself_is_refused_inside_a_transaction_and_does_nothing() {
    let (url, caller) = shop().await;
    let begun = begun(&caller, "k").await;
    let owner = begun.owner();
    for verb in ["begin", "start", "advance", "about_to_call", "settle"] {
        caller.run("BEGIN").await.unwrap();
        caller.run(PAY).await.unwrap();
        let told = match verb {
            "begin" => caller.begin(&Asked::plain("other")).await.map(drop),
            "start" => caller.start(owner, "ride/1", b"").await.map(drop),
            "advance" => caller.advance(owner, "before 0", b"").await.map(drop),
            "about_to_call" => {
                caller.about_to_call(owner, "before 0", b"", None, 1).await.map(drop)
            }
            _ => caller.settle(owner, &Told::completed("paid"), None).await.map(drop),
        };
        assert_eq!(told, Err("2D000".into()), "{verb}");
        caller.run("ROLLBACK").await.unwrap();
    }
    assert_eq!(payments(&url).await, 0);
    let moments = "SELECT sum(moments)::bigint + count(*) FROM retrysafe.record";
    assert_eq!(number(&url, moments).await, 2, "one record, and it has begun");
}

/// The parts of procedures that do the work would do it inside a transaction.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_inner_parts_of_procedures_answer_to_their_procedures_alone() {
    let (url, caller) = shop().await;
    let owner = "sha256('k'), 1";
    for part in [
        "begin_v1('', 'k', '', NULL, 1, 1, 1, NULL, '', '', '', NULL)".to_owned(),
        format!("advance_v1({owner}, 'advance', 'before 0', NULL, '')"),
        format!("advance_v1({owner}, 'start', NULL, NULL, '')"),
        format!("about_to_call_v1({owner}, 'before 0', 'charge', '', NULL, 1)"),
        format!("settle_v1({owner}, 'retryable', NULL, NULL, NULL, NULL, NULL)"),
    ] {
        for wrap in ["", "BEGIN; "] {
            let told = caller.run(&format!("{wrap}SELECT * FROM retrysafe.{part}")).await;
            assert_eq!(told, Err("RS010".into()), "{part}");
            caller.run("ROLLBACK").await.unwrap();
        }
    }
    // Nor to one that only has the name of theirs.
    let twin = "CREATE FUNCTION public.settle(
            bytea, bigint, text, integer, text[], bytea, text, bigint, text)
        RETURNS text LANGUAGE plpgsql AS $$ BEGIN RETURN
            (SELECT s.reply FROM retrysafe.settle_v1($1, $2, $3, $4, $5, $6, $7, $8) s); END $$";
    caller.run(twin).await.unwrap();
    for path in ["public", "public, retrysafe", "retrysafe"] {
        let call = format!(
            "SET search_path = {path};
            SELECT public.settle({owner}, 'retryable', NULL, NULL, NULL, NULL, NULL, NULL)"
        );
        assert_eq!(caller.run(&call).await, Err("RS010".into()), "{path}");
    }
    assert_eq!(number(&url, "SELECT count(*) FROM retrysafe.record").await, 0);
}

/// Its lock must not hold up its successor for longer than its lease.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_guarded_transaction_may_wait_and_idle_for_half_of_its_lease() {
    let (url, caller) = shop().await;
    sql(&url, "UPDATE retrysafe_test.clock SET still = true, ms = 1700000000000").await;
    let begun = begun(&caller, "k").await;
    for (set, expected) in [("0", "30s"), ("10min", "30s"), ("5s", "5s"), ("500ms", "500ms")] {
        for setting in ["idle_in_transaction_session_timeout", "lock_timeout"] {
            caller.run(&format!("SET {setting} = '{set}'; BEGIN")).await.unwrap();
            caller.guard(begun.owner()).await.unwrap();
            let shown: String = caller.ask(&format!("SHOW {setting}"), &[]).await.unwrap().get(0);
            assert_eq!(shown, expected, "{setting} was {set}");
            caller.run("ROLLBACK").await.unwrap();
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_begin_inside_the_transaction_exists_only_if_that_commits_with_a_settle() {
    let (url, caller) = shop().await;
    let other = Caller::connect(&url).await;
    let asked = Asked::plain("k");
    caller.run("BEGIN").await.unwrap();
    let begun = caller.begin_in(&asked).await.unwrap();
    assert_eq!(begun.decision, "execute");
    caller.run(PAY).await.unwrap();
    // A duplicate is told so, and does not wait for the end of the transaction.
    assert_eq!(other.begin(&asked).await.unwrap().decision, "in_progress");
    other.run("BEGIN").await.unwrap();
    assert_eq!(other.begin_in(&asked).await.unwrap().decision, "in_progress");
    other.run("ROLLBACK").await.unwrap();
    assert_eq!(caller.run("COMMIT").await, Err("RS004".into()), "nothing is settled");
    assert_eq!(number(&url, "SELECT count(*) FROM retrysafe.record").await, 0);

    caller.run("BEGIN").await.unwrap();
    let begun = caller.begin_in(&asked).await.unwrap();
    caller.run(PAY).await.unwrap();
    caller.settle_in(begun.owner(), &Told::completed("paid"), None).await.unwrap();
    caller.run("COMMIT").await.unwrap();
    let replay = other.begin(&asked).await.unwrap();
    assert_eq!((&*replay.decision, replay.body.as_deref()), ("replay", Some(&b"paid"[..])));
    assert_eq!(payments(&url).await, 1);
}

/// A flow whose owner does not know goes on at its recovery point. Rows of the phase that were committed with "I do
/// not know" were there a second time then.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_guarded_phase_does_not_commit_with_a_lease_that_is_given_back() {
    let (url, caller) = shop().await;
    let begun = begun(&caller, "k").await;
    let (id, fence) = begun.owner();
    let start = "CALL retrysafe.start($1, $2, 'pay/1', 'input'::bytea)";
    caller.ask(start, &[&id, &fence]).await.unwrap();
    caller.run("BEGIN").await.unwrap();
    caller.guard((id, fence)).await.unwrap();
    caller.run(PAY).await.unwrap();
    caller.ask("SELECT retrysafe.settle_in($1, $2, 'unknown')", &[&id, &fence]).await.unwrap();
    assert_eq!(caller.run("COMMIT").await, Err("RS004".into()));
    assert_eq!(payments(&url).await, 0);
}

/// A flow that is free to be tried again goes on at its recovery point, and a plain request from its begin. Rows that
/// were committed with "try again" were there a second time then.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_guarded_transaction_does_not_commit_with_a_record_that_is_free_again() {
    let (url, caller) = shop().await;
    for (key, is_flow) in [("flow", true), ("plain", false)] {
        let begun = begun(&caller, key).await;
        if is_flow {
            caller.start(begun.owner(), "pay/1", b"{}").await.unwrap();
        }
        caller.run("BEGIN").await.unwrap();
        caller.guard(begun.owner()).await.unwrap();
        caller.run(PAY).await.unwrap();
        let told = caller.settle_in(begun.owner(), &Told::outcome("retryable"), None).await;
        assert_eq!(told, Err("RS007".into()), "{key}");
        caller.run("COMMIT").await.unwrap();
        assert_eq!(payments(&url).await, 0, "{key}: that was a rollback");
        // By itself it is what says so.
        let told = caller.settle(begun.owner(), &Told::outcome("retryable"), None).await;
        assert_eq!(told.unwrap(), "failed_retryable", "{key}");
    }
}

/// The same by another door: whoever has sent nothing of a call has written nothing for it either.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_guarded_transaction_does_not_commit_with_a_call_that_was_not_sent() {
    let (url, caller) = shop().await;
    let begun = begun(&caller, "k").await;
    caller.start(begun.owner(), "pay/1", b"{}").await.unwrap();
    let call = caller.about_to_call(begun.owner(), "before 0", b"charge", None, 1).await;
    assert_eq!(call.unwrap().decision, "send");
    caller.run("BEGIN").await.unwrap();
    caller.guard(begun.owner()).await.unwrap();
    caller.run(PAY).await.unwrap();
    let told = caller.call_not_sent(begun.owner(), "calling 0").await;
    assert_eq!(told.unwrap(), "failed_retryable");
    assert_eq!(caller.run("COMMIT").await, Err("RS004".into()));
    assert_eq!(payments(&url).await, 0);
}
