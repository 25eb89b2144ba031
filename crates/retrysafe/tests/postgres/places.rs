//! Is a record settled that does not lie any more where its begin has put it?
//!
//! A settle looks for its record at the place that the begin was told. Rows move: a vacuum of the whole table packs them together, and then
//! another record may lie at a place that somebody remembers.

use bytes::Bytes;
use retrysafe::core::engine::{Begun, Engine};
use retrysafe::core::record::Answer;
use retrysafe::stores::postgres::PostgresStore;

use crate::kit::load::{begin, completed};
use crate::kit::{client, database, number, sql, store};

#[tokio::test]
async fn a_record_that_was_moved_is_settled_and_its_neighbour_is_not() {
    let url = database().await;
    let engine = Engine::new(store(&url).await);
    let mut leases = Vec::new();
    for key in ["first", "second", "third"] {
        let Ok(Begun::Execute(lease)) = begin(&engine, key, 1).await else {
            panic!("{key} is new")
        };
        leases.push(lease);
    }
    let places = "SELECT count(DISTINCT ctid) FROM retrysafe.record WHERE ctid IN ('(0,1)', '(0,2)', '(0,3)')";
    assert_eq!(number(&url, places).await, 3, "each lies behind the one before");
    sql(&url, "DELETE FROM retrysafe.record WHERE ctid = '(0,1)'").await;
    sql(&url, "VACUUM FULL retrysafe.record").await;
    assert_eq!(number(&url, places).await, 2, "the third lies where the second did");

    let second = leases.remove(1);
    engine.settle(second, &completed("the second's")).await.unwrap();
    assert_eq!(replayed(&engine, "second").await, "the second's");
    let neighbour = begin(&engine, "third", 2).await.unwrap();
    assert!(matches!(neighbour, Begun::InProgress(_)), "{neighbour:?}");

    let third = leases.remove(1);
    engine.settle(third, &completed("the third's")).await.unwrap();
    assert_eq!(replayed(&engine, "third").await, "the third's");
}

async fn replayed(engine: &Engine<PostgresStore>, key: &str) -> Bytes {
    let begun = begin(engine, key, 2).await.unwrap();
    let Begun::Replay(Answer::Kept(response), _) = begun else { panic!("{begun:?}") };
    response.body
}

// What is counted inside a transaction is counted at once.
#[tokio::test]
async fn a_settle_that_knows_its_place_does_not_search_the_index() {
    let url = database().await;
    drop(store(&url).await);
    let client = client(&url).await;
    let begin = "SELECT places FROM retrysafe.write_v1('on', 1000, ARRAY['a'::bytea], ARRAY['r'::bytea], ARRAY[1000::bigint], ARRAY[1000::bigint],
        ARRAY['d'::bytea], ARRAY['t'::bytea], ARRAY[1::bigint], '{}', '{}', '{}', '{}', '{}', '{}', '{}', '{}', '{}', '{}', '{}', '{}', '{}')";
    let settle = |place: &str| {
        format!("SELECT cardinality(w.ids)::bigint FROM retrysafe.record r, LATERAL retrysafe.write_v1('on', 1000, '{{}}', '{{}}', '{{}}', '{{}}', '{{}}', '{{}}', '{{}}', ARRAY[r.id],
            ARRAY[r.version], ARRAY[r.request], ARRAY[r.created_at], ARRAY[r.fence], ARRAY[1::smallint], ARRAY[1000::bigint], ARRAY['d'::bytea],
            ARRAY['t'::bytea], ARRAY[200::smallint], ARRAY[NULL::bytea], ARRAY[NULL::bytea], ARRAY[1::bigint], ARRAY[{place}]::tid[]) w")
    };
    for (place, searches) in [("r.ctid", 0), ("NULL", 1)] {
        client.batch_execute("BEGIN").await.unwrap();
        client.query_one(begin, &[]).await.unwrap();
        let looks = "SELECT idx_scan FROM pg_stat_xact_user_tables WHERE relname = 'record'";
        let before: i64 = client.query_one(looks, &[]).await.unwrap().get(0);
        let settled: i64 = client.query_one(&settle(place), &[]).await.unwrap().get(0);
        let after: i64 = client.query_one(looks, &[]).await.unwrap().get(0);
        assert_eq!((settled, after - before), (1, searches), "{place}");
        client.batch_execute("ROLLBACK").await.unwrap();
    }
}
