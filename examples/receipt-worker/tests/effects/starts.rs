//! What does a worker do whose database is not there when the worker starts?

use tokio::net::TcpListener;
use tokio::time::timeout;

use crate::process::PATIENCE;
use crate::world::World;

/// A worker that was started just before a restart of its database ended at once, and nobody delivered in its place.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_worker_waits_for_its_database() {
    let world = World::open().await;
    let mut database = world.database().await;
    database.stage("receipt", "waited", None).await;
    world.cluster.kill();
    let nobody = TcpListener::bind(("127.0.0.1", world.cluster.port)).await.unwrap();
    let mut worker = database.start_bare();
    // Its first try fails: whoever is at the port hangs up.
    drop(timeout(PATIENCE, nobody.accept()).await.expect("the worker asks").unwrap());
    drop(nobody);
    world.cluster.up();
    database.connect_again().await;
    database.until("SELECT count(*) FROM retrysafe.effect_done WHERE state = 5", 1).await;
    worker.end().await;
    assert_eq!(world.provider("receipt").ride("waited").requests, 1);
}
