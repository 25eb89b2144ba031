//! What becomes of a call whose answer was lost?

use std::future::pending;
use std::sync::atomic::Ordering;
use std::time::Duration;

use bytes::Bytes;
use http::Response;
use retrysafe::core::Policy;
use retrysafe::core::machine::{Evidence, Proof, Verdict};
use retrysafe::core::record::{Doubt, Judge, Standing, State};
use retrysafe::phases::{CallEnd, Flow, FlowEnd, Flows, PhaseError, Provider};

use super::rides::{Break, DAY, Point, RideRequest, Rides, answered, create_ride, id, keyed};

async fn decide(rides: &Rides, key: &str, evidence: Evidence) {
    let fence = rides.record(key).await.fence;
    let verdict = Verdict { fence, evidence, judge: Judge::Operator, reason: "looked".into() };
    rides.engine.resolve(id(key), &verdict).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_provider_without_keys_is_never_called_twice() {
    let rides = Rides::without_keys().await;
    let mut charges = 0;
    for how in [Break::Crash, Break::Error, Break::Panic] {
        for point in [Point::ChargeBefore, Point::ChargeAfter] {
            let key = format!("{point:?}-{how:?}");
            rides.breaks.arm(point, how);
            let ended = rides.run(&key).await;
            let is_crash = how == Break::Crash;
            assert!(is_crash || matches!(ended, Some(FlowEnd::Unknown)), "{key}: {ended:?}");
            rides.end_leases().await;
            charges += usize::from(point == Point::ChargeAfter);
            for _ in 0..2 {
                let again = rides.run(&key).await;
                assert!(matches!(again, Some(FlowEnd::Unknown)), "{key}: {again:?}");
                assert_eq!(rides.provider.charges(), charges, "{key}");
            }
            assert_eq!(rides.record(&key).await.standing(), Standing::Unknown);
            // Only evidence leads out. Executed: its result; not executed: the call is made.
            if point == Point::ChargeAfter {
                let result = Evidence::CallExecuted(Bytes::from_static(b"\"ch_seen\""));
                decide(&rides, &key, result).await;
                assert!(rides.answer(&key).await.ends_with(b"\"charge\":\"ch_seen\"}"), "{key}");
            } else {
                decide(&rides, &key, Evidence::NotExecuted(Proof::operator())).await;
                charges += 1;
                rides.answer(&key).await;
            }
            assert_eq!(rides.provider.charges(), charges, "{key}");
            assert_eq!((rides.rides(&key).await, rides.receipts(&key).await), (1, 1), "{key}");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_call_is_not_repeated_once_its_provider_may_have_forgotten_the_key() {
    let rides = Rides::open(keyed()).await;
    for (key, outage) in [("long", DAY), ("margin", DAY - Duration::from_secs(60))] {
        rides.breaks.arm(Point::ChargeAfter, Break::Crash);
        assert!(rides.run(key).await.is_none());
        let charges = rides.provider.charges();
        rides.later(outage).await;
        rides.provider.forget_keys();
        let ended = rides.run(key).await;
        assert!(matches!(ended, Some(FlowEnd::Unknown)), "{key}: {ended:?}");
        assert_eq!(rides.provider.charges(), charges, "{key}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_provider_that_forgets_too_soon_is_as_good_as_one_without_keys() {
    let rides = Rides::open(Provider::remembers_keys_for(Duration::from_secs(60))).await;
    rides.breaks.arm(Point::ChargeBefore, Break::Crash);
    assert!(rides.run("k").await.is_none());
    rides.end_leases().await;
    let ended = rides.run("k").await;
    assert!(matches!(ended, Some(FlowEnd::Unknown)), "{ended:?}");
    assert_eq!(rides.provider.charges(), 0);
}

/// The provider was declared to remember keys and does not. The process died, and the next one knows better.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_call_is_not_repeated_once_its_provider_is_declared_to_take_no_key() {
    let rides = Rides::open(keyed()).await;
    rides.breaks.arm(Point::ChargeAfter, Break::Crash);
    assert!(rides.run("k").await.is_none());
    rides.provider.forget_keys();
    rides.end_leases().await;
    for declared in [Provider::takes_no_key(), keyed()] {
        let corrected = create_ride(1, declared, &rides.provider, &rides.breaks);
        let flows = Flows::new(rides.pool.clone(), rides.store.clone()).with(&corrected);
        let ended = rides.run_with(&flows, &corrected, "k").await.unwrap();
        assert!(matches!(ended, FlowEnd::Unknown), "{ended:?}");
        assert_eq!(rides.provider.charges(), 1);
    }
    let State::Unknown { doubt, .. } = rides.record("k").await.state else { panic!() };
    assert_eq!(doubt, Doubt::NotRepeatable);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn other_content_than_that_of_the_first_attempt_is_not_sent() {
    let rides = Rides::open(keyed()).await;
    rides.provider.sends_other_notes.store(true, Ordering::SeqCst);
    rides.breaks.arm(Point::ChargeBefore, Break::Crash);
    assert!(rides.run("k").await.is_none());
    rides.end_leases().await;
    let ended = rides.run("k").await;
    assert!(matches!(ended, Some(FlowEnd::Unknown)), "{ended:?}");
    assert_eq!(rides.provider.charges(), 0);
}

/// A provider that still remembers the former call must not take the new one for the same.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_key_that_is_used_again_after_its_record_is_gone_is_charged_again() {
    let rides = Rides::open(keyed()).await;
    let first = rides.answer("k").await;
    rides.later(Policy::default().ttl + Duration::from_secs(1)).await;
    let second = rides.answer("k").await;
    assert_ne!(first, second);
    assert_eq!((rides.rides("k").await, rides.receipts("k").await), (2, 2));
    assert_eq!(rides.provider.charges(), 2, "the second ride has a charge of its own");
}

/// A flow of one call, which ends as it is told.
fn one_call<F>(provider: Provider, end: F) -> Flow<RideRequest>
where
    F: Fn() -> CallEnd<i64> + Clone + Send + Sync + 'static,
{
    Flow::named("one_call", 1)
        .call("called", provider, |_: RideRequest, ()| Ok("content"), async move |_, _| Ok(end()))
        .respond("told", async |_, _, (number,)| {
            Ok(Response::builder().status(201).body(Bytes::from(number.to_string()))?)
        })
        .unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_not_sent_is_sent_by_the_next_run() {
    let rides = Rides::open(keyed()).await;
    for (key, provider) in [("keyed", keyed()), ("unkeyed", Provider::takes_no_key())] {
        let refused = one_call(provider, || CallEnd::NotSent("connection refused".into()));
        let flows = Flows::new(rides.pool.clone(), rides.store.clone()).with(&refused);
        for _ in 0..2 {
            let ended = rides.run_with(&flows, &refused, key).await.unwrap();
            assert!(matches!(ended, FlowEnd::NotSent { phase: "called", .. }), "{ended:?}");
            assert_eq!(rides.record(key).await.standing(), Standing::FailedRetryable);
        }
        let reached = one_call(provider, || CallEnd::Done(7));
        let flows = Flows::new(rides.pool.clone(), rides.store.clone()).with(&reached);
        let ended = rides.run_with(&flows, &reached, key).await.unwrap();
        assert_eq!(answered(Some(ended)), "7");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_call_that_answers_ends_the_flow() {
    let rides = Rides::open(keyed()).await;
    let declined =
        || Response::builder().status(402).body(Bytes::from_static(b"declined")).unwrap();
    let flow = one_call(keyed(), move || CallEnd::Respond(declined()));
    let flows = Flows::new(rides.pool.clone(), rides.store.clone()).with(&flow);
    for _ in 0..2 {
        let ended = rides.run_with(&flows, &flow, "k").await.unwrap();
        let FlowEnd::Answered(response) = ended else { panic!("{ended:?}") };
        assert_eq!((response.status.as_u16(), &*response.body), (402, &b"declined"[..]));
    }
    assert_eq!(rides.record("k").await.standing(), Standing::Completed);
}

/// A call that does not come back is cut off by its deadline, and nobody takes it for not sent.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_call_past_its_deadline_is_unknown() {
    let rides = Rides::open(keyed()).await;
    let flow: Flow<RideRequest> = Flow::named("endless", 1)
        .call(
            "called",
            Provider::takes_no_key().deadline(Duration::from_millis(1)),
            |_: RideRequest, ()| Ok("content"),
            async |_, _| pending::<Result<CallEnd<i64>, PhaseError>>().await,
        )
        .respond("told", async |_, _, _| Ok(Response::default()))
        .unwrap();
    let flows = Flows::new(rides.pool.clone(), rides.store.clone()).with(&flow);
    let ended = rides.run_with(&flows, &flow, "k").await.unwrap();
    assert!(matches!(ended, FlowEnd::Unknown), "{ended:?}");
}

/// Knows no name at all.
#[cfg(feature = "reqwest")]
struct NoNames;

#[cfg(feature = "reqwest")]
impl reqwest::dns::Resolve for NoNames {
    fn resolve(&self, _: reqwest::dns::Name) -> reqwest::dns::Resolving {
        Box::pin(async { Err("no such name".into()) })
    }
}

#[cfg(feature = "reqwest")]
#[tokio::test]
async fn reqwest_errors_prove_what_they_prove() {
    let client = |timeout: Duration| {
        let client = reqwest::Client::builder().no_proxy();
        client.dns_resolver(std::sync::Arc::new(NoNames)).timeout(timeout).build().unwrap()
    };
    let patient = client(Duration::from_secs(30));
    let of = async |url: &str| -> CallEnd<()> {
        CallEnd::of_reqwest(patient.post(url).send().await.map(drop).unwrap_err())
    };
    // A port that is held without listening refuses connections, and goes to nobody else.
    let held = tokio::net::TcpSocket::new_v4().unwrap();
    held.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let nobody = held.local_addr().unwrap();
    assert!(matches!(of(&format!("http://{nobody}")).await, CallEnd::NotSent(_)), "refused");
    let unnamed = of("http://no-such-name.invalid").await;
    assert!(matches!(unnamed, CallEnd::NotSent(_)), "{unnamed:?}");
    assert!(matches!(of("http://").await, CallEnd::NotSent(_)), "it cannot be built");
    // Somebody takes the connection and says nothing: the request may have been read.
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let silent_url = format!("http://{}", silent.local_addr().unwrap());
    // Longer than connecting takes on a busy machine: a timeout before that would prove that nothing was sent.
    let hasty = client(Duration::from_secs(1)).post(&silent_url).send().await.map(drop);
    let ended: CallEnd<()> = CallEnd::of_reqwest(hasty.unwrap_err());
    assert!(matches!(ended, CallEnd::Unknown(_)), "a timeout: {ended:?}");
}
