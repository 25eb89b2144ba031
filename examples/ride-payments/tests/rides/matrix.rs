//! Is everything done once, wherever and however the operation is broken off?
//!
//! Every named point × {error, panic, SIGKILL, connection cut}, and every commit × {cut before it is applied, applied and
//! its answer lost}, with a provider that takes keys and with one that takes none.

use std::time::Duration;

use comfy_table::Table;
use payment_provider::Mode;
use tokio::task::JoinSet;
use tokio::time::timeout;

use crate::director::Order;
use crate::languages::Language;
use crate::points::{POINTS, Point, Visible};
use crate::program::{Caller, PATIENCE, Program, Told};
use crate::wire::{Cut, Wire};
use crate::world::{Keys, World};

/// Longer than the lease of an owner.
const LEASE_OVER: Duration = Duration::from_secs(61);

/// All that is done.
pub(crate) const DONE: Visible = Visible { rides: 1, charges: 1, receipts: 1 };

/// What an operation commits, in order. Without a layer there is no last one.
const COMMITS: [&str; 7] = [
    "reservation",
    "flow begun",
    "ride",
    "about to charge",
    "charge",
    "receipt and answer",
    // The layer says once more what the flow has said, and finds it so.
    "answer once more",
];

/// How the operation is broken off at a point.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Break {
    Error,
    Panic,
    Kill,
    Cut,
}

const BREAKS: [Break; 4] = [Break::Error, Break::Panic, Break::Kill, Break::Cut];

/// How it ended after all.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ended {
    /// The next attempt went on and answered.
    Resumed,
    /// The attempt that was broken off has answered.
    SameAttempt,
    /// Nobody may go on; charged so many times.
    Unknown { charges: u64 },
}

/// The cells of one row, one column after the other; none where there is nothing to break.
type Row = (String, Vec<Option<Ended>>);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_break_of_the_rust_program_leaves_one_charge() {
    all_breaks(Language::Rust).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_break_of_the_python_program_leaves_one_charge() {
    all_breaks(Language::Python).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_break_of_the_node_program_leaves_one_charge() {
    all_breaks(Language::Node).await;
}

async fn all_breaks(language: Language) {
    let (keyed, unkeyed) =
        tokio::join!(breaks(language, Keys::Taken), breaks(language, Keys::NotTaken));
    let mut cells = 0;
    for (keys, (at_points, at_commits)) in [(Keys::Taken, keyed), (Keys::NotTaken, unkeyed)] {
        println!("{language:?}, keys {keys:?}");
        cells += print(&["error", "panic", "SIGKILL", "connection cut"], at_points);
        cells += print(&["cut, not applied", "applied, answer lost"], at_commits);
    }
    println!("{language:?}: {cells} cells, one charge at the most in each of them");
}

/// Prints a table, and gives the number of its cells.
fn print(columns: &[&str], rows: Vec<Row>) -> usize {
    let mut table = Table::new();
    table.set_header([&["broken off at"], columns].concat());
    let mut cells = 0;
    for (name, ends) in rows {
        cells += ends.iter().flatten().count();
        let words = ends.iter().map(|end| match end {
            None => "".to_owned(),
            Some(Ended::Resumed) => "resumed".to_owned(),
            Some(Ended::SameAttempt) => "same attempt".to_owned(),
            Some(Ended::Unknown { charges }) => format!("unknown, {charges} charged"),
        });
        table.add_row([vec![name], words.collect()].concat());
    }
    println!("{table}");
    cells
}

/// All breaks with one kind of provider.
async fn breaks(language: Language, keys: Keys) -> (Vec<Row>, Vec<Row>) {
    let mut world = World::open(keys).await;
    // Callers come back by themselves here.
    world.settings.push(("COMPLETE_EVERY_MS", "3600000".to_owned()));
    let (steady, wire) = world.start(language).await;
    let desk = Desk { world: &world, language, keys, steady: &steady, wire: &wire };
    let (victim, _victims_wire) = world.start(language).await;
    let killed = desk.kill_everywhere(victim).await;
    let mut at_points = Vec::new();
    for (point, killed) in POINTS.into_iter().zip(killed) {
        let mut ends = Vec::new();
        for how in BREAKS {
            ends.push(match how {
                Break::Error => desk.refuse(point, Order::Error).await,
                Break::Panic => desk.refuse(point, Order::Panic).await,
                Break::Kill => Some(killed),
                Break::Cut => Some(desk.cut_at(point).await),
            });
        }
        at_points.push((point.name().to_owned(), ends));
    }
    let at_commits = desk.cut_commits().await;
    world.deliver_receipts().await;
    (at_points, at_commits)
}

struct Desk<'a> {
    world: &'a World,
    language: Language,
    keys: Keys,
    steady: &'a Program,
    wire: &'a Wire,
}

impl Desk<'_> {
    /// The program, or the provider, refuses at a point. The provider has no panic.
    async fn refuse(&self, point: Point, order: Order) -> Option<Ended> {
        let ride = name(point.name(), &format!("{order:?}"));
        match (point, order) {
            (Point::ChargeSent, Order::Error) => {
                self.world.provider.set_mode(&ride, Mode::FailBeforeCharging.once());
            }
            (Point::ChargeMade, Order::Error) => {
                self.world.provider.set_mode(&ride, Mode::FailAfterCharging.once());
            }
            (Point::ChargeSent | Point::ChargeMade, _) => return None,
            _ => self.world.director.order(&ride, point.name(), order),
        }
        let first = self.steady.caller.book(&ride).await;
        assert!(!self.world.director.is_pending(&ride, point.name()), "{ride}: not broken off");
        assert_eq!(self.world.visible(&ride).await, point.visible(), "{ride}");
        let how = if order == Order::Panic { Break::Panic } else { Break::Error };
        Some(self.finish(&ride, first, point, how).await)
    }

    /// A process in which an operation stands at each point is killed.
    async fn kill_everywhere(&self, mut victim: Program) -> Vec<Ended> {
        let mut callers = JoinSet::new();
        for point in POINTS {
            let ride = name(point.name(), "kill");
            callers.spawn(hold(self.world, &victim.caller, &ride, point));
            is_held(self.world, &ride, point).await;
        }
        victim.kill();
        while let Some(told) = callers.join_next().await {
            assert_eq!(told.unwrap(), None, "a dead process has answered");
        }
        for point in POINTS {
            let ride = name(point.name(), "kill");
            assert_eq!(self.world.visible(&ride).await, point.visible(), "{ride}");
            let told = self.steady.caller.book(&ride).await.unwrap();
            let is_done = point == Point::AnswerCommitted;
            assert!(is_done || told.has_code("request_in_progress"), "{ride}: {told:?}");
        }
        self.world.later(LEASE_OVER).await;
        let mut ends = Vec::new();
        for point in POINTS {
            let ride = name(point.name(), "kill");
            let end = self.finish(&ride, None, point, Break::Kill).await;
            if point.held_by_provider().is_some() {
                // The dead process's own request is still with the provider.
                self.world.provider.release(&ride);
                self.world.provider.idle(&ride).await;
                assert_eq!(self.world.provider.ride(&ride).charges, 1, "{ride}");
            }
            ends.push(end);
        }
        ends
    }

    /// All connections are cut while the operation stands at a point: to the database, or to the provider.
    async fn cut_at(&self, point: Point) -> Ended {
        let ride = name(point.name(), "cut");
        let first = match point {
            Point::ChargeSent | Point::ChargeMade => {
                let is_charged = point == Point::ChargeMade;
                let mode =
                    if is_charged { Mode::ResetAfterCharging } else { Mode::ResetBeforeCharging };
                self.world.provider.set_mode(&ride, mode.once());
                let first = self.steady.caller.book(&ride).await;
                assert_eq!(self.world.visible(&ride).await, point.visible(), "{ride}");
                first
            }
            _ => {
                let booking = tokio::spawn(hold(self.world, &self.steady.caller, &ride, point));
                is_held(self.world, &ride, point).await;
                self.wire.cut_all();
                self.world.director.release(&ride, point.name());
                booking.await.unwrap()
            }
        };
        let first = first.expect("the program lives, and answers");
        let may_be_unknown = point.held_by_provider().is_some();
        if may_be_unknown {
            return self.finish(&ride, Some(first), point, Break::Cut).await;
        }
        self.finish_as(&ride, Some(first), None).await
    }

    /// Each commit is cut, before it is applied and after.
    async fn cut_commits(&self) -> Vec<Row> {
        self.wire.disarm();
        let ride = name("no", "cut");
        let count = if self.language.is_sql() { COMMITS.len() - 1 } else { COMMITS.len() };
        assert_eq!(self.steady.caller.book(&ride).await.unwrap().status, 201);
        timeout(PATIENCE, self.wire.has_seen(count)).await.expect("all commits");
        assert_eq!(self.wire.disarm(), count, "the commits of one operation");
        let mut rows = Vec::new();
        for (number, commit) in COMMITS.into_iter().take(count).enumerate() {
            let mut ends = Vec::new();
            for cut in [Cut::NotApplied, Cut::AnswerLost] {
                let ride = name(commit, &format!("{cut:?}"));
                self.wire.arm(number, cut);
                let first = self.steady.caller.book(&ride).await;
                let has_cut = timeout(PATIENCE, self.wire.has_cut()).await;
                has_cut.unwrap_or_else(|_| panic!("{ride}: not cut"));
                self.world.visible(&ride).await;
                // A program that does not know whether the mark stands has sent nothing. It cannot prove that to others.
                let is_unknown = self.language.is_sql()
                    && self.keys == Keys::NotTaken
                    && (commit, cut) == ("about to charge", Cut::AnswerLost);
                ends.push(Some(if is_unknown {
                    self.finish_unknown(&ride, Point::ChargeToSend).await
                } else {
                    self.finish_as(&ride, first, None).await
                }));
            }
            rows.push((commit.to_owned(), ends));
        }
        rows
    }

    /// Finishes what was broken off at a point.
    async fn finish(&self, ride: &str, first: Option<Told>, point: Point, how: Break) -> Ended {
        let is_silent = self.language.is_sql() && how == Break::Panic;
        if is_silent {
            // The attempt has told the record nothing: its lease must end.
            self.world.later(LEASE_OVER).await;
        }
        // A program that is alive and has only the functions says that it has begun nothing.
        let has_begun_nothing = self.language.is_sql() && how == Break::Error;
        let is_unknown = (point == Point::RequestBegun && !has_begun_nothing)
            || (point.may_have_sent() && self.keys == Keys::NotTaken);
        if is_unknown {
            self.finish_unknown(ride, point).await
        } else {
            self.finish_as(ride, first, Some(point)).await
        }
    }

    /// Whoever asks is told that nobody knows, and nothing happens.
    async fn finish_unknown(&self, ride: &str, point: Point) -> Ended {
        for _ in 0..2 {
            let told = self.steady.caller.book_until_decided(ride).await;
            assert!(told.has_code("outcome_unknown"), "{ride}: {told:?}");
        }
        let visible = self.world.visible(ride).await;
        assert_eq!(visible, point.visible(), "{ride}");
        Ended::Unknown { charges: visible.charges }
    }

    /// Brings an operation to its end: one ride, one charge, one receipt, and one answer for everybody.
    async fn finish_as(&self, ride: &str, first: Option<Told>, point: Option<Point>) -> Ended {
        let first = first.filter(|told| told.status == 201);
        let visits = self.world.director.visits(ride).len();
        let told = self.steady.caller.book_until_decided(ride).await;
        assert_eq!(told.status, 201, "{ride}: {told:?}");
        assert_eq!(self.world.visible(ride).await, DONE, "{ride}");
        let keys = self.world.provider.ride(ride).keys;
        assert_eq!(keys.len(), 1, "{ride}: {keys:?}");
        if let Some(point) = point {
            let visits = self.world.director.visits(ride).split_off(visits);
            let outside = [Point::RequestBegun.name(), Point::AnswerCommitted.name()];
            let first = visits.iter().find(|visit| !outside.contains(&visit.as_str()));
            let expected = point.resumes_at().map(Point::name);
            assert_eq!(first.map(String::as_str), expected, "{ride}: {visits:?}");
        }
        let again = self.steady.caller.book(ride).await.unwrap();
        assert_eq!(again, Told { is_replay: true, ..told.clone() }, "{ride}");
        let Some(first) = first else { return Ended::Resumed };
        assert_eq!(first.body, told.body, "{ride}");
        Ended::SameAttempt
    }
}

/// The name of a ride, and of its key.
fn name(place: &str, how: &str) -> String {
    format!("{place}-{how}").replace(' ', "-").to_lowercase()
}

/// Books a ride that will stand at this point.
pub(crate) fn hold(
    world: &World,
    caller: &Caller,
    ride: &str,
    point: Point,
) -> impl Future<Output = Option<Told>> + use<> {
    match point.held_by_provider() {
        Some(mode) => world.provider.set_mode(ride, mode.once()),
        None => world.director.order(ride, point.name(), Order::Hold),
    }
    let caller = caller.clone();
    let ride = ride.to_owned();
    async move { caller.book(&ride).await }
}

/// Waits until the operation stands at this point.
pub(crate) async fn is_held(world: &World, ride: &str, point: Point) {
    let held = async {
        match point.held_by_provider() {
            Some(_) => world.provider.held(ride).await,
            None => world.director.held(ride, point.name()).await,
        }
    };
    timeout(PATIENCE, held).await.unwrap_or_else(|_| panic!("{ride} does not come to {point:?}"));
}
