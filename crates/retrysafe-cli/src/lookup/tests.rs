//! Does an answer mean what its table says, whatever a provider sends?

use retrysafe_core::record::Answer;

use super::*;
use crate::config::list::ListRules;
use crate::config::lookup::LookupSubject;
use crate::config::lookup_file::LookupFile;

fn rules(text: &str) -> LookupRules {
    let file: LookupFile = toml::from_str(text).unwrap();
    let mut wrong = Vec::new();
    let read = crate::config::lookup::read(&file, "reconcile", LookupSubject::Calls, &mut wrong);
    read.unwrap_or_else(|| panic!("{wrong:?}"))
}

fn answer(status: u16, headers: &[(&'static str, &'static str)], body: &str) -> RawAnswer {
    let headers = headers.iter().map(|(name, value)| {
        (http::HeaderName::from_static(name), HeaderValue::from_static(value))
    });
    RawAnswer {
        status: StatusCode::from_u16(status).unwrap(),
        headers: headers.collect(),
        body: body.to_owned().into(),
    }
}

fn why(found: LookupFound) -> String {
    match found {
        LookupFound::Document(DocumentVerdict::Inconclusive(why)) => why.into(),
        other => panic!("{other:?}"),
    }
}

#[test]
fn what_a_table_does_not_name_says_nothing() {
    let rules = rules("url = \"/l/{key}\"\nexecuted = [\"paid\", \"2\"]\npointer = \"/s\"\n");
    let says = |status, body: &str| meaning(&rules, &answer(status, &[], body));
    let fact = Answer::NotKept { status: None, location: None };
    for paid in [r#"{"s":"paid"}"#, r#"{"s":2}"#, r#"{"s":"2"}"#] {
        let executed = LookupFound::Document(DocumentVerdict::Executed(fact.clone()));
        assert_eq!(says(200, paid), executed, "{paid}");
    }
    assert_eq!(says(404, r#"{"s":"paid"}"#), LookupFound::Absent);
    for (status, body, reason) in [
        (200, "<html>paid</html>", "not JSON"),
        (200, "", "not JSON"),
        (200, r#"{"s":"odd"}"#, "/s is a text"),
        (500, r#"{"s":"paid"}"#, "status 500"),
        (302, r#"{"s":"paid"}"#, "redirects are not followed"),
        (304, "", "redirects are not followed"),
        (401, r#"{"s":"paid"}"#, "status 401"),
    ] {
        assert!(why(says(status, body)).contains(reason), "{status} {body}");
    }
    let packed = answer(200, &[("content-encoding", "gzip")], r#"{"s":"paid"}"#);
    assert!(why(meaning(&rules, &packed)).contains("encoded"));
}

#[test]
fn an_absence_that_must_be_said_is_not_taken_from_a_status_alone() {
    let text = "url = \"/l/{key}\"\nabsent_when = { \"/error\" = \"no_such_charge\" }\n";
    let says = |status, body: &str| meaning(&rules(text), &answer(status, &[], body));
    assert_eq!(says(404, r#"{"error":"no_such_charge"}"#), LookupFound::Absent);
    assert_eq!(says(200, r#"{"error":"no_such_charge"}"#), LookupFound::Absent);
    // A proxy in between, or a path that is misspelt.
    assert!(why(says(404, "<h1>Not Found</h1>")).contains("not JSON"));
    assert!(why(says(404, r#"{"error":"no_route"}"#)).contains("`absent_when` does not fit"));
    let both = r#"{"error":"no_such_charge","state":"executed"}"#;
    assert!(why(says(200, both)).contains("both fit"));
}

#[test]
fn a_value_stays_one_part_of_the_url() {
    let rules = rules("url = \"/l/{key}?id={id}&p={path}\"\n");
    let values = vec![("key", "a/b?c%d\n{id}#é"), ("id", "1&x=2"), ("path", "/p q")];
    let question = LookupQuestion { values, identity: "", began_at: Time::from_ms(0) };
    let path = fill(&rules, &question, SystemTime::UNIX_EPOCH);
    assert_eq!(path, "/l/a%2Fb%3Fc%25d%0A%7Bid%7D%23%C3%A9?id=1%26x%3D2&p=%2Fp%20q");
    assert!(path.parse::<http::Uri>().is_ok());
}

#[test]
fn a_window_of_time_is_wider_than_what_is_looked_for() {
    let text = "url = \"/l?from={from}&until={until}&a={from_iso}\"\n\
                [list]\nkey = \"/k\"\nnext = \"none\"\nwindow_before = \"10s\"\n";
    let question =
        LookupQuestion { values: vec![], identity: "", began_at: Time::from_ms(1_000_000) };
    let now = SystemTime::UNIX_EPOCH + Duration::from_secs(2_000);
    let path = fill(&rules(text), &question, now);
    assert_eq!(path, "/l?from=990&until=2010&a=1970-01-01T00%3A16%3A30Z");
}

#[test]
fn an_excerpt_has_the_status_and_no_credential() {
    let rules = rules("url = \"/l/{key}\"\nheaders = { authorization = \"Bearer sk_live_7\" }\n");
    let echo =
        answer(500, &[("content-type", "text/plain")], "no: Bearer sk_live_7, sk_live_7\u{7}");
    assert_eq!(&*shown(&rules, &echo), "500 text/plain: no: …, …\u{fffd}");
}

/// A provider that answers each path with one page, over a pipe.
struct Pages(Vec<(&'static str, u16, &'static str, &'static str)>);

impl LookupServer for Pages {
    fn dial(&self) -> Dialling<'_> {
        use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
        Box::pin(async {
            let (near, mut far) = tokio::io::duplex(1 << 16);
            let pages = self.0.clone();
            tokio::spawn(async move {
                let mut asked = Vec::new();
                while !asked.windows(4).any(|end| end == b"\r\n\r\n") {
                    if far.read_buf(&mut asked).await.unwrap_or(0) == 0 {
                        return;
                    }
                }
                let asked = String::from_utf8_lossy(&asked).into_owned();
                let path = asked.split(' ').nth(1).unwrap_or_default().to_owned();
                let page = pages.iter().find(|page| page.0 == path);
                let (_, status, headers, body) = page.copied().unwrap_or(("", 404, "", "{}"));
                let length = body.len();
                let answer = format!(
                    "HTTP/1.1 {status} X\r\n{headers}content-length: {length}\r\n\r\n{body}"
                );
                let _ = far.write_all(answer.as_bytes()).await;
            });
            Ok(Box::new(near) as Box<dyn Stream>)
        })
    }

    fn host(&self) -> io::Result<HeaderValue> {
        Ok(HeaderValue::from_static("p.test"))
    }
}

async fn searched(
    list: &str,
    pages: &[(&'static str, u16, &'static str, &'static str)],
) -> LookupFound {
    let text =
        format!("url = \"/c?from=0\"\npointer = \"/s\"\nexecuted = [\"paid\"]\n[list]\n{list}\n");
    let rules = rules(&text);
    let question = LookupQuestion { values: vec![], identity: "k7", began_at: Time::from_ms(0) };
    ask(&rules, &question, &Pages(pages.to_vec())).await.found
}

const STRIPE: &str = "items = \"/data\"\nkey = \"/meta/key\"\nnext = \"last:/id\"\nmore = \"/has_more\"\nparameter = \"after\"\npages_max = 3";

#[tokio::test]
async fn an_item_is_found_on_a_later_page_and_its_absence_needs_the_whole_list() {
    let first = (
        "/c?from=0",
        200,
        "",
        r#"{"data":[{"id":"a","meta":{"key":"k1"}},{"id":"b"}],"has_more":true}"#,
    );
    let hit = (
        "/c?from=0&after=b",
        200,
        "",
        r#"{"data":[{"id":"c","s":"paid","meta":{"key":"k7"}}],"has_more":false}"#,
    );
    let end = ("/c?from=0&after=b", 200, "", r#"{"data":[],"has_more":false}"#);
    let found = searched(STRIPE, &[first, hit]).await;
    assert!(matches!(found, LookupFound::Document(DocumentVerdict::Executed(_))), "{found:?}");
    assert_eq!(searched(STRIPE, &[first, end]).await, LookupFound::Absent);
    for (second, reason) in [
        (("/c?from=0&after=b", 500, "", "{}"), "page 2 of the list: status 500"),
        (("/c?from=0&after=b", 200, "", r#"{"data":{}}"#), "no list at"),
        (
            (
                "/c?from=0&after=b",
                200,
                "",
                r#"{"data":[{"id":"c","meta":{"key":"k1","key":"k7"}}],"has_more":false}"#,
            ),
            "more than one value",
        ),
        (("/c?from=0&after=b", 200, "", r#"{"data":[]}"#), "no true or false at /has_more"),
        (("/c?from=0&after=b", 200, "", r#"{"data":[],"has_more":true}"#), "not where"),
        (("/c?from=0&after=b", 200, "", r#"{"data":[{"id":"b"}],"has_more":true}"#), "read before"),
        (("/c?from=0&after=x", 200, "", "{}"), "status 404"),
    ] {
        assert!(why(searched(STRIPE, &[first, second]).await).contains(reason), "{second:?}");
    }
    // A list that never ends.
    let second = ("/c?from=0&after=b", 200, "", r#"{"data":[{"id":"c"}],"has_more":true}"#);
    let third = ("/c?from=0&after=c", 200, "", r#"{"data":[{"id":"d"}],"has_more":true}"#);
    let endless = why(searched(STRIPE, &[first, second, third]).await);
    assert!(endless.contains("first 3 pages"), "{endless}");
}

/// A charge that failed and a second one that succeeded, on two pages: whoever stops at the first one decides wrongly.
#[tokio::test]
async fn items_on_later_pages_are_read_before_anything_is_decided() {
    let item = |id: &str, state: &str, more: bool| {
        let text = format!(
            r#"{{"data":[{{"id":"{id}","s":"{state}","meta":{{"key":"k7"}}}}],"has_more":{more}}}"#
        );
        &*text.leak()
    };
    let first = ("/c?from=0", 200, "", item("a", "paid", true));
    let last = |state| ("/c?from=0&after=a", 200, "", item("b", state, false));
    let list = format!("{STRIPE}\n");
    let found = searched(&list, &[first, last("paid")]).await;
    assert!(matches!(found, LookupFound::Document(DocumentVerdict::Executed(_))), "{found:?}");
    assert!(why(searched(&list, &[first, last("void")]).await).contains("contradict"));
    // The rest cannot be read, or is too long.
    let broken = ("/c?from=0&after=a", 500, "", "{}");
    let told = why(searched(&list, &[first, broken]).await);
    assert!(told.contains("found on page 1") && told.contains("status 500"), "{told}");
    let second = ("/c?from=0&after=a", 200, "", r#"{"data":[{"id":"c"}],"has_more":true}"#);
    let third = ("/c?from=0&after=c", 200, "", r#"{"data":[{"id":"d"}],"has_more":true}"#);
    let told = why(searched(&list, &[first, second, third]).await);
    assert!(told.contains("found on page 1") && told.contains("pages_max"), "{told}");
}

/// Whoever is asked too often says so, and says when to come again.
#[tokio::test]
async fn an_answer_that_says_too_often_is_no_answer() {
    let rules = rules("url = \"/l/{key}\"\nexecuted = [\"paid\"]\npointer = \"/s\"\n");
    let says = |status, headers: &[(&'static str, &'static str)]| {
        meaning(&rules, &answer(status, headers, r#"{"s":"paid"}"#))
    };
    let seconds = |number| LookupFound::TooOften(Some(Duration::from_secs(number)));
    assert_eq!(says(429, &[]), LookupFound::TooOften(None));
    assert_eq!(says(429, &[("retry-after", "7")]), seconds(7));
    assert_eq!(says(503, &[("retry-after", "7")]), seconds(7));
    assert!(why(says(503, &[])).contains("status 503"), "an outage uses up its turn");
    let pages = [("/c?from=0", 429, "retry-after: 3\r\n", "{}")];
    assert_eq!(searched(STRIPE, &pages).await, seconds(3));
}

#[tokio::test]
async fn the_next_page_is_of_the_same_server() {
    let list = "key = \"/k\"\nnext = \"link\"";
    let page = |link| ("/c?from=0", 200, link, "[]");
    let second = ("/c?p=2", 200, "", r#"[{"k":"k7","s":"paid"}]"#);
    for link in ["link: </c?p=2>; rel=\"next\"\r\n", "link: <http://p.test/c?p=2>; rel=next\r\n"] {
        let found = searched(list, &[page(link), second]).await;
        assert!(matches!(found, LookupFound::Document(DocumentVerdict::Executed(_))), "{found:?}");
    }
    let elsewhere = searched(list, &[page("link: <http://evil.test/c>; rel=next\r\n")]).await;
    assert!(why(elsewhere).contains("another server"));
    assert_eq!(searched(list, &[page("")]).await, LookupFound::Absent);
    let odd = searched(list, &[page("link: </c?p=2>; rel = next\r\n"), second]).await;
    assert!(matches!(odd, LookupFound::Document(DocumentVerdict::Executed(_))), "{odd:?}");
    assert!(why(searched(list, &[page("link: </c?p=2>; rel=\"next\r\n")]).await).contains("Link"));
    // The page says that there are more, and no link leads there.
    let more = ("/c?from=0", 200, "", r#"{"d":[],"more":true}"#);
    for next in ["link", "none"] {
        let list = format!("key = \"/k\"\nitems = \"/d\"\nmore = \"/more\"\nnext = \"{next}\"");
        assert!(why(searched(&list, &[more]).await).contains("not where"), "{next}");
    }
    let cursor = "key = \"/k\"\nitems = \"/d\"\nnext = \"/next\"\nparameter = \"cursor\"";
    let first = ("/c?from=0", 200, "", r#"{"d":[],"next":"a&b"}"#);
    let last = ("/c?from=0&cursor=a%26b", 200, "", r#"{"d":[],"next":null}"#);
    assert_eq!(searched(cursor, &[first, last]).await, LookupFound::Absent);
}

#[test]
fn items_of_one_key_are_of_one_mind() {
    let list = |items: &str| {
        let rules = rules("url = \"/c\"\n[list]\nkey = \"/k\"\nnext = \"none\"\n");
        let _: &ListRules = rules.list.as_ref().unwrap();
        let mut wanted = list::WantedItems::default();
        items.split(' ').for_each(|item| wanted.add(1, rules.documents.read(item.as_bytes())));
        wanted.found()
    };
    let same = list(r#"{"state":"executed"} {"state":"executed"}"#);
    assert!(matches!(same, LookupFound::Document(DocumentVerdict::Executed(_))));
    assert!(why(list(r#"{"state":"executed"} {"state":"not_executed"}"#)).contains("contradict"));
}
