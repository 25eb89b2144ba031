//! What does a promoted server deliver?
//!
//! A server that took over from one whose last commits may be lost may lack sent marks: what it claimed at once could be
//! sent a second time.

use std::time::Duration;

use retrysafe::outbox::PooledEffects;
use retrysafe::outbox::store::EffectStore as _;
use retrysafe::stores::postgres::{PostgresStore, Trust};
use sqlx::postgres::{PgConnectOptions, PgPoolOptions};

use super::stage::{OutboxStage, mail};
use crate::kit::cluster::Cluster;
use crate::kit::{number, sql};

const CLAIM: &str = "SELECT count(*) FROM retrysafe.claim_effects_v1('mail', 10, 15000)";

/// The database as a promoted standby finds it: written last on another timeline, by a server whose commits nobody waited
/// for.
async fn promoted(stage: &OutboxStage) {
    let other = "UPDATE retrysafe.server SET timeline = '000000FE', is_awaited = false";
    sql(&stage.url, other).await;
}

/// An operator wants no quarantine.
async fn go_on(stage: &OutboxStage) {
    let database = stage.url.rsplit('/').next().unwrap();
    let go_on = format!("ALTER DATABASE {database} SET retrysafe.failover = 'continue'");
    sql(&stage.url, &go_on).await;
}

#[tokio::test]
async fn nothing_is_claimed_while_a_quarantine_lasts_and_what_is_under_way_is_finished() {
    let stage = OutboxStage::new().await;
    stage.stage(mail("under way")).await;
    assert_eq!(number(&stage.url, CLAIM).await, 1);
    promoted(&stage).await;
    stage.stage(mail("next")).await;
    assert_eq!(number(&stage.url, CLAIM).await, 0);
    assert_eq!(number(&stage.url, CLAIM).await, 0, "it was noted");
    let stats = stage.outbox.operator("alice").stats().await.unwrap();
    let quarantine = Duration::from_secs(600);
    assert_eq!(stats.held_until, Some(stats.now.plus(quarantine)));
    let finish = "SELECT count(*) FROM retrysafe.finish_effects_v1('{1}', ARRAY(SELECT fence FROM retrysafe.effect WHERE id = 1),
        '{0}', '{0}', '{ref}', '{NULL}', 20)";
    assert_eq!(number(&stage.url, finish).await, 1);
    stage.later(quarantine).await;
    assert_eq!(number(&stage.url, CLAIM).await, 1);
    assert_eq!(stage.outbox.operator("alice").stats().await.unwrap().held_until, None);
}

#[tokio::test]
async fn an_operator_ends_a_quarantine_or_wants_none() {
    let stage = OutboxStage::new().await;
    stage.stage(mail("a")).await;
    promoted(&stage).await;
    assert_eq!(number(&stage.url, CLAIM).await, 0);
    PostgresStore::init(&stage.url.parse().unwrap(), Trust::AtOnce).await.unwrap();
    assert_eq!(number(&stage.url, CLAIM).await, 1);

    let stage = OutboxStage::new().await;
    stage.stage(mail("b")).await;
    go_on(&stage).await;
    promoted(&stage).await;
    assert_eq!(number(&stage.url, CLAIM).await, 1);
}

/// A worker's claim is lost in a fail-over, and the worker is paused meanwhile. Another one claims the effect on the new primary. It was
/// given the same fence, so that the first one's words counted as its own: the mark was cleared, and the effect was sent again.
#[tokio::test]
async fn a_lost_claim_gives_its_fence_to_nobody() {
    let stage = OutboxStage::without_keys().await;
    stage.stage(mail("once")).await;
    go_on(&stage).await;
    let claim = "SELECT fence FROM retrysafe.claim_effects_v1('mail', 10, 15000)";
    let lost = number(&stage.url, claim).await;
    // As the standby knows it, which has heard of nothing.
    let before = "UPDATE retrysafe.effect SET state = 1, at = 0, fence = 0, marked_by = NULL;
        SELECT setval('retrysafe.version', 1, false)";
    sql(&stage.url, before).await;
    promoted(&stage).await;
    let fence = number(&stage.url, claim).await;
    let mark =
        format!("SELECT retrysafe.mark_effects_v1('{{1}}', '{{{fence}}}', '{{NULL}}', NULL)");
    sql(&stage.url, &mark).await;
    let finish = |fence: i64, end: u8| {
        format!(
            "SELECT retrysafe.finish_effects_v1('{{1}}', '{{{fence}}}', '{{{end}}}', '{{0}}', '{{NULL}}', '{{NULL}}', 20)"
        )
    };
    sql(&stage.url, &finish(fence, 3)).await;
    assert_eq!(stage.count(3).await, 1, "sent, and nobody knows");
    sql(&stage.url, &format!("SELECT retrysafe.hand_back_effects_v1('{{1}}', '{{{lost}}}')")).await;
    for end in [0, 1, 2] {
        sql(&stage.url, &finish(lost, end)).await;
    }
    assert_eq!(stage.count(3).await, 1, "whoever lost its claim says nothing about it");
    assert!(fence > lost + (1 << 32), "{fence} after {lost}");
}

/// The number of a lost effect was given to another one, which whoever still named the lost one could end or cancel.
#[tokio::test]
async fn the_number_of_a_lost_effect_is_given_to_no_other_one() {
    let stage = OutboxStage::new().await;
    go_on(&stage).await;
    let mut last = stage.stage(mail("lost")).await.id;
    let leaps = "SELECT last_value FROM retrysafe.inbox_id_seq";
    for is_operator in [false, true] {
        if is_operator {
            PostgresStore::init(&stage.url.parse().unwrap(), Trust::AtOnce).await.unwrap();
        } else {
            promoted(&stage).await;
            number(&stage.url, CLAIM).await;
        }
        let next = stage.stage(mail("next")).await.id;
        assert!(next > last + (1 << 32), "{next} after {last}");
        last = next;
    }
    assert!(number(&stage.url, leaps).await > 1 << 33, "events of webhooks, too");
}

/// The name by which a worker knows its database leads to this server from now on.
async fn leads_to(pool: &sqlx::PgPool, server: &Cluster) {
    let options: PgConnectOptions = server.url("postgres").parse().unwrap();
    pool.set_connect_options(options);
    // What is open leads to the server before. A connection that was used a moment ago may still be on its way back into the pool.
    while pool.size() > 0 {
        match pool.try_acquire() {
            Some(connection) => drop(connection.detach()),
            None => tokio::task::yield_now().await,
        }
    }
}

/// A worker was led back to the former primary, which takes itself for the one that has always been here. It claimed there what was
/// delivered on the new primary, and delivered that a second time.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_worker_that_has_seen_the_new_primary_claims_nothing_from_the_former_one() {
    let made = tokio::task::spawn_blocking(|| {
        let first = Cluster::start(&[]);
        let second = Cluster::standby_of(&first, "second");
        (first, second)
    });
    let (first, second) = made.await.unwrap();
    drop(PostgresStore::connect(&first.url("postgres")).await.unwrap());
    first.sql("postgres", "ALTER DATABASE postgres SET retrysafe.failover = 'continue'");
    first.sql("postgres", "SELECT retrysafe.stage('mail', 'once')");
    let there = "SELECT pg_last_wal_replay_lsn() >= '{}'::pg_lsn";
    let written = first.sql("postgres", "SELECT pg_current_wal_lsn()");
    while second.sql("postgres", &there.replace("{}", &written)) != "t" {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let pool = PgPoolOptions::new().max_connections(1).connect(&first.url("postgres")).await;
    let pool = pool.unwrap();
    let worker = PooledEffects::new(pool.clone());
    let lease = Duration::from_secs(60);
    assert!(worker.claim("receipt", 10, lease).await.unwrap().is_empty());

    let moved = tokio::task::spawn_blocking(move || {
        first.kill();
        second.promote();
        (first, second)
    });
    let (first, second) = moved.await.unwrap();
    leads_to(&pool, &second).await;
    let claimed = worker.claim("mail", 10, lease).await.unwrap();
    assert_eq!(claimed.len(), 1);

    // The former primary comes back. Nobody has told it.
    let first = tokio::task::spawn_blocking(move || {
        first.up();
        first
    });
    let first = first.await.unwrap();
    leads_to(&pool, &first).await;
    let refused = worker.claim("mail", 10, lease).await.unwrap_err().to_string();
    assert!(refused.contains("former primary"), "{refused}");
    let held = [claimed[0].held];
    assert!(worker.renew(&held, lease).await.is_err(), "nor does it count as told");
    assert_eq!(first.sql("postgres", "SELECT state FROM retrysafe.effect"), "1", "not claimed");
    leads_to(&pool, &second).await;
    worker.renew(&held, lease).await.unwrap();
    assert_eq!(second.sql("postgres", "SELECT state FROM retrysafe.effect"), "2");
}
