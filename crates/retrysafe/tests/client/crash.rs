//! Is a call whose process was killed finished, and not repeated?
//!
//! A child process makes a journalled call and is killed with SIGKILL at a chosen step; this
//! process resumes it. The server executes each key once and answers it alike ever after.

use std::collections::HashMap;
use std::io::{BufRead as _, BufReader, Write as _};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Condvar, Mutex};
use std::thread;

use bytes::Bytes;
use http::{HeaderMap, Request};
use http_body_util::Full;
use retrysafe::client::{Client, Journal, Notice, Receipt, Retries};

use crate::server::*;

const STEP: &str = "RETRYSAFE_TEST_CHILD_STOPS";
const FOLDER: &str = "RETRYSAFE_TEST_CHILD_FOLDER";
const URL: &str = "RETRYSAFE_TEST_CHILD_URL";

/// Executes each key once; what it answers depends on when that was.
#[derive(Default)]
struct Shop {
    answers: Mutex<HashMap<String, String>>,
    /// How many requests have arrived, executed or replayed.
    arrived: Mutex<usize>,
    arrival: Condvar,
}

impl Shop {
    /// Serves every connection; the first `unanswered` of them hear nothing.
    fn open(unanswered: usize) -> (Arc<Self>, String) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}/payments", listener.local_addr().unwrap());
        let shop = Arc::new(Self::default());
        let ours = Arc::clone(&shop);
        thread::spawn(move || {
            for (number, stream) in listener.incoming().enumerate() {
                ours.serve(stream.unwrap(), number >= unanswered);
            }
        });
        (shop, url)
    }

    fn serve(&self, mut stream: TcpStream, answers: bool) {
        let request = read_request(&mut stream);
        let body = {
            let mut known = self.answers.lock().unwrap();
            let effects = known.len();
            let key = request.key().to_owned();
            known.entry(key).or_insert_with(|| format!("payment {}", effects + 1)).clone()
        };
        *self.arrived.lock().unwrap() += 1;
        self.arrival.notify_all();
        if answers {
            let length = body.len();
            let head = format!("HTTP/1.1 201 X\r\nContent-Length: {length}\r\n");
            stream.write_all(format!("{head}Connection: close\r\n\r\n{body}").as_bytes()).unwrap();
        } else {
            // Held open until the killed client's end is closed.
            let _ = std::io::Read::read(&mut stream, &mut [0]);
        }
    }

    fn wait_for_arrival(&self) {
        let arrived = self.arrived.lock().unwrap();
        drop(self.arrival.wait_while(arrived, |arrived| *arrived == 0).unwrap());
    }

    fn effects(&self) -> usize {
        self.answers.lock().unwrap().len()
    }
}

/// The child's part; without its environment there is nothing to do.
#[tokio::test]
async fn the_child_makes_a_call_and_stops() {
    let Ok(step) = std::env::var(STEP) else { return };
    let journal = Journal::open(std::env::var(FOLDER).unwrap()).unwrap();
    let stops_before_sending = step == "before sending";
    let retries = Retries::default().journal(journal).observe(move |notice| {
        if let Notice::Sending { attempt: 1, .. } = notice
            && stops_before_sending
        {
            stop("about to send");
        }
    });
    let request =
        Request::post(std::env::var(URL).unwrap()).body(Full::<Bytes>::from("{}")).unwrap();
    let answer = Client::new(hyper(), retries).send(request).await.unwrap();
    let receipt = Receipt::of(&answer).unwrap().clone();
    let (_, body) = read(answer).await;
    stop(&format!("answered {body}"));
    drop(receipt);
}

/// Says where it is and waits to be killed.
fn stop(place: &str) {
    println!("\nchild: {place}");
    loop {
        thread::park();
    }
}

/// The child; it does not outlive its test.
struct Caller(Child);

impl Caller {
    fn start(step: &str, folder: &Path, url: &str) -> Self {
        let child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "crash::the_child_makes_a_call_and_stops", "--nocapture"])
            .envs([(STEP, step), (URL, url)])
            .env(FOLDER, folder)
            .stdout(Stdio::piped())
            .spawn();
        Self(child.unwrap())
    }

    /// What the child says when it stops.
    fn place(&mut self) -> String {
        let lines = BufReader::new(self.0.stdout.take().unwrap()).lines();
        let mut places = lines
            .map_while(Result::ok)
            .filter_map(|line| line.strip_prefix("child: ").map(str::to_owned));
        places.next().expect("the child stops")
    }
}

impl Drop for Caller {
    /// SIGKILL.
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Kills the child, finishes its call, and gives the answer.
async fn killed_and_resumed(child: Caller, folder: &Path) -> String {
    let journal = Journal::open(folder).unwrap();
    let found = journal.pending().await.unwrap();
    // The child lives, so its call is its own.
    assert_eq!((found.calls.len(), found.taken), (0, 1));
    drop(child);
    let mut found = journal.pending().await.unwrap();
    assert!(found.damaged.is_empty());
    assert_eq!((found.calls.len(), found.taken), (1, 0));
    let client = Client::new(hyper(), Retries::default().patience(patience()));
    let answer = client.resume(found.calls.remove(0), HeaderMap::new()).await.unwrap();
    let receipt = Receipt::of(&answer).unwrap().clone();
    let (status, body) = read(answer).await;
    assert_eq!(status, 201);
    receipt.acknowledge().await.unwrap();
    assert!(journal.pending().await.unwrap().calls.is_empty());
    body
}

#[tokio::test]
async fn killed_before_sending_is_executed_once() {
    let folder = tempfile::tempdir().unwrap();
    let (shop, url) = Shop::open(0);
    let mut child = Caller::start("before sending", folder.path(), &url);
    assert_eq!(child.place(), "about to send");
    assert_eq!(shop.effects(), 0);
    assert_eq!(killed_and_resumed(child, folder.path()).await, "payment 1");
    assert_eq!(shop.effects(), 1);
}

#[tokio::test]
async fn killed_after_sending_is_executed_once() {
    let folder = tempfile::tempdir().unwrap();
    let (shop, url) = Shop::open(1);
    let child = Caller::start("after sending", folder.path(), &url);
    shop.wait_for_arrival();
    assert_eq!(shop.effects(), 1);
    assert_eq!(killed_and_resumed(child, folder.path()).await, "payment 1");
    assert_eq!(shop.effects(), 1);
}

#[tokio::test]
async fn killed_between_answer_and_acknowledgement_gets_the_same_answer() {
    let folder = tempfile::tempdir().unwrap();
    let (shop, url) = Shop::open(0);
    let mut child = Caller::start("after the answer", folder.path(), &url);
    assert_eq!(child.place(), "answered payment 1");
    assert_eq!(killed_and_resumed(child, folder.path()).await, "payment 1");
    assert_eq!(shop.effects(), 1);
}

#[tokio::test]
async fn two_processes_resume_a_killed_call_once() {
    let folder = tempfile::tempdir().unwrap();
    let (shop, url) = Shop::open(1);
    let child = Caller::start("after sending", folder.path(), &url);
    shop.wait_for_arrival();
    drop(child);
    let resume = || async {
        let found = Journal::open(folder.path()).unwrap().pending().await.unwrap();
        let client = Client::new(hyper(), Retries::default().patience(patience()));
        let mut answers = Vec::new();
        for pending in found.calls {
            let answer = client.resume(pending, HeaderMap::new()).await.unwrap();
            let receipt = Receipt::of(&answer).unwrap().clone();
            answers.push(read(answer).await.1);
            receipt.acknowledge().await.unwrap();
        }
        answers
    };
    let (one, other) = tokio::join!(resume(), resume());
    assert_eq!([one, other].concat(), ["payment 1"]);
    assert_eq!(shop.effects(), 1);
    // The killed child's attempt and one other.
    assert_eq!(*shop.arrived.lock().unwrap(), 2);
}
