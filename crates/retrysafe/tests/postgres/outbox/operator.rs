//! What does an operator see and decide?

use retrysafe::outbox::{
    BulkEnd, Delivered, EffectFilter, EffectSearch, EffectStanding, EffectVerb, Operator,
    OutboxError,
};
use retrysafe::stores::postgres::PostgresStore;

use super::stage::{HOUR, Mood, OutboxStage, mail};
use crate::kit::{number, sql};

const WHY: &str = "because";

/// An effect in each state that is not over, with a mark where one belongs to it: its number.
async fn in_state(stage: &OutboxStage, standing: EffectStanding) -> i64 {
    let id = stage.stage(mail("x")).await.id;
    let change = match standing {
        EffectStanding::Waiting => "state = 0",
        EffectStanding::Ready => "state = 1",
        EffectStanding::Leased => "state = 2, fence = 1",
        EffectStanding::Unknown => {
            "state = 3, fence = 1, marked_by = 1, last_error = 'reset by peer'"
        }
        EffectStanding::Dead => "state = 4, fence = 1, last_error = 'connection refused'",
        EffectStanding::Delivered | EffectStanding::Cancelled => panic!("{standing:?}"),
    };
    sql(&stage.url, &format!("UPDATE retrysafe.effect SET {change} WHERE id = {id}")).await;
    id
}

const LIVE: [EffectStanding; 5] = [
    EffectStanding::Waiting,
    EffectStanding::Ready,
    EffectStanding::Leased,
    EffectStanding::Unknown,
    EffectStanding::Dead,
];

fn of(standing: EffectStanding) -> EffectFilter {
    EffectFilter { standing: Some(standing), ..EffectFilter::default() }
}

fn of_kind(kind: &str) -> EffectFilter {
    EffectFilter { kind: Some(kind.into()), ..EffectFilter::default() }
}

async fn decisions(stage: &OutboxStage) -> i64 {
    let count =
        "SELECT count(*) FROM retrysafe.effect_decision WHERE who = 'alice' AND reason = 'because'";
    number(&stage.url, count).await
}

#[tokio::test]
async fn effects_are_listed_by_state_kind_lane_error_and_age_page_by_page() {
    let stage = OutboxStage::new().await;
    let operator = stage.outbox.operator("alice");
    let mut ids = Vec::new();
    for standing in LIVE {
        ids.push(in_state(&stage, standing).await);
        let found = operator.list(&of(standing), None, 10).await.unwrap().effects;
        let found: Vec<_> = found.iter().map(|effect| (effect.id, effect.standing)).collect();
        assert_eq!(found, [(*ids.last().unwrap(), standing)]);
    }
    stage.later(HOUR).await;
    let other = retrysafe::outbox::Effect::new("refund").lane("l");
    ids.push(stage.stage(other).await.id);
    let list = async |filter: EffectFilter| {
        let page = operator.list(&filter, None, 100).await.unwrap();
        page.effects.iter().map(|effect| effect.id).collect::<Vec<_>>()
    };
    assert_eq!(list(of_kind("refund")).await, [ids[5]]);
    assert_eq!(
        list(EffectFilter { lane: Some("l".into()), ..EffectFilter::default() }).await,
        [ids[5]]
    );
    let error = EffectFilter { error: Some("refused".into()), ..EffectFilter::default() };
    assert_eq!(list(error).await, [ids[4]]);
    let old = EffectFilter { older_than: Some(HOUR), ..EffectFilter::default() };
    assert_eq!(list(old).await.len(), 5);
    // Page by page, the newest first, each once.
    let mut seen = Vec::new();
    let mut before = None;
    // Six effects are three pages; more pages than effects would be a page that begins anew.
    for _ in 0..ids.len() {
        let page = operator.list(&EffectFilter::default(), before, 2).await.unwrap();
        seen.extend(page.effects.iter().map(|effect| effect.id));
        before = page.next;
        if before.is_none() {
            break;
        }
    }
    ids.reverse();
    assert_eq!(seen, ids);
    // What is over is in another table.
    operator.cancel(ids[0], WHY).await.unwrap();
    assert_eq!(list(of(EffectStanding::Cancelled)).await, [ids[0]]);
    assert_eq!(list(EffectFilter::default()).await.len(), 5);
}

#[tokio::test]
async fn one_effect_is_shown_with_everything_that_an_operator_needs() {
    let stage = OutboxStage::new().await;
    stage.receiver.set(Mood::LosesAnswer);
    let content = "x".repeat(2_000);
    let effect = mail(&content).to("https://mail.example").lane("l").name("ride 7");
    let staged = stage.stage(effect).await;
    let next = stage.stage(mail("next").lane("l")).await;
    let working = stage.worker(stage.known().failures_max(1)).start();
    stage.wait_for(3, 1).await;
    assert!(working.stop(HOUR).await);
    let operator = stage.outbox.operator("alice");
    operator.pause("mail", WHY).await.unwrap();
    let shown = operator.show(staged.id).await.unwrap();
    let effect = &shown.effect;
    assert_eq!((effect.kind.as_str(), effect.standing), ("mail", EffectStanding::Unknown));
    assert_eq!((effect.lane.as_deref(), effect.name.as_deref()), (Some("l"), Some("ride 7")));
    assert_eq!(effect.destination.as_deref(), Some("https://mail.example"));
    assert_eq!((effect.failures, effect.crashes, effect.marked_by), (1, 0, Some(effect.fence)));
    assert_eq!(effect.last_error.as_deref(), Some("reset by peer"));
    assert_eq!((effect.key.as_str(), effect.payload_bytes), (staged.key.as_str(), Some(2_000)));
    assert!(effect.resend_until.is_some_and(|until| until > shown.now) && shown.is_paused);
    assert_eq!(shown.payload_head, &content.as_bytes()[..1_024]);
    assert_eq!(effect.may(shown.now), [EffectVerb::Resolve]);
    let waiting = operator.show(next.id).await.unwrap();
    assert_eq!(
        (waiting.waits_for, waiting.payload_head.as_slice()),
        (Some(staged.id), &b"next"[..])
    );
    assert!(matches!(operator.show(999).await, Err(OutboxError::Absent)));
}

#[tokio::test]
async fn what_may_be_done_is_done_and_all_else_is_refused() {
    let stage = OutboxStage::new().await;
    // Over a pool, and over a store.
    let store = PostgresStore::connect(&stage.url).await.unwrap();
    let mut done = 0;
    for operator in [stage.outbox.operator("alice"), Operator::of_store(store, "alice")] {
        for standing in LIVE {
            for verb in [EffectVerb::Retry, EffectVerb::Cancel, EffectVerb::Resolve] {
                let id = in_state(&stage, standing).await;
                let shown = operator.show(id).await.unwrap();
                let fence = shown.effect.fence;
                let decided = match verb {
                    EffectVerb::Retry => operator.retry(id, WHY).await,
                    EffectVerb::Cancel => operator.cancel(id, WHY).await,
                    EffectVerb::Resolve => {
                        let found = EffectSearch::Found(Delivered::known_as("ref"));
                        operator.resolve(id, fence, found, WHY).await
                    }
                };
                let may = shown.effect.may(shown.now).contains(&verb);
                assert_eq!(decided.is_ok(), may, "{verb:?} {standing:?}: {decided:?}");
                done += i64::from(may);
                assert_eq!(decisions(&stage).await, done, "only what was done is written down");
                let noted = operator.show(id).await.unwrap().decisions;
                assert_eq!(noted.iter().any(|it| it.verb == verb.name()), may, "{noted:?}");
            }
        }
    }
    assert_eq!(
        done,
        2 * 6,
        "a dead one is retried, four are cancelled, an unknown one is resolved"
    );
}

#[tokio::test]
async fn a_decision_without_a_name_or_a_reason_is_refused() {
    let stage = OutboxStage::new().await;
    let id = in_state(&stage, EffectStanding::Dead).await;
    for (who, reason) in [("alice", " "), ("", WHY)] {
        let refused = stage.outbox.operator(who).retry(id, reason).await;
        assert!(matches!(refused, Err(OutboxError::Database(_))), "{refused:?}");
    }
    assert_eq!(stage.count(4).await, 1);
}

#[tokio::test]
async fn what_is_known_to_have_had_no_effect_and_is_not_wanted_is_cancelled() {
    let stage = OutboxStage::without_keys().await;
    stage.receiver.set(Mood::LosesAnswer);
    let head = stage.stage(mail("head").lane("l").name("n")).await;
    stage.stage(mail("next").lane("l")).await;
    let working = stage.worker(stage.known()).start();
    stage.wait_for(3, 1).await;
    stage.receiver.set(Mood::Confirms);
    let operator = stage.outbox.operator("alice");
    let wrong = operator.resolve(head.id, 9, EffectSearch::Unwanted, WHY).await;
    assert!(matches!(wrong, Err(OutboxError::WrongState)), "another delivery: {wrong:?}");
    operator.resolve(head.id, 1, EffectSearch::Unwanted, WHY).await.unwrap();
    stage.outbox.wake();
    stage.wait_for(5, 1).await;
    assert!(working.stop(HOUR).await);
    assert_eq!(stage.count(6).await, 1);
    assert_eq!(stage.receiver.order(), ["head", "next"], "it was sent once, and its lane goes on");
    assert!(stage.stage(mail("again").name("n")).await.is_new, "its name is free");
}

#[tokio::test]
async fn a_kind_is_paused_and_goes_on_and_the_statistics_say_so() {
    let stage = OutboxStage::new().await;
    let operator = stage.outbox.operator("alice");
    assert!(operator.pause("mail", "maintenance").await.unwrap());
    assert!(!operator.pause("mail", "again").await.unwrap(), "it was paused before");
    operator.pause("fax", "nobody has one").await.unwrap();
    stage.stage(mail("a")).await;
    in_state(&stage, EffectStanding::Dead).await;
    stage.later(HOUR).await;
    let stats = operator.stats().await.unwrap();
    let kinds: Vec<_> = stats.kinds.iter().map(|kind| kind.kind.as_str()).collect();
    assert_eq!(kinds, ["fax", "mail"]);
    let mail = &stats.kinds[1];
    assert_eq!((mail.ready, mail.dead, mail.unknown), (1, 1, 0));
    assert_eq!(mail.oldest_ready_at.map(|at| stats.now.since(at)), Some(HOUR));
    assert_eq!(mail.pause_reason.as_deref(), Some("maintenance"));
    assert_eq!((mail.paused_by.as_deref(), stats.held_until), (Some("alice"), None));
    let working = stage.worker(stage.known()).start();
    assert!(operator.resume("mail", "done").await.unwrap());
    assert!(!operator.resume("mail", "done").await.unwrap());
    stage.wait_for(5, 1).await;
    assert!(working.stop(HOUR).await);
    let verbs = "SELECT count(*) FROM retrysafe.effect_decision WHERE verb IN ('pause', 'resume')";
    assert_eq!(number(&stage.url, verbs).await, 3, "what changed nothing is not written down");
}

/// Dead effects: so many, of this kind and with this error.
async fn make_dead(stage: &OutboxStage, count: u32, kind: &str, error: &str) {
    let make = format!(
        "INSERT INTO retrysafe.effect (kind, state, at, downstream_key, payload, staged_at, last_error)
        SELECT '{kind}', 4, retrysafe.now_ms(), gen_random_uuid()::text, '', retrysafe.now_ms(), '{error}'
        FROM generate_series(1, {count})"
    );
    sql(&stage.url, &make).await;
}

fn end(matched: u64, changed: u64) -> (u64, u64) {
    (matched, changed)
}

fn told(end: BulkEnd) -> (u64, u64) {
    (end.matched, end.changed)
}

#[tokio::test]
async fn many_dead_effects_are_requeued_by_a_filter_at_a_rate_and_first_in_a_dry_run() {
    let stage = OutboxStage::new().await;
    let operator = stage.outbox.operator("alice");
    make_dead(&stage, 1_200, "mail", "503 from mail").await;
    make_dead(&stage, 3, "fax", "no paper").await;
    let every = operator.requeue_dead(&EffectFilter::default(), 10, true, WHY).await;
    assert!(matches!(every, Err(OutboxError::NoFilter)), "{every:?}");
    let dry = operator.requeue_dead(&of_kind("mail"), 10, true, WHY).await.unwrap();
    assert_eq!((told(dry), stage.count(4).await), (end(1_200, 1_200), 1_203));
    let filter = EffectFilter { error: Some("503".into()), ..of_kind("mail") };
    let done = operator.requeue_dead(&filter, 100, false, WHY).await.unwrap();
    assert_eq!((told(done), stage.count(4).await), (end(1_200, 1_200), 3));
    assert_eq!(decisions(&stage).await, 1_200);
    // A hundred a second: the last one is due after 11.99 seconds, and no two at once.
    let last = "SELECT max(at) - retrysafe.now_ms() FROM retrysafe.effect WHERE state = 1";
    assert_eq!(number(&stage.url, last).await, 11_990);
    let times = "SELECT count(DISTINCT at) FROM retrysafe.effect WHERE state = 1";
    assert_eq!(number(&stage.url, times).await, 1_200);
    // Only what has been dead for long.
    let old = EffectFilter { older_than: Some(HOUR), ..EffectFilter::default() };
    assert_eq!(told(operator.requeue_dead(&old, 10, false, WHY).await.unwrap()), end(0, 0));
    stage.later(HOUR).await;
    assert_eq!(told(operator.requeue_dead(&old, 10, false, WHY).await.unwrap()), end(3, 3));
}

#[tokio::test]
async fn what_its_receiver_may_have_forgotten_stays_dead_also_if_that_is_while_it_waits() {
    let stage = OutboxStage::new().await;
    let operator = stage.outbox.operator("alice");
    make_dead(&stage, 4, "mail", "422").await;
    // One a second: the first at once, the second of those that may be sent again after a second. The receiver of the
    // second one forgets its key before that, and that of the fourth takes no key.
    let marks = "WITH numbered AS (SELECT id, row_number() OVER (ORDER BY id) AS place FROM retrysafe.effect)
        UPDATE retrysafe.effect e SET marked_by = 0, resend_until = retrysafe.now_ms()
            + CASE n.place WHEN 2 THEN 500 WHEN 3 THEN 60000 END
        FROM numbered n WHERE n.id = e.id AND n.place > 1";
    sql(&stage.url, marks).await;
    for is_dry_run in [true, false] {
        let ended = operator.requeue_dead(&of_kind("mail"), 1, is_dry_run, WHY).await.unwrap();
        assert_eq!(told(ended), end(4, 2), "dry run: {is_dry_run}");
    }
    assert_eq!((stage.count(4).await, stage.count(1).await), (2, 2));
}

#[tokio::test]
async fn only_dead_effects_are_purged_and_their_lanes_go_on() {
    let stage = OutboxStage::without_keys().await;
    let unknown = in_state(&stage, EffectStanding::Unknown).await;
    stage.receiver.set(Mood::RefusesForGood);
    stage.stage(mail("head").lane("l")).await;
    let working = stage.worker(stage.known()).start();
    stage.wait_for(4, 1).await;
    stage.receiver.set(Mood::Confirms);
    stage.stage(mail("next").lane("l")).await;
    let operator = stage.outbox.operator("alice");
    let every = operator.purge_dead(&EffectFilter::default(), false, WHY).await;
    assert!(matches!(every, Err(OutboxError::NoFilter)), "{every:?}");
    assert_eq!(told(operator.purge_dead(&of_kind("mail"), true, WHY).await.unwrap()), end(1, 1));
    assert_eq!((stage.count(4).await, decisions(&stage).await), (1, 0), "a dry run");
    assert_eq!(told(operator.purge_dead(&of_kind("mail"), false, WHY).await.unwrap()), end(1, 1));
    assert_eq!((stage.count(6).await, decisions(&stage).await), (1, 1));
    stage.outbox.wake();
    stage.wait_for(5, 1).await;
    assert!(working.stop(HOUR).await);
    let left = operator.list(&EffectFilter::default(), None, 10).await.unwrap().effects;
    assert_eq!(left.iter().map(|effect| effect.id).collect::<Vec<_>>(), [unknown]);
}
