//! Is an unknown effect decided by what its receiver says, once, and never by time alone?

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use retrysafe::core::policy::Absence;
use retrysafe::outbox::{
    EffectAskedNow, EffectLookup, EffectLookupAnswer, EffectReconciler, EffectReconciliation,
    UnknownEffect,
};
use retrysafe::upkeep::{LookupPauses, Schedule};

use super::stage::{HOUR, Mood, OutboxStage, mail};
use crate::kit::{number, sql};

/// Says one thing about every effect.
struct Says {
    found: EffectLookup,
    absence: Absence,
    asked: Arc<AtomicUsize>,
}

impl EffectReconciler for Says {
    async fn look_up(&self, _: &UnknownEffect) -> EffectLookupAnswer {
        self.asked.fetch_add(1, Ordering::SeqCst);
        EffectLookupAnswer { found: self.found.clone(), excerpt: Some("200: {}".into()) }
    }

    fn absence(&self, _: &UnknownEffect) -> Absence {
        self.absence
    }
}

fn schedule(text: &str) -> Schedule {
    let pauses: LookupPauses = text.parse().unwrap();
    Schedule { pauses, settle_time: Duration::from_millis(300), ..Schedule::default() }
}

fn asking(
    stage: &OutboxStage,
    found: EffectLookup,
    absence: Absence,
    text: &str,
) -> EffectReconciliation<Says> {
    let says = Says { found, absence, asked: Arc::default() };
    EffectReconciliation::new(&stage.outbox, "mail", stage.known(), says, schedule(text))
}

/// A stage with an effect that its worker has left as unknown: its number.
async fn unknown(stage: &OutboxStage) -> i64 {
    stage.receiver.set(Mood::LosesAnswer);
    let id = stage.stage(mail("x")).await.id;
    let working = stage.worker(stage.known().failures_max(1)).start();
    stage.wait_for(3, 1).await;
    assert!(working.stop(HOUR).await);
    id
}

async fn state(stage: &OutboxStage, id: i64) -> i64 {
    let state = format!(
        "SELECT state::bigint FROM retrysafe.effect WHERE id = {id} \
         UNION ALL SELECT state::bigint FROM retrysafe.effect_done WHERE id = {id}"
    );
    number(&stage.url, &state).await
}

async fn lookups(stage: &OutboxStage, id: i64) -> i64 {
    number(&stage.url, &format!("SELECT lookups::bigint FROM retrysafe.effect WHERE id = {id}"))
        .await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_receiver_says_decides_an_effect() {
    for (found, want) in [
        (EffectLookup::Delivered(Some("m-7".into())), 5),
        (EffectLookup::Declined, 6),
        (EffectLookup::NoEffect, 1),
        (EffectLookup::Pending, 3),
        (EffectLookup::NotFound, 3),
        (EffectLookup::Inconclusive("status 503".into()), 3),
    ] {
        let stage = OutboxStage::without_keys().await;
        let id = unknown(&stage).await;
        let rounds = asking(&stage, found.clone(), Absence::Inconclusive, "0s, 1h");
        let done = rounds.round().await.unwrap();
        assert_eq!((done.asked, done.resolved), (1, usize::from(want != 3)), "{found:?}");
        assert_eq!(state(&stage, id).await, want, "{found:?}");
        let shown = stage.outbox.operator("alice").show(id).await.unwrap();
        if want == 3 {
            let note = shown.effect.last_lookup.unwrap();
            assert!(note.ends_with("\n200: {}"), "{note}");
            assert_eq!(shown.effect.lookups, Some(1));
            // Once more within the pause: nobody is asked.
            assert_eq!(rounds.round().await.unwrap().asked, 0);
        } else {
            assert_eq!(shown.decisions[0].who, "reconciler");
            assert!(shown.decisions[0].reason.ends_with("200: {}"), "{found:?}");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn not_found_counts_where_it_is_proof_and_only_after_the_settle_time() {
    let stage = OutboxStage::without_keys().await;
    let id = unknown(&stage).await;
    // The database's clock leaps; this process has seen the effect for no time at all.
    stage.later(HOUR).await;
    let rounds = asking(&stage, EffectLookup::NotFound, Absence::Proof, "0s, 900×1ms");
    let began = std::time::Instant::now();
    let first = rounds.round().await.unwrap();
    assert_eq!((first.asked, first.resolved), (1, 0));
    assert_eq!((state(&stage, id).await, lookups(&stage, id).await), (3, 1), "it is too early");
    let mut resolved = 0;
    while resolved == 0 {
        stage.later(Duration::from_secs(1)).await;
        let round = rounds.round().await.unwrap();
        assert_eq!(round.dead_lettered, 0, "never");
        resolved = round.resolved;
    }
    assert!(began.elapsed() >= Duration::from_millis(300), "by a clock that cannot leap");
    assert_eq!(state(&stage, id).await, 1, "it is sent again");
}

/// Once the new receiver of a kind was asked about what had been sent to the former one. It did not know it, and was sent it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn that_another_receiver_does_not_know_an_effect_proves_nothing() {
    let stage = OutboxStage::without_keys().await;
    let [former, present] =
        ["http://a.test", "http://b.test"].map(|url| stage.known().identity("POST", Some(url)));
    stage.receiver.set(Mood::LosesAnswer);
    let id = stage.stage(mail("x")).await.id;
    let working = stage.worker(former.failures_max(1)).start();
    stage.wait_for(3, 1).await;
    assert!(working.stop(HOUR).await);
    for (receiver, wanted) in [(present, 3), (former, 1)] {
        stage.later(HOUR).await;
        let says =
            Says { found: EffectLookup::NotFound, absence: Absence::Proof, asked: Arc::default() };
        let schedule = Schedule { settle_time: Duration::ZERO, ..schedule("0s, 900×1ms") };
        let rounds = EffectReconciliation::new(&stage.outbox, "mail", receiver, says, schedule);
        assert_eq!(rounds.round().await.unwrap().asked, 1);
        assert_eq!(state(&stage, id).await, wanted);
    }
}

/// Two gateways and a worker ask about the same effect at the same time. One lookup of the schedule is used up.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lookups_at_the_same_time_count_once_and_decide_once() {
    let stage = OutboxStage::without_keys().await;
    let id = unknown(&stage).await;
    let ask = || asking(&stage, EffectLookup::Pending, Absence::Inconclusive, "0s, 1h");
    let three = [ask(), ask(), ask()];
    let (one, two, three) = tokio::join!(three[0].round(), three[1].round(), three[2].round());
    assert_eq!(one.unwrap().failed + two.unwrap().failed + three.unwrap().failed, 0);
    assert_eq!(lookups(&stage, id).await, 1);
    sql(&stage.url, "UPDATE retrysafe.effect SET looked_up_at = 0, at = 0").await;
    let yes = asking(&stage, EffectLookup::Delivered(None), Absence::Inconclusive, "0s, 1h");
    let no = asking(&stage, EffectLookup::NoEffect, Absence::Inconclusive, "0s, 1h");
    let (yes, no) = tokio::join!(yes.round(), no.round());
    assert_eq!(yes.unwrap().resolved + no.unwrap().resolved, 1, "decided once");
    let count = format!("SELECT count(*) FROM retrysafe.effect_decision WHERE effect_id = {id}");
    assert_eq!(number(&stage.url, &count).await, 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_effect_that_nobody_can_decide_is_listed_and_stays_unknown() {
    let stage = OutboxStage::without_keys().await;
    let id = unknown(&stage).await;
    let rounds = asking(&stage, EffectLookup::NotFound, Absence::Inconclusive, "0s, 1ms");
    for _ in 0..2 {
        assert_eq!(rounds.round().await.unwrap().asked, 1);
        stage.later(Duration::from_secs(1)).await;
    }
    stage.later(HOUR * 24 * 365).await;
    let done = rounds.round().await.unwrap();
    assert_eq!((done.asked, done.dead_lettered), (0, 1));
    assert_eq!(state(&stage, id).await, 3);
    // A person asks once more: that is possible at any time, and counts nothing.
    let asked = rounds.ask_now(id).await.unwrap();
    let EffectAskedNow::Asked { found, is_resolved, .. } = asked else { panic!("{asked:?}") };
    assert_eq!((&*found, is_resolved, lookups(&stage, id).await), ("not found", false, 2));
    assert_eq!(rounds.ask_now(id + 1).await.unwrap(), EffectAskedNow::NotUnknown);
    // Sent again, and unknown again: another delivery, with a schedule of its own.
    sql(&stage.url, "UPDATE retrysafe.effect SET state = 1, at = 0, marked_by = NULL").await;
    let working = stage.worker(stage.known().failures_max(1)).start();
    stage.wait_for(3, 1).await;
    assert!(working.stop(HOUR).await);
    assert_eq!(lookups(&stage, id).await, 0);
}
