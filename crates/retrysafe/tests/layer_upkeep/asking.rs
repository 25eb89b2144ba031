//! What comes of a question: out of turn, about a call, and about what another reconciler is asked?

use std::num::NonZeroU32;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use retrysafe::upkeep::{
    AskedNow, Lookup, LookupAnswer, Reconciler, Reconciliation, Schedule, Upkeep,
};
use retrysafe_core::engine::{Advanced, Engine};
use retrysafe_core::flow::{FlowVersion, RecoveryPoint, RequestDigest, downstream_key};
use retrysafe_core::machine::Proof;
use retrysafe_core::machine::flows::FlowStep;
use retrysafe_core::record::{
    Answer, Doubt, Happened, Outcome, Record, Standing, read_lookup_note,
};
use retrysafe_core::scope::Id;

use super::{Lookups as _, Poisoned, begin, provider, record, schedule, store, unknown};

/// A person looks, and looks again. The schedule has as many lookups left as before, and the answer still counts.
#[tokio::test(start_paused = true)]
async fn a_question_out_of_turn_uses_up_nothing_and_decides_all_the_same() {
    let (store, hand) = store();
    let engine = Arc::new(Engine::new(store.clone()));
    let id = unknown(&engine, "k").await;
    let rounds = Reconciliation::new(
        Arc::clone(&engine),
        provider([(id, Lookup::NotFound)]),
        schedule(&[10, 20]),
    );
    for _ in 0..3 {
        let Ok(AskedNow::Asked(asked)) = rounds.ask_now(id).await else { panic!() };
        assert_eq!((&*asked.found, asked.resolved.is_none()), ("not found", true));
    }
    let shown = record(&store, id).await;
    assert_eq!(shown.lookups(), 0, "nothing of the schedule is used up");
    let told = shown.timeline.iter().filter(|moment| matches!(moment.what, Happened::LookedUp(_)));
    assert_eq!(told.count(), 3, "each is told");
    hand.advance(Duration::from_secs(10));
    assert_eq!(rounds.round().await.unwrap().asked, 1);

    let fact = Answer::NotKept { status: None, location: None };
    let knows = Reconciliation::new(
        Arc::clone(&engine),
        provider([(id, Lookup::Executed(fact))]),
        schedule(&[10]),
    );
    let Ok(AskedNow::Asked(asked)) = knows.ask_now(id).await else { panic!() };
    assert_eq!(asked.resolved.map(|record| record.standing()), Some(Standing::Completed));
    assert!(matches!(knows.ask_now(id).await, Ok(AskedNow::NotUnknown(_))));
    assert!(matches!(knows.ask_now(Id::from_bytes([9; 32])).await, Ok(AskedNow::Absent)));
}

/// Knows one route, and says what it was answered.
struct OneRoute(&'static str);

impl Reconciler for OneRoute {
    async fn lookup(&self, _: &Record) -> Lookup {
        Lookup::Inconclusive("no rule fits".into())
    }

    async fn look_up_closely(&self, unknown: &Record) -> LookupAnswer {
        let found = self.lookup(unknown).await;
        LookupAnswer { found, excerpt: Some("200: {\"odd\":true}".into()) }
    }

    fn concerns(&self, unknown: &Record) -> bool {
        *unknown.about.route == *self.0
    }
}

/// Asks a bank about one record, and a shop about all others. The bank is asked too often.
struct BankAndShop {
    of_bank: Id,
}

impl Reconciler for BankAndShop {
    async fn lookup(&self, unknown: &Record) -> Lookup {
        if unknown.id == self.of_bank {
            return Lookup::AskedTooOften(Some(Duration::from_secs(60)));
        }
        Lookup::NotFound
    }

    fn provider(&self, unknown: &Record) -> Box<str> {
        if unknown.id == self.of_bank { "bank".into() } else { "shop".into() }
    }
}

/// One provider that is asked too often paused the lookups at all others.
#[tokio::test(start_paused = true)]
async fn only_who_is_asked_too_often_is_left_alone() {
    let (store, hand) = store();
    let engine = Arc::new(Engine::new(store.clone()));
    let of_bank = unknown(&engine, "bank").await;
    let asks = BankAndShop { of_bank };
    let rounds = Reconciliation::new(Arc::clone(&engine), asks, schedule(&[10, 20]));
    hand.advance(Duration::from_secs(10));
    assert_eq!(rounds.round().await.unwrap().asked, 1, "the bank says that it is too often");
    let of_shop = unknown(&engine, "shop").await;
    hand.advance(Duration::from_secs(10));
    assert_eq!(rounds.round().await.unwrap().asked, 1, "the shop has not said so");
    assert_eq!(record(&store, of_bank).await.lookups(), 0);
    assert_eq!(record(&store, of_shop).await.lookups(), 1);
    tokio::time::advance(Duration::from_secs(60)).await;
    assert_eq!(rounds.round().await.unwrap().asked, 1, "the bank may be asked again");
}

#[tokio::test(start_paused = true)]
async fn each_record_is_asked_about_where_it_belongs_and_the_answer_is_kept() {
    let (store, hand) = store();
    let engine = Engine::new(store.clone());
    let id = unknown(&engine, "k").await;
    hand.advance(Duration::from_secs(10));
    let other = Upkeep::new(store.clone()).reconcile(OneRoute("/other"), schedule(&[10])).start();
    tokio::time::sleep(Duration::from_secs(20)).await;
    assert!(matches!(other.asker().ask_now(id).await, Ok(AskedNow::NobodyToAsk)));
    assert_eq!(record(&store, id).await.lookups(), 0);
    other.stop().await;
    let both = Upkeep::new(store.clone())
        .reconcile(OneRoute("/other"), schedule(&[10]))
        .reconcile(OneRoute("/pay"), schedule(&[10, 1_000]));
    let both = both.start();
    tokio::time::sleep(Duration::from_secs(20)).await;
    let shown = record(&store, id).await;
    assert_eq!(shown.lookups(), 1);
    let Some(Happened::LookedUp(note)) = shown.timeline.last().map(|moment| &moment.what) else {
        panic!()
    };
    assert_eq!(read_lookup_note(note), ("no rule fits", Some("200: {\"odd\":true}")));
    let Ok(AskedNow::Asked(asked)) = both.asker().ask_now(id).await else { panic!() };
    assert_eq!(asked.excerpt.as_deref(), Some("200: {\"odd\":true}"));
    both.stop().await;
}

/// A flow whose call nobody knows about: its record.
async fn calling(engine: &Engine<Arc<Poisoned>>, key: &str) -> Id {
    let mut lease = begin(engine, key).await;
    let flow = FlowVersion::new("ride", 1);
    let digest = RequestDigest::of(b"charge");
    for step in [
        FlowStep::Start { flow, input: "input".into() },
        FlowStep::Commit { phase: 0, output: "ride".into() },
        FlowStep::Call { phase: 1, digest, repeatable_for: None },
    ] {
        let Ok(Advanced::Done(next)) = engine.advance(lease, &step).await else {
            panic!("{step:?}")
        };
        lease = next;
    }
    let id = lease.id();
    engine.settle(lease, &Outcome::Unknown(Doubt::AnswerLost)).await.unwrap();
    id
}

/// Asks with the key of the call.
struct ByCallKey(Vec<(Box<str>, Lookup)>);

impl Reconciler for ByCallKey {
    async fn lookup(&self, unknown: &Record) -> Lookup {
        let key = downstream_key(unknown.id, unknown.birth(), "charge");
        let known = self.0.iter().find(|(known, _)| *known == key);
        known.map_or(Lookup::NotFound, |(_, lookup)| lookup.clone())
    }
}

#[tokio::test(start_paused = true)]
async fn evidence_about_a_call_moves_its_flow_and_never_completes_it() {
    let (store, hand) = store();
    let engine = Arc::new(Engine::new(store.clone()));
    let mut ids = Vec::new();
    let mut knows = Vec::new();
    let fact = Answer::NotKept { status: None, location: None };
    for (key, lookup) in [
        ("done", Lookup::CallExecuted("{\"id\":7}".into())),
        ("not done", Lookup::NotExecuted(Proof::burnt())),
        ("the mere fact", Lookup::Executed(fact)),
    ] {
        let id = calling(&engine, key).await;
        let birth = record(&store, id).await.birth();
        knows.push((downstream_key(id, birth, "charge"), lookup));
        ids.push(id);
    }
    hand.advance(Duration::from_secs(10));
    let rounds = Reconciliation::new(Arc::clone(&engine), ByCallKey(knows), schedule(&[10, 20]));
    let done = rounds.round().await.unwrap();
    assert_eq!((done.asked, done.resolved), (3, 2));
    let after = record(&store, ids[0]).await;
    assert_eq!(after.standing(), Standing::InProgress);
    assert_eq!(after.recovery_point(), Some(RecoveryPoint::Before(2)));
    assert_eq!(after.flow.unwrap().outputs().last().unwrap(), "{\"id\":7}");
    let before = record(&store, ids[1]).await;
    assert_eq!(before.standing(), Standing::FailedRetryable);
    assert_eq!(before.recovery_point(), Some(RecoveryPoint::Before(1)));
    // That it was executed says nothing about the phases after the call: it stays unknown, and says so.
    let fact = record(&store, ids[2]).await;
    assert_eq!((fact.standing(), fact.lookups()), (Standing::Unknown, 1));
    let Some(Happened::LookedUp(note)) = fact.timeline.last().map(|moment| &moment.what) else {
        panic!()
    };
    assert!(note.contains("decides nothing about a flow"), "{note}");
}

#[tokio::test(start_paused = true)]
async fn a_provider_is_asked_no_faster_than_it_wants() {
    let (store, hand) = store();
    let engine = Arc::new(Engine::new(store.clone()));
    let mut knows = Vec::new();
    for at in 0..20 {
        knows.push((unknown(&engine, &at.to_string()).await, Lookup::Pending));
    }
    hand.advance(Duration::from_secs(10));
    let provider = provider(knows);
    let asked = Arc::clone(&provider.asked);
    let slowly = Schedule { per_second: NonZeroU32::new(4), at_once: 2, ..schedule(&[10, 20]) };
    let rounds = Reconciliation::new(engine, provider, slowly);
    let began = tokio::time::Instant::now();
    assert_eq!(rounds.round().await.unwrap().asked, 20);
    assert_eq!(asked.load(Ordering::SeqCst), 20);
    // In virtual time: nineteen gaps of a quarter of a second.
    assert_eq!(began.elapsed().as_millis() / 250, 19);
}
