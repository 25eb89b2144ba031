//! Does the dashboard show events, and have them judged anew by those who may?

use super::super::dashboard::{Reader, field};
use super::super::kit::TOKEN;
use super::super::postgres::database;
use super::desk::{Desk, charge, tables};

#[test]
fn events_are_listed_shown_and_replayed_by_those_who_may() {
    let watch = "[admin.tokens.nightwatch]\nrole = \"read\"\ntoken = \"token-of-the-nightwatch\"\n";
    let mut desk = Desk::open_with(Some(&database()), "", watch);
    let (_, record) = desk.lose("/pay");
    assert_eq!(desk.deliver("evt_1", &charge("charge.captured", &record)).status(), 200);
    let id = desk.wait_for_event("evt_1", "ignored")["id"].as_i64().unwrap();
    let folder = desk.gateway.folder.display().to_string();
    let toml = format!("{}{watch}", tables(&folder, ""))
        .replace("\"charge.succeeded\"", "[\"charge.succeeded\", \"charge.captured\"]");
    desk.gateway.toml = toml.clone();
    desk.gateway.configure(&toml);
    desk.gateway.signal("HUP");
    desk.gateway.wait_for_log("configuration reloaded");

    let page = format!("/inbox/{id}");
    let fields =
        |form_key: &str| vec![("form_key", form_key.to_owned()), ("reason", "paid".to_owned())];
    let send = |reader: &Reader<'_>| {
        let form_key = reader.form_key("/inbox");
        let fields = fields(&form_key);
        let fields: Vec<(&str, &str)> =
            fields.iter().map(|(name, value)| (*name, value.as_str())).collect();
        reader.submit(&format!("{page}/replay"), &fields)
    };
    let watcher = Reader::logged_in(&desk.gateway, "token-of-the-nightwatch");
    let shown = watcher.get(&page).text();
    assert!(shown.contains("charge.captured") && !shown.contains("/replay\""), "{shown}");
    assert_eq!(send(&watcher).status(), 403);
    assert_eq!(desk.event("evt_1")["state"], "ignored", "nothing was replayed");

    let operator = Reader::logged_in(&desk.gateway, TOKEN);
    let listed = operator.get("/inbox?state=ignored").text();
    assert!(listed.contains(&page) && listed.contains("evt_1"), "{listed}");
    assert!(!operator.get("/inbox?state=applied").text().contains("evt_1"));
    assert_eq!(
        operator
            .submit(&format!("{page}/replay"), &[("form_key", "guess"), ("reason", "x")])
            .status(),
        403
    );
    assert!(!field(&operator.get(&page).text(), "form_key").is_empty());
    let replayed = send(&operator);
    assert_eq!(
        (replayed.status(), replayed.header("location")),
        (303, Some(&*page)),
        "{}",
        replayed.text()
    );
    let after = operator.get(&page).text();
    assert!(after.contains("applied") && after.contains(&format!("/keys/{record}")), "{after}");
    assert!(!after.contains("/replay\""), "there is nothing to replay any more: {after}");
}
