//! Does a worker deliver each effect, once?

use std::sync::Arc;
use std::time::{Duration, Instant};

use retrysafe::outbox::{EffectSearch, OutboxError, Receiver};

use super::stage::{HOUR, Mood, OutboxStage, mail};
use crate::kit::number;

const PATIENCE: Duration = Duration::from_secs(60);

/// After the end of every lease.
const PAST_LEASES: Duration = Duration::from_secs(16);

#[tokio::test]
async fn effects_are_delivered_and_their_references_are_kept() {
    let stage = OutboxStage::new().await;
    for number in 0..250 {
        stage.stage(mail(&format!("mail {number}"))).await;
    }
    let working = stage.worker(stage.known()).start();
    stage.wait_for(5, 250).await;
    assert!(working.stop(PATIENCE).await);
    let done = stage.receiver.done();
    assert_eq!((done.len(), done.values().max()), (250, Some(&1)));
    let kept = "SELECT count(*) FROM retrysafe.effect_done WHERE reference = 'ref ' || id";
    assert_eq!(crate::kit::number(&stage.url, kept).await, 250);
}

#[tokio::test]
async fn several_workers_share_the_work() {
    let stage = OutboxStage::new().await;
    let workers: Vec<_> = (0..4).map(|_| stage.worker(stage.known()).start()).collect();
    for number in 0..400 {
        stage.stage(mail(&format!("mail {number}"))).await;
    }
    stage.wait_for(5, 400).await;
    for working in workers {
        assert!(working.stop(PATIENCE).await);
    }
    assert_eq!(*stage.receiver.asked.lock().unwrap(), 400, "nothing was sent twice");
}

/// The effect succeeds at its receiver, and the worker dies before that is recorded.
#[tokio::test]
async fn a_worker_that_dies_after_sending_costs_no_second_effect() {
    for takes_no_key in [false, true] {
        let stage =
            if takes_no_key { OutboxStage::without_keys().await } else { OutboxStage::new().await };
        stage.receiver.set(Mood::Hangs);
        stage.stage(mail("once")).await;
        let dying = stage.worker(stage.known()).start();
        stage.receiver.was_asked.notified().await;
        drop(dying);
        stage.receiver.set(Mood::Confirms);
        let next = stage.worker(stage.known()).start();
        stage.later(PAST_LEASES).await;
        stage.wait_for(if takes_no_key { 3 } else { 5 }, 1).await;
        assert!(next.stop(PATIENCE).await);
        let done: Vec<u32> = stage.receiver.done().into_values().collect();
        assert_eq!(done, [1], "takes no key: {takes_no_key}");
    }
}

#[tokio::test]
async fn a_lost_answer_is_asked_for_again_or_unknown() {
    let keyed = OutboxStage::new().await;
    keyed.receiver.set(Mood::LosesAnswer);
    keyed.stage(mail("a")).await;
    let working = keyed.worker(keyed.known()).start();
    keyed.receiver.was_asked.notified().await;
    keyed.receiver.set(Mood::Confirms);
    keyed.wait_for(5, 1).await;
    assert!(working.stop(PATIENCE).await);
    assert_eq!(keyed.receiver.order(), ["a"]);

    for mood in [Mood::LosesAnswer, Mood::Panics] {
        let unkeyed = OutboxStage::without_keys().await;
        unkeyed.receiver.set(mood);
        unkeyed.stage(mail("a")).await;
        let working = unkeyed.worker(unkeyed.known()).start();
        unkeyed.wait_for(3, 1).await;
        assert!(working.stop(PATIENCE).await);
        assert_eq!(*unkeyed.receiver.asked.lock().unwrap(), 1, "{mood:?}");
    }
}

#[tokio::test]
async fn nothing_is_sent_again_once_its_receiver_may_have_forgotten_the_key() {
    let stage = OutboxStage::new().await;
    stage.receiver.set(Mood::Hangs);
    stage.stage(mail("a")).await;
    let dying = stage.worker(stage.known()).start();
    stage.receiver.was_asked.notified().await;
    drop(dying);
    stage.receiver.set(Mood::Confirms);
    stage.later(HOUR).await;
    let working = stage.worker(stage.known()).start();
    stage.wait_for(3, 1).await;
    assert!(working.stop(PATIENCE).await);
    assert_eq!(*stage.receiver.asked.lock().unwrap(), 1);
}

#[tokio::test]
async fn what_was_never_sent_is_dead_after_its_attempts_and_can_be_requeued() {
    let stage = OutboxStage::without_keys().await;
    stage.receiver.set(Mood::RefusesConnections);
    let staged = stage.stage(mail("a")).await;
    let working = stage.worker(stage.known().failures_max(3)).start();
    stage.wait_for(4, 1).await;
    assert_eq!(*stage.receiver.asked.lock().unwrap(), 3);
    stage.receiver.set(Mood::Confirms);
    stage.outbox.requeue(staged.id).await.unwrap();
    stage.outbox.wake();
    stage.wait_for(5, 1).await;
    assert!(working.stop(PATIENCE).await);
}

#[tokio::test]
async fn what_was_refused_for_good_is_dead_and_not_requeued_past_the_receivers_memory() {
    let stage = OutboxStage::new().await;
    stage.receiver.set(Mood::RefusesForGood);
    let staged = stage.stage(mail("a")).await;
    let working = stage.worker(stage.known()).start();
    stage.wait_for(4, 1).await;
    assert!(working.stop(PATIENCE).await);
    stage.later(HOUR).await;
    let refused = stage.outbox.requeue(staged.id).await;
    assert!(matches!(refused, Err(OutboxError::PastMemory)), "{refused:?}");
}

/// Once it kept the time of the receiver that had refused it, and was sent again to one that had forgotten the key.
#[tokio::test]
async fn what_is_requeued_is_sent_again_for_no_longer_than_its_receiver_remembers_now() {
    let stage = OutboxStage::new().await;
    stage.receiver.set(Mood::RefusesForGood);
    let staged = stage.stage(mail("a")).await;
    let working = stage.worker(stage.known()).start();
    stage.wait_for(4, 1).await;
    assert!(working.stop(PATIENCE).await);
    stage.outbox.requeue(staged.id).await.unwrap();
    stage.receiver.set(Mood::LosesAnswer);
    let brief = Receiver::remembers_keys_for(HOUR / 3);
    let working = stage.worker(brief.deadline(Duration::from_secs(5)).failures_max(1)).start();
    stage.wait_for(3, 1).await;
    assert!(working.stop(PATIENCE).await);
    let left = "SELECT resend_until - retrysafe.now_ms() FROM retrysafe.effect";
    let left = number(&stage.url, left).await;
    assert!(left < HOUR.as_millis() as i64 / 3, "{left} ms");
}

#[tokio::test]
async fn a_lane_keeps_its_order_and_stops_at_a_failed_head() {
    let stage = OutboxStage::without_keys().await;
    for number in 0..20 {
        stage.stage(mail(&format!("a{number:02}")).lane("a")).await;
        stage.stage(mail(&format!("b{number:02}")).lane("b")).await;
    }
    let working = stage.worker(stage.known()).start();
    stage.wait_for(5, 40).await;
    let order = stage.receiver.order();
    for lane in ["a", "b"] {
        let of_lane: Vec<&String> = order.iter().filter(|it| it.starts_with(lane)).collect();
        assert!(of_lane.is_sorted() && of_lane.len() == 20, "{of_lane:?}");
    }
    // A head that nobody can decide holds its own lane, and no other.
    stage.receiver.set(Mood::LosesAnswer);
    let head = stage.stage(mail("c00").lane("c")).await;
    stage.wait_for(3, 1).await;
    stage.receiver.set(Mood::Confirms);
    stage.stage(mail("c01").lane("c")).await;
    stage.stage(mail("d00").lane("d")).await;
    stage.wait_for(5, 41).await;
    assert_eq!(stage.count(0).await, 1, "the lane waits");
    let fence = "SELECT fence FROM retrysafe.effect WHERE state = 3";
    let fence = crate::kit::number(&stage.url, fence).await;
    let found = EffectSearch::Found(retrysafe::outbox::Delivered::known_as("found"));
    stage.outbox.resolve(head.id, fence, found, "seen in the receiver's list").await.unwrap();
    stage.outbox.wake();
    stage.wait_for(5, 43).await;
    assert!(working.stop(PATIENCE).await);
}

#[tokio::test]
async fn an_absence_is_no_proof_before_its_time_and_a_verdict_is_given_once() {
    let stage = OutboxStage::without_keys().await;
    stage.receiver.set(Mood::LosesAnswer);
    let staged = stage.stage(mail("a")).await;
    let working = stage.worker(stage.known()).start();
    stage.wait_for(3, 1).await;
    assert!(working.stop(PATIENCE).await);
    let fence = crate::kit::number(&stage.url, "SELECT fence FROM retrysafe.effect").await;
    let absent = || EffectSearch::NotFound { settle_time: Duration::from_secs(600) };
    let resolve = async |found| stage.outbox.resolve(staged.id, fence, found, "looked").await;
    let early = resolve(absent()).await;
    assert!(matches!(early, Err(OutboxError::TooEarly)), "{early:?}");
    stage.later(Duration::from_secs(600)).await;
    resolve(absent()).await.unwrap();
    let twice = resolve(EffectSearch::NoEffect).await;
    assert!(matches!(twice, Err(OutboxError::WrongState)), "{twice:?}");
    assert_eq!(stage.count(1).await, 1);
}

#[tokio::test]
async fn a_paused_kind_is_not_claimed() {
    let stage = OutboxStage::new().await;
    let pause = "INSERT INTO retrysafe.effect_pause VALUES ('mail', 0, 'maintenance')";
    crate::kit::sql(&stage.url, pause).await;
    stage.stage(mail("a")).await;
    let claim = "SELECT count(*) FROM retrysafe.claim_effects_v1('mail', 1, 15000)";
    assert_eq!(crate::kit::number(&stage.url, claim).await, 0);
    crate::kit::sql(&stage.url, "DELETE FROM retrysafe.effect_pause").await;
    assert_eq!(crate::kit::number(&stage.url, claim).await, 1);
}

#[tokio::test]
async fn a_claim_leaves_out_what_was_due_before_its_beginning_and_says_what_was_due_first() {
    let stage = OutboxStage::new().await;
    for (content, due) in [("early", 1_000), ("middle", 2_000), ("late", 3_000)] {
        let id = stage.stage(mail(content)).await.id;
        let due = format!("UPDATE retrysafe.effect SET at = {due} WHERE id = {id}");
        crate::kit::sql(&stage.url, &due).await;
    }
    let claim = |from: i64| {
        format!(
            "SELECT sum(due_first)::bigint FROM retrysafe.claim_effects_v1('mail', 10, 15000, {from})"
        )
    };
    assert_eq!(number(&stage.url, &claim(2_000)).await, 2 * 2_000, "two, and 2,000 was the first");
    assert_eq!(number(&stage.url, &claim(0)).await, 1_000, "the one that was left out");
}

// A claim begins a little before where the last one has found something. An application's transaction may have been open for
// longer than that, and its effect comes to light far below.
#[tokio::test]
async fn an_effect_whose_transaction_was_long_is_delivered_while_others_keep_coming() {
    let stage = OutboxStage::new().await;
    let working = stage.worker(stage.known()).start();
    stage.stage(mail("usual")).await;
    stage.wait_for(5, 1).await;
    let long = "BEGIN;
        SELECT retrysafe.stage_v1('mail', NULL, NULL, 'long', NULL, NULL, NULL, NULL);
        UPDATE retrysafe.effect SET at = at - 3600000 WHERE payload = 'long';
        COMMIT";
    crate::kit::sql(&stage.url, long).await;
    let begun = Instant::now();
    while !stage.receiver.order().contains(&"long".to_owned()) {
        assert!(begun.elapsed() < PATIENCE, "it waits for ever");
        stage.stage(mail("usual")).await;
    }
    assert!(working.stop(PATIENCE).await);
}

#[tokio::test]
async fn a_worker_that_stops_finishes_what_is_under_way_and_claims_nothing_more() {
    let stage = OutboxStage::new().await;
    stage.receiver.set(Mood::Hangs);
    stage.stage(mail("a")).await;
    let known = stage.known().deadline(Duration::from_millis(200));
    let working = stage.worker(known).start();
    stage.receiver.was_asked.notified().await;
    let stopping = tokio::spawn(working.stop(PATIENCE));
    assert!(stopping.await.unwrap());
    // The deadline has cut it off: nobody knows, and the receiver remembers the key.
    assert_eq!((stage.count(1).await, stage.count(2).await), (1, 0));
    assert_eq!(Arc::strong_count(&stage.receiver), 1, "nothing runs on");
}

/// A text with a NUL byte once stopped every delivery of its kind, worker after worker.
#[tokio::test]
async fn an_error_that_cannot_be_kept_costs_nobody_its_end() {
    let stage = OutboxStage::new().await;
    stage.receiver.set(Mood::RefusesInBytes);
    stage.stage(mail("a")).await;
    let working = stage.worker(stage.known().failures_max(1)).start();
    stage.wait_for(4, 1).await;
    stage.receiver.set(Mood::Confirms);
    stage.stage(mail("b")).await;
    stage.wait_for(5, 1).await;
    assert!(working.stop(PATIENCE).await);
}

#[tokio::test]
async fn a_dead_head_can_be_put_away_so_that_its_lane_goes_on() {
    let stage = OutboxStage::without_keys().await;
    stage.receiver.set(Mood::RefusesForGood);
    let head = stage.stage(mail("head").lane("a").name("n")).await;
    stage.stage(mail("next").lane("a")).await;
    let working = stage.worker(stage.known()).start();
    stage.wait_for(4, 1).await;
    stage.receiver.set(Mood::Confirms);
    let refused = stage.outbox.requeue(head.id).await;
    assert!(matches!(refused, Err(OutboxError::PastMemory)), "{refused:?}");
    stage.outbox.cancel(head.id).await.unwrap();
    stage.outbox.wake();
    stage.wait_for(5, 1).await;
    assert_eq!(stage.receiver.order(), ["next"]);
    assert!(working.stop(PATIENCE).await);
    assert!(
        stage.stage(mail("head").name("n")).await.is_new,
        "what was taken back may be staged again"
    );
}

#[tokio::test]
async fn deliveries_begin_no_faster_than_the_receiver_wants() {
    let stage = OutboxStage::new().await;
    for number in 0..30 {
        stage.stage(mail(&format!("mail {number}"))).await;
    }
    let begun = std::time::Instant::now();
    let working = stage.worker(stage.known().per_second(20)).start();
    stage.wait_for(5, 30).await;
    assert!(working.stop(PATIENCE).await);
    // Twenty at once, and ten more at a twentieth of a second each. A slow machine is only later.
    assert!(begun.elapsed() >= Duration::from_millis(500), "{:?}", begun.elapsed());
}
