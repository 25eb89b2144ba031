//! Does the PostgreSQL store keep its promises behind a pooler that hands every transaction to
//! another backend?

use std::io::{BufRead as _, BufReader};
use std::process::{Command, Stdio};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use crate::kit::bench::Database;
use crate::kit::cluster::Cluster;
use crate::kit::load::{begin, completed};
use crate::kit::pooler::Pooler;
use retrysafe::core::conformance::Bench;
use retrysafe::core::engine::{Begun, Engine};
use retrysafe::stores::postgres::PostgresStore;

/// A store behind pgbouncer in transaction mode.
struct Pooled {
    database: Database,
    store: Arc<PostgresStore>,
}

impl Bench for Pooled {
    type Store = PostgresStore;

    async fn fresh() -> Self {
        static POOLER: OnceLock<Pooler> = OnceLock::new();
        let database = Database::take().await;
        let (base, name) = database.url.rsplit_once('/').expect("a URL");
        let server = base.rsplit_once(':').expect("a port").1.parse().expect("a number");
        let port = POOLER.get_or_init(|| Pooler::start(server)).port;
        let url = format!("postgres://postgres@127.0.0.1:{port}/{name}?deadline=30s");
        // A pooler may still hold a connection that the last case's end has closed.
        let store = loop {
            match PostgresStore::connect(&url).await {
                Ok(store) => break Arc::new(store),
                Err(error) if error.to_string().contains("terminat") => {}
                Err(error) => panic!("{error}"),
            }
        };
        Self { store, database }
    }

    fn store(&self) -> Arc<PostgresStore> {
        Arc::clone(&self.store)
    }

    async fn advance(&self, by: Duration) {
        self.database.advance(by).await;
    }
}

retrysafe_core::conformance!(pgbouncer, Pooled);

/// A name that another backend does not know, or knows as somebody else's statement, would be worse
/// than slow.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn statements_are_prepared_by_name_only_where_nothing_pools() {
    let server = Cluster::start(&[("log_min_duration_statement", "0")]);
    let pooler = Pooler::start(server.port);
    let calls = |log: &str, name: &str| {
        let call = |line: &&str| line.contains(name) && line.contains("retrysafe.write_v");
        log.lines().filter(call).count()
    };
    for (port, named, unnamed) in [(pooler.port, 0, 2), (server.port, 2, 0)] {
        let before = server.log().len();
        let url = format!("postgres://postgres@127.0.0.1:{port}/postgres");
        let engine = Engine::new(PostgresStore::connect(&url).await.unwrap());
        let key = format!("behind {port}");
        let Ok(Begun::Execute(lease)) = begin(&engine, &key, 1).await else { panic!() };
        engine.settle(lease, &completed("x")).await.unwrap();
        let log = server.log().split_off(before);
        let found = (calls(&log, "execute s"), calls(&log, "execute <unnamed>"));
        assert_eq!(found, (named, unnamed), "{log}");
    }
}

/// Set for the process that is to start a pooler and then to fail.
const CHILD: &str = "RETRYSAFE_POOLER_CHILD";

/// Not a test of its own: a child process runs this.
#[test]
fn child_that_starts_a_pooler_and_panics() {
    if std::env::var_os(CHILD).is_some() {
        // Nothing needs to be behind it.
        let pooler = Pooler::start(1);
        println!("\npooler {}", pooler.pid);
        panic!("as a failing test does");
    }
}

/// A pooler was left behind when the tests were started in the background by a shell: those ignore
/// SIGQUIT, a pgbouncer inherits that, and its janitor knew no other signal and waited for ever.
#[test]
fn a_pooler_ends_with_the_process_that_started_it_though_it_panics_and_ignores_quit() {
    let me = std::env::current_exe().unwrap();
    let mut child = Command::new("sh")
        .args(["-c", "trap '' QUIT; exec \"$0\" \"$@\""])
        .arg(me)
        .args(["pooler::child_that_starts_a_pooler_and_panics", "--exact", "--nocapture"])
        .env(CHILD, "1")
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let said =
        lines.map_while(Result::ok).find_map(|line| Some(line.strip_prefix("pooler ")?.to_owned()));
    let pid = said.expect("the child has started a pooler");
    assert!(!child.wait().unwrap().success(), "the child panics");
    let deadline = Instant::now() + Duration::from_secs(60);
    while is_running(&pid) {
        assert!(Instant::now() < deadline, "pgbouncer {pid} outlives its test");
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// Whether a process is there and not merely waiting to be noticed dead.
fn is_running(pid: &str) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit(')')
        .next()
        .is_some_and(|rest| !rest.trim().is_empty() && !rest.trim().starts_with('Z'))
}
