//! Is an effect done once at the most, wherever and however its delivery is broken off?
//!
//! Every point × {error, panic, SIGKILL, SIGSTOP past the lease, database restart, commit applied and its answer lost}, each
//! with a receiver that remembers keys, one that takes none, and one that forgets them before a lease is over. Leases
//! are as short as they can be, 15 seconds, and end by themselves: all breaks wait for them together.

use std::sync::Arc;

use comfy_table::Table;
use retrysafe::outbox::Worker;
use sqlx::PgPool;
use tokio::task::JoinSet;
use tokio::time::timeout;

use crate::points::{BREAKS, Break, Ended, MEMORIES, POINTS, Point, allowed};
use crate::process::{PATIENCE, WorkerProcess};
use crate::receivers;
use crate::wire::{Act, Wire};
use crate::world::{Database, KINDS, SHORT_MEMORY, World};

/// How the effects of one break ended, one for each receiver.
type Ends = Vec<Ended>;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_break_of_a_delivery_leaves_one_effect_at_the_most() {
    let world = World::open().await;
    let mut breaking = JoinSet::new();
    for point in POINTS {
        for how in BREAKS.into_iter().filter(|how| how.is_possible_at(point)) {
            if how == Break::Restart {
                // It needs a server of its own.
                continue;
            }
            let scene = Scene::open(&world, point, how).await;
            breaking.spawn(async move { (point, how, scene.play().await) });
        }
    }
    let restarted = tokio::spawn(restart_everywhere());
    let mut ends: Vec<(Point, Break, Ends)> = Vec::new();
    while let Some(played) = breaking.join_next().await {
        ends.push(played.unwrap());
    }
    for (point, played) in restarted.await.unwrap() {
        ends.push((point, Break::Restart, played));
    }
    let cells = print(&ends);
    println!("{cells} cells: one effect at the most in each of them, and none is lost");
}

/// The effect succeeds at its receiver, and the worker dies before that is recorded: no second effect.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_effect_that_succeeded_and_whose_worker_died_before_it_was_recorded_is_not_done_again() {
    let world = World::open().await;
    let mut breaking = JoinSet::new();
    for point in [Point::EffectDone, Point::BeforeFinish] {
        let scene = Scene::open(&world, point, Break::Kill).await;
        breaking.spawn(scene.play());
    }
    while let Some(played) = breaking.join_next().await {
        let done = played.unwrap().into_iter().map(|ended| match ended {
            Ended::Delivered { effects } | Ended::Unknown { effects } | Ended::Dead { effects } => {
                effects
            }
        });
        assert_eq!(done.collect::<Vec<_>>(), [1, 1, 1]);
    }
}

/// Prints a table, and gives the number of its cells.
fn print(ends: &[(Point, Break, Ends)]) -> usize {
    let mut table = Table::new();
    let columns = BREAKS.map(Break::name);
    table.set_header([&["broken off at", "memory"], &columns[..]].concat());
    let mut cells = 0;
    for point in POINTS {
        for (number, memory) in MEMORIES.into_iter().enumerate() {
            let words = BREAKS.map(|how| {
                let played = ends.iter().find(|(at, by, _)| (*at, *by) == (point, how));
                let ended = played.and_then(|(_, _, ends)| ends.get(number));
                cells += usize::from(ended.is_some());
                ended.map_or_else(String::new, |ended| match ended {
                    Ended::Delivered { .. } => "delivered".to_owned(),
                    Ended::Unknown { effects } => format!("unknown, {effects} done"),
                    Ended::Dead { effects } => format!("dead, {effects} done"),
                })
            });
            let name = [point.name().to_owned(), format!("{memory:?}")];
            table.add_row([&name[..], &words[..]].concat());
        }
    }
    println!("{table}");
    cells
}

/// One break at one point, of one effect for each receiver.
struct Scene {
    database: Database,
    point: Point,
    how: Break,
    ride: String,
}

impl Scene {
    async fn open(world: &Arc<World>, point: Point, how: Break) -> Self {
        let database = world.database().await;
        let ride = format!("{point:?}-{how:?}");
        if let Some(mode) = point.mode(how).filter(|_| how != Break::Panic) {
            database.set_mode(&ride, mode);
        }
        for kind in KINDS {
            database.stage(kind, &ride, None).await;
        }
        Self { database, point, how, ride }
    }

    async fn play(self) -> Ends {
        match self.how {
            Break::Error | Break::AnswerLost => self.cut().await,
            Break::Panic => self.panic().await,
            Break::Kill => self.kill().await,
            Break::Stop => self.stop().await,
            Break::Restart => unreachable!("all points are restarted together"),
        }
        self.check().await
    }

    /// The wire or the provider cuts the worker off, and the worker goes on.
    async fn cut(&self) {
        let (mut worker, wire) = self.database.start(self.point.gate(Act::Cut)).await;
        if self.point.gate(Act::Cut).is_some() {
            self.in_time(wire.has_met(KINDS.len())).await;
        }
        self.database.until_decided().await;
        worker.end().await;
    }

    /// Whoever delivers panics, once for each effect. That leaves its process alive, so that this one will do.
    async fn panic(&self) {
        let pool = PgPool::connect(&self.database.url()).await.unwrap();
        let is_sent = self.point == Point::EffectDone;
        let mut worker = Worker::new(pool);
        for (kind, receiver) in receivers::all() {
            worker = worker.deliver(kind, receiver, move |delivery| async move {
                let is_first = delivery.failures() == 0;
                assert!(!is_first || is_sent, "on purpose, before it is sent");
                let ended = receivers::deliver(reqwest::Client::new(), delivery).await;
                assert!(!is_first, "on purpose, with the answer in hand");
                ended
            });
        }
        let working = worker.start();
        self.database.until_decided().await;
        assert!(working.stop(PATIENCE).await);
    }

    async fn kill(&self) {
        let (mut victim, wire) = self.hold().await;
        victim.kill();
        drop(wire);
        let mut other = self.database.start_bare();
        self.database.until_decided().await;
        self.release_providers().await;
        other.end().await;
    }

    async fn stop(&self) {
        let (mut sleeper, wire) = self.hold().await;
        sleeper.stop().await;
        let mut other = self.database.start_bare();
        self.database.until_decided().await;
        let is_forgotten = format!(
            "SELECT least(1, count(*)) FROM retrysafe_test.clock
            WHERE retrysafe.now_ms() > coalesce((SELECT max(staged_at) FROM retrysafe.effect), 0) + {}
            AND retrysafe.now_ms() > coalesce((SELECT max(staged_at) FROM retrysafe.effect_done), 0) + {}",
            SHORT_MEMORY.as_millis(),
            SHORT_MEMORY.as_millis()
        );
        self.database.until(&is_forgotten, 1).await;
        wire.open();
        sleeper.go_on();
        self.release_providers().await;
        sleeper.end().await;
        // What the sleeper has given back is the other one's.
        self.database.until_decided().await;
        other.end().await;
    }

    /// Starts a worker that stands at the point with an effect of each kind.
    async fn hold(&self) -> (WorkerProcess, Wire) {
        let gate = self.point.gate(Act::Hold);
        let (worker, wire) = self.database.start(gate).await;
        if gate.is_some() {
            self.in_time(wire.has_met(KINDS.len())).await;
        } else {
            for kind in KINDS {
                self.in_time(self.database.world.provider(kind).held(&self.ride)).await;
            }
        }
        (worker, wire)
    }

    /// Lets the providers go on, and waits until they have nothing to do: what was sent cannot be taken back.
    async fn release_providers(&self) {
        for kind in KINDS {
            let provider = self.database.world.provider(kind);
            provider.release(&self.ride);
            self.in_time(provider.idle(&self.ride)).await;
        }
    }

    async fn in_time(&self, fact: impl Future<Output = ()>) {
        let in_time = timeout(PATIENCE, fact).await;
        assert!(in_time.is_ok(), "{} does not come to {:?}", self.ride, self.point);
    }

    /// How it ended, which must be allowed.
    async fn check(&self) -> Ends {
        let mut ends = Vec::new();
        for (kind, memory) in KINDS.into_iter().zip(MEMORIES) {
            let ended = self.database.ended(kind, &self.ride).await;
            let allowed = allowed(self.point, self.how, memory);
            assert!(allowed.contains(&ended), "{} {memory:?}: {ended:?}", self.ride);
            ends.push(ended);
        }
        ends
    }
}

/// The server is killed while workers stand at every point, and comes back.
async fn restart_everywhere() -> Vec<(Point, Ends)> {
    let world = World::open().await;
    let mut scenes = Vec::new();
    for point in POINTS {
        scenes.push(Scene::open(&world, point, Break::Restart).await);
    }
    let mut held = Vec::new();
    // A delivery has a deadline: those that stand in one come last.
    let (sending, others): (Vec<Scene>, Vec<Scene>) =
        scenes.into_iter().partition(|scene| scene.point.gate(Act::Hold).is_none());
    for scenes in [others, sending] {
        let mut holding: JoinSet<_> = scenes
            .into_iter()
            .map(|scene| async move {
                let (worker, wire) = scene.hold().await;
                (scene, worker, wire)
            })
            .collect();
        while let Some(standing) = holding.join_next().await {
            held.push(standing.unwrap());
        }
    }
    world.cluster.kill();
    for (scene, _, _) in &held {
        scene.release_providers().await;
    }
    world.cluster.up();
    let mut ends = Vec::new();
    for (_, _, wire) in &held {
        wire.open();
    }
    for (mut scene, mut worker, _wire) in held {
        scene.database.connect_again().await;
        scene.database.until_decided().await;
        worker.end().await;
        ends.push((scene.point, scene.check().await));
    }
    ends
}
