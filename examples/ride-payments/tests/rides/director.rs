//! Who decides what happens at a break point?
//!
//! A program that comes to a point says so here, and waits for a word. The director remembers every visit, so that a test can
//! say where an attempt has resumed.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Notify, oneshot};

/// What happens to the next one that comes to a point.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Order {
    Error,
    Panic,
    /// It waits until it is released, killed or stopped.
    Hold,
}

#[derive(Debug)]
pub(crate) struct Director {
    pub(crate) address: SocketAddr,
    shared: Arc<Shared>,
}

#[derive(Debug, Default)]
struct Shared {
    stage: Mutex<Stage>,
    changed: Notify,
}

/// A ride and a point.
type Place = (String, String);

#[derive(Debug, Default)]
struct Stage {
    orders: HashMap<Place, Order>,
    held: HashMap<Place, oneshot::Sender<()>>,
    visits: Vec<Place>,
}

impl Director {
    pub(crate) async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let shared = Arc::<Shared>::default();
        let theirs = Arc::clone(&shared);
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                tokio::spawn(receive(stream, Arc::clone(&theirs)));
            }
        });
        Self { address, shared }
    }

    pub(crate) fn order(&self, ride: &str, point: &str, order: Order) {
        self.shared.stage.lock().unwrap().orders.insert(place(ride, point), order);
    }

    /// Waits until somebody is held there.
    pub(crate) async fn held(&self, ride: &str, point: &str) {
        let place = place(ride, point);
        loop {
            let mut changed = std::pin::pin!(self.shared.changed.notified());
            changed.as_mut().enable();
            if self.shared.stage.lock().unwrap().held.contains_key(&place) {
                return;
            }
            changed.await;
        }
    }

    /// Lets the one go on that is held there.
    pub(crate) fn release(&self, ride: &str, point: &str) {
        let held = self.shared.stage.lock().unwrap().held.remove(&place(ride, point));
        // The one who was held may be dead by now.
        let _ = held.expect("somebody is held").send(());
    }

    /// Whether an order is still to be carried out.
    pub(crate) fn is_pending(&self, ride: &str, point: &str) -> bool {
        self.shared.stage.lock().unwrap().orders.contains_key(&place(ride, point))
    }

    /// The points that attempts for this ride have come to, in order.
    pub(crate) fn visits(&self, ride: &str) -> Vec<String> {
        let stage = self.shared.stage.lock().unwrap();
        let of_ride = stage.visits.iter().filter(|(of, _)| of == ride);
        of_ride.map(|(_, point)| point.clone()).collect()
    }
}

fn place(ride: &str, point: &str) -> Place {
    (ride.to_owned(), point.to_owned())
}

async fn receive(stream: TcpStream, shared: Arc<Shared>) {
    let mut stream = BufReader::new(stream);
    let mut line = String::new();
    let Ok(1..) = stream.read_line(&mut line).await else { return };
    let mut words = line.trim().splitn(3, ' ');
    let (Some(_process), Some(ride), Some(point)) = (words.next(), words.next(), words.next())
    else {
        panic!("not a point: {line:?}");
    };
    let place = place(ride, point);
    let order = {
        let mut stage = shared.stage.lock().unwrap();
        stage.visits.push(place.clone());
        stage.orders.remove(&place)
    };
    let word = match order {
        None => "go\n",
        Some(Order::Error) => "error\n",
        Some(Order::Panic) => "panic\n",
        Some(Order::Hold) => {
            let (release, released) = oneshot::channel();
            shared.stage.lock().unwrap().held.insert(place, release);
            shared.changed.notify_waiters();
            let _ = released.await;
            "go\n"
        }
    };
    // The program may be dead by now.
    let _ = stream.write_all(word.as_bytes()).await;
}
