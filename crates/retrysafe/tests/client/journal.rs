//! Does a call survive its process, and is it finished by one only?

use std::fs;
use std::io::Write as _;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Barrier, Mutex};
use std::time::Duration;

use http::{HeaderMap, HeaderValue, header};
use retrysafe::client::{
    Damage, Error, Journal, Last, Patience, Pending, Receipt, Refused, Retries,
};

use crate::server::*;

/// The files in a journal's folder with this extension.
fn files(folder: &Path, extension: &str) -> Vec<PathBuf> {
    let paths = fs::read_dir(folder).unwrap().map(|file| file.unwrap().path());
    paths.filter(|path| path.extension().is_some_and(|found| found == extension)).collect()
}

fn journalled(journal: &Journal) -> Retries {
    Retries::default().patience(patience()).journal(journal.clone())
}

/// A call that was sent once, got no answer, and is left in the journal; and its server, which goes
/// on with `then`.
async fn left_behind(
    journal: &Journal,
    headers: HeaderMap,
    then: impl IntoIterator<Item = Step>,
) -> Server {
    let server = Server::scripted([Step::Reset].into_iter().chain(then));
    let once = Patience { attempts_max: 1, ..patience() };
    let (client, _) = client_with(journalled(journal).patience(once));
    let mut request = server.post();
    request.headers_mut().extend(headers);
    let error = client.send(request).await.unwrap_err();
    assert!(matches!(error, Error::OutcomeUnknown(_)), "{error}");
    server
}

async fn only_pending(journal: &Journal) -> Pending {
    let mut found = journal.pending().await.unwrap();
    assert!(found.damaged.is_empty());
    assert_eq!((found.calls.len(), found.taken, found.has_more), (1, 0, false));
    found.calls.remove(0)
}

#[tokio::test]
async fn the_call_is_on_disk_before_the_server_sees_a_byte() {
    let folder = tempfile::tempdir().unwrap();
    let journal = Journal::open(folder.path().join("calls")).unwrap();
    let path = folder.path().join("calls");
    let at_accept = Arc::new(Mutex::new(Vec::new()));
    let log = Arc::clone(&at_accept);
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let server = Server::start(listener, 1, move |mut stream, seen| {
        // The connection is there, and nothing has been read from it.
        let mut log = log.lock().unwrap();
        log.extend(files(&path, "call").iter().map(|file| fs::read(file).unwrap()));
        seen.lock().unwrap().push(read_request(&mut stream));
        stream.write_all(b"HTTP/1.1 201 X\r\nContent-Length: 0\r\n\r\n").unwrap();
    });
    let (client, _) = client_with(journalled(&journal));
    let answer = client.send(server.post()).await.unwrap();
    let on_disk = at_accept.lock().unwrap().clone();
    assert_eq!(on_disk.len(), 1);
    let has = |needle: &[u8]| on_disk[0].windows(needle.len()).any(|window| window == needle);
    assert!(has(server.seen()[0].key().as_bytes()));
    assert!(has(b"{\"amount\":5}"));
    Receipt::of(&answer).unwrap().acknowledge().await.unwrap();
    assert!(files(&folder.path().join("calls"), "call").is_empty());
}

#[cfg(unix)]
#[tokio::test]
async fn only_the_owner_may_read_the_journal() {
    use std::os::unix::fs::PermissionsExt as _;
    let folder = tempfile::tempdir().unwrap();
    let calls = folder.path().join("calls");
    let journal = Journal::open(&calls).unwrap();
    left_behind(&journal, HeaderMap::new(), []).await;
    let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode(&calls), 0o700);
    assert_eq!(mode(&files(&calls, "call")[0]), 0o600);
}

#[tokio::test]
async fn an_answer_stays_in_the_journal_until_it_is_acknowledged() {
    let folder = tempfile::tempdir().unwrap();
    let journal = Journal::open(folder.path()).unwrap();
    let server = Server::scripted([created()]);
    let answer = client_with(journalled(&journal)).0.send(server.post()).await.unwrap();
    // Its owner is still working with it.
    let found = journal.pending().await.unwrap();
    assert_eq!((found.calls.len(), found.taken), (0, 1));
    let receipt = Receipt::of(&answer).unwrap().clone();
    drop(answer);
    assert_eq!(journal.pending().await.unwrap().taken, 1);
    receipt.acknowledge().await.unwrap();
    receipt.acknowledge().await.unwrap();
    let found = journal.pending().await.unwrap();
    assert_eq!((found.calls.len(), found.taken), (0, 0));
}

#[tokio::test]
async fn an_answer_that_was_dropped_is_pending() {
    let folder = tempfile::tempdir().unwrap();
    let journal = Journal::open(folder.path()).unwrap();
    let server = Server::scripted([created(), created()]);
    let (client, _) = client_with(journalled(&journal));
    drop(client.send(server.post()).await.unwrap());
    let pending = only_pending(&journal).await;
    let answer = client.resume(pending, HeaderMap::new()).await.unwrap();
    Receipt::of(&answer).unwrap().acknowledge().await.unwrap();
    let seen = server.seen();
    assert_eq!(seen[0].key(), seen[1].key());
    assert!(journal.pending().await.unwrap().calls.is_empty());
}

#[tokio::test]
async fn a_resumed_call_is_the_same_request_with_the_same_key() {
    let folder = tempfile::tempdir().unwrap();
    let journal = Journal::open(folder.path()).unwrap();
    let mut headers = HeaderMap::new();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    let server = left_behind(&journal, headers, [answer(503, "", ""), created()]).await;
    let pending = only_pending(&journal).await;
    assert_eq!(pending.key().as_str(), server.seen()[0].key());
    let (client, _) = client_with(journalled(&journal));
    let answer = client.resume(pending, HeaderMap::new()).await.unwrap();
    assert_eq!(answer.status(), 201);
    let seen = server.seen();
    assert_eq!(seen.len(), 3);
    for each in &seen {
        assert_eq!(each.line, "POST /payments HTTP/1.1");
        assert_eq!(each.headers, seen[0].headers);
        assert_eq!(each.header("content-type"), Some("application/json"));
        assert_eq!(each.body, b"{\"amount\":5}");
    }
    // A resumed call is not journalled a second time.
    assert_eq!(files(folder.path(), "call").len(), 1);
    Receipt::of(&answer).unwrap().acknowledge().await.unwrap();
    assert!(files(folder.path(), "call").is_empty());
}

#[tokio::test]
async fn a_call_that_was_given_up_leaves_the_journal() {
    // Its caller is told that it is over, so nobody may make it happen later.
    let folder = tempfile::tempdir().unwrap();
    let journal = Journal::open(folder.path()).unwrap();
    let once = Patience { attempts_max: 1, ..patience() };
    let (client, _) = client_with(journalled(&journal).patience(once));
    let server = Server::scripted([answer(429, "", "")]);
    let error = client.send(server.post()).await.unwrap_err();
    assert!(matches!(error, Error::GaveUp(_)), "{error}");
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
}

#[cfg(unix)]
#[tokio::test]
async fn a_call_that_cannot_leave_the_journal_is_not_given_up() {
    // The server's hands take the folder away while the request is under way.
    let folder = tempfile::tempdir().unwrap();
    let journal = Journal::open(folder.path().join("calls")).unwrap();
    let calls = folder.path().join("calls");
    let once = Patience { attempts_max: 1, ..patience() };
    let (client, _) = client_with(journalled(&journal).patience(once));
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let server = Server::start(listener, 1, move |mut stream, seen| {
        seen.lock().unwrap().push(read_request(&mut stream));
        let file = files(&calls, "call").remove(0);
        fs::remove_file(&file).unwrap();
        // A folder in its place cannot be removed as a file.
        fs::create_dir(&file).unwrap();
        stream.write_all(b"HTTP/1.1 429 X\r\nContent-Length: 0\r\n\r\n").unwrap();
    });
    let error = client.send(server.post()).await.unwrap_err();
    assert!(matches!(error, Error::OutcomeUnknown(_)), "{error}");
}

#[tokio::test]
async fn a_pending_call_can_be_discarded_unsent() {
    let folder = tempfile::tempdir().unwrap();
    let journal = Journal::open(folder.path()).unwrap();
    let server = left_behind(&journal, HeaderMap::new(), [created()]).await;
    only_pending(&journal).await.discard().await.unwrap();
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
    assert_eq!(server.seen().len(), 1);
}

#[tokio::test]
async fn a_resumed_call_begins_in_doubt() {
    let folder = tempfile::tempdir().unwrap();
    let journal = Journal::open(folder.path()).unwrap();
    left_behind(&journal, HeaderMap::new(), []).await;
    let pending = only_pending(&journal).await;
    let once = Patience { attempts_max: 1, ..patience() };
    let (client, _) = client_with(journalled(&journal).patience(once));
    // Nobody listens there any more: nothing is sent now, but it was sent before.
    let error = client.resume(pending, HeaderMap::new()).await.unwrap_err();
    assert!(matches!(error, Error::OutcomeUnknown(_)), "{error}");
    drop(error);
    only_pending(&journal).await;
}

#[tokio::test]
async fn withheld_headers_are_not_on_disk_and_have_to_be_supplied_again() {
    let folder = tempfile::tempdir().unwrap();
    let journal = Journal::open(folder.path())
        .unwrap()
        .without_headers([header::AUTHORIZATION, header::COOKIE]);
    let mut headers = HeaderMap::new();
    headers.insert(header::AUTHORIZATION, HeaderValue::from_static("Bearer hush"));
    let server = left_behind(&journal, headers, [created()]).await;
    let bytes = fs::read(&files(folder.path(), "call")[0]).unwrap();
    assert!(!bytes.windows(4).any(|window| window == b"hush"));

    let pending = only_pending(&journal).await;
    assert_eq!(pending.withheld(), [header::AUTHORIZATION]);
    let (client, _) = client_with(journalled(&journal));
    let error = client.resume(pending, HeaderMap::new()).await.unwrap_err();
    assert!(
        matches!(&error, Error::Refused(Refused::HeaderMissing(name)) if name == header::AUTHORIZATION)
    );
    assert_eq!(server.seen().len(), 1);

    let mut supplied = HeaderMap::new();
    supplied.insert(header::AUTHORIZATION, HeaderValue::from_static("Bearer fresh"));
    let pending = only_pending(&journal).await;
    client.resume(pending, supplied).await.unwrap();
    assert_eq!(server.seen()[1].header("authorization"), Some("Bearer fresh"));
}

#[tokio::test]
async fn a_call_that_is_too_old_is_not_sent_again() {
    let folder = tempfile::tempdir().unwrap();
    let journal = Journal::open(folder.path()).unwrap();
    let server = left_behind(&journal, HeaderMap::new(), [created()]).await;
    let pending = only_pending(&journal).await;
    let (client, _) = client_with(journalled(&journal).resend_within(Duration::ZERO));
    let error = client.resume(pending, HeaderMap::new()).await.unwrap_err();
    let Error::OutcomeUnknown(ended) = error else { panic!("{error}") };
    assert!(matches!(ended.last, Last::KeyTooOld));
    assert_eq!(server.seen().len(), 1);
    // It is in the journal until somebody decides.
    ended.receipt.acknowledge().await.unwrap();
    assert!(files(folder.path(), "call").is_empty());
}

/// The journal's only file, with its first numbers changed: when it was written by the wall clock,
/// which boot that was, and how long that boot had lasted, in milliseconds.
fn rewrite(folder: &Path, change: impl FnOnce(&mut u64, &mut u128, &mut u64)) {
    const WALL: usize = b"retrysafe call ".len() + 1;
    let file = files(folder, "call").remove(0);
    let mut bytes = fs::read(&file).unwrap();
    let number = |bytes: &[u8]| u64::from_le_bytes(bytes.try_into().unwrap());
    let mut wall = number(&bytes[WALL..WALL + 8]);
    let mut boot = u128::from_le_bytes(bytes[WALL + 8..WALL + 24].try_into().unwrap());
    let mut uptime = number(&bytes[WALL + 24..WALL + 32]);
    change(&mut wall, &mut boot, &mut uptime);
    bytes[WALL..WALL + 8].copy_from_slice(&wall.to_le_bytes());
    bytes[WALL + 8..WALL + 24].copy_from_slice(&boot.to_le_bytes());
    bytes[WALL + 24..WALL + 32].copy_from_slice(&uptime.to_le_bytes());
    let fields = bytes.len() - 4;
    let checksum = crc32c::crc32c(&bytes[..fields]);
    bytes[fields..].copy_from_slice(&checksum.to_le_bytes());
    fs::write(&file, &bytes).unwrap();
}

const HOUR_MS: u64 = 3_600_000;

// The clock was set back by a day. A call of the day before looked as if it had just been written;
// it was sent again, and the server, which had forgotten its key, executed it a second time.
#[tokio::test]
async fn a_call_of_unknown_age_is_not_sent_again() {
    let folder = tempfile::tempdir().unwrap();
    let journal = Journal::open(folder.path()).unwrap();
    let server = left_behind(&journal, HeaderMap::new(), [created()]).await;
    // Written by a clock that showed a later time than this one, before the machine was started.
    rewrite(folder.path(), |wall, boot, _| (*wall, *boot) = (*wall + HOUR_MS, *boot ^ 1));
    let (client, _) = client_with(journalled(&journal));
    let pending = only_pending(&journal).await;
    let error = client.resume(pending, HeaderMap::new()).await.unwrap_err();
    let Error::OutcomeUnknown(ended) = error else { panic!("{error}") };
    assert!(matches!(ended.last, Last::AgeUnknown), "{ended}");
    assert_eq!(server.seen().len(), 1);
    drop(ended);
    // It stays in the journal: with a clock that is right again it can be resumed.
    rewrite(folder.path(), |wall, _, _| *wall -= HOUR_MS);
    let pending = only_pending(&journal).await;
    assert_eq!(client.resume(pending, HeaderMap::new()).await.unwrap().status(), 201);
}

#[cfg(target_os = "linux")]
#[tokio::test]
async fn a_wall_clock_that_was_set_does_not_hide_a_calls_age_while_the_machine_is_up() {
    let folder = tempfile::tempdir().unwrap();
    let journal = Journal::open(folder.path()).unwrap();
    let server = left_behind(&journal, HeaderMap::new(), [created(), created()]).await;
    // Half as long as the machine has been up.
    let uptime = fs::read_to_string("/proc/uptime").unwrap();
    let uptime: f64 = uptime.split(' ').next().unwrap().parse().unwrap();
    let within = Duration::from_secs_f64(uptime / 2.0);
    let (client, _) = client_with(journalled(&journal).resend_within(within));
    // The wall clock was set back by an hour, and the call is as old as it was.
    rewrite(folder.path(), |wall, _, _| *wall += HOUR_MS);
    let pending = only_pending(&journal).await;
    assert_eq!(client.resume(pending, HeaderMap::new()).await.unwrap().status(), 201);
    // Written when the machine was started, whatever the wall clock shows.
    rewrite(folder.path(), |_, _, uptime| *uptime = 0);
    let pending = only_pending(&journal).await;
    let error = client.resume(pending, HeaderMap::new()).await.unwrap_err();
    assert!(matches!(error.ended().unwrap().last, Last::KeyTooOld), "{error}");
    assert_eq!(server.seen().len(), 2);
}

#[tokio::test]
async fn damaged_files_are_reported_and_never_executed() {
    let folder = tempfile::tempdir().unwrap();
    let journal = Journal::open(folder.path()).unwrap();
    left_behind(&journal, HeaderMap::new(), []).await;
    let whole = files(folder.path(), "call").remove(0);
    let bytes = fs::read(&whole).unwrap();

    fs::write(folder.path().join("half.tmp"), &bytes).unwrap();
    fs::write(folder.path().join("torn.call"), &bytes[..bytes.len() / 2]).unwrap();
    fs::write(folder.path().join("empty.call"), b"").unwrap();
    let mut flipped = bytes.clone();
    flipped[40] ^= 1;
    fs::write(folder.path().join("flipped.call"), &flipped).unwrap();
    fs::create_dir(folder.path().join("folder.call")).unwrap();
    fs::write(folder.path().join("README"), b"not ours").unwrap();

    let found = journal.pending().await.unwrap();
    assert_eq!(found.calls.len(), 1);
    let mut damaged: Vec<_> = found
        .damaged
        .iter()
        .map(|damaged| {
            let name = damaged.path.file_name().unwrap().to_str().unwrap();
            let why = match &damaged.why {
                Damage::HalfWritten => "half written",
                Damage::Checksum => "checksum",
                Damage::Unreadable(_) => "unreadable",
                other => panic!("{other}"),
            };
            (name, why)
        })
        .collect();
    damaged.sort_unstable();
    assert_eq!(
        damaged,
        [
            ("empty.call", "checksum"),
            ("flipped.call", "checksum"),
            ("folder.call", "unreadable"),
            ("half.tmp", "half written"),
            ("torn.call", "checksum"),
        ]
    );
}

#[tokio::test]
async fn nothing_is_sent_if_the_journal_cannot_be_written() {
    let folder = tempfile::tempdir().unwrap();
    let calls = folder.path().join("calls");
    let journal = Journal::open(&calls).unwrap();
    fs::remove_dir(&calls).unwrap();
    let server = Server::scripted([created()]);
    let error = client_with(journalled(&journal)).0.send(server.post()).await.unwrap_err();
    assert!(matches!(error, Error::Refused(Refused::Journal(_))), "{error}");
    assert!(server.seen().is_empty());
}

#[tokio::test]
async fn safe_requests_are_not_journalled() {
    let folder = tempfile::tempdir().unwrap();
    let journal = Journal::open(folder.path()).unwrap();
    let server = Server::scripted([answer(200, "", "")]);
    let (client, _) = client_with(journalled(&journal));
    let request = http::Request::get(server.url("/")).body(String::new()).unwrap();
    client.send(request).await.unwrap();
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
}

#[tokio::test]
async fn a_call_that_was_dropped_half_way_is_pending() {
    let folder = tempfile::tempdir().unwrap();
    let journal = Journal::open(folder.path()).unwrap();
    let server = Server::scripted([Step::Silence]);
    let (client, _) = client_with(journalled(&journal));
    let mut call = Box::pin(client.send(server.post()));
    while server.seen().is_empty() {
        tokio::select! {
            ended = &mut call => panic!("{ended:?}"),
            () = tokio::task::yield_now() => {}
        }
    }
    drop(call);
    assert_eq!(only_pending(&journal).await.key().as_str(), server.seen()[0].key());
}

#[test]
fn two_resumers_at_once_take_each_call_once() {
    let folder = tempfile::tempdir().unwrap();
    let runtime = || tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    for _ in 0..20 {
        let journal = Journal::open(folder.path()).unwrap();
        runtime().block_on(left_behind(&journal, HeaderMap::new(), []));
    }
    let barrier = Arc::new(Barrier::new(2));
    let resumers = [(); 2].map(|()| {
        let (barrier, folder) = (Arc::clone(&barrier), folder.path().to_owned());
        std::thread::spawn(move || {
            let journal = Journal::open(folder).unwrap();
            barrier.wait();
            let found = runtime().block_on(journal.pending()).unwrap();
            let names: Vec<_> = found.calls.iter().map(|c| c.key().as_str().to_owned()).collect();
            // Both hold what they have taken until both have looked.
            barrier.wait();
            names
        })
    });
    let [one, other] = resumers.map(|resumer| resumer.join().unwrap());
    let mut all: Vec<_> = one.iter().chain(&other).cloned().collect();
    all.sort();
    all.dedup();
    assert_eq!(all.len(), 20);
    assert_eq!(one.len() + other.len(), 20);
}

#[tokio::test]
async fn more_calls_than_one_listing_takes_come_with_the_next() {
    let folder = tempfile::tempdir().unwrap();
    let journal = Journal::open(folder.path()).unwrap();
    left_behind(&journal, HeaderMap::new(), []).await;
    let one = files(folder.path(), "call").remove(0);
    for number in 0..99 {
        fs::copy(&one, folder.path().join(format!("{number}.call"))).unwrap();
    }
    let first = journal.pending().await.unwrap();
    assert_eq!((first.calls.len(), first.has_more), (64, true));
    let second = journal.pending().await.unwrap();
    assert_eq!((second.calls.len(), second.taken, second.has_more), (36, 64, false));
}
