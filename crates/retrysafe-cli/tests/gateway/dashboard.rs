//! Does the dashboard show what the admin API knows, to those who may see it, and do nothing that others ask for?

use serde_json::{Value, json};

use super::kit::{Gateway, Message, Step, TOKEN, Upstream, key, reply, request, send};

const MARKUP: &str = "<img src=x onerror=alert(1)>\"'&";

/// A browser that knows cookies and forms, and nothing else.
pub(crate) struct Reader<'a> {
    gateway: &'a Gateway,
    cookie: String,
}

impl<'a> Reader<'a> {
    pub(crate) fn logged_in(gateway: &'a Gateway, token: &str) -> Self {
        let stranger = Reader { gateway, cookie: String::new() };
        let answer = stranger.submit("/login", &[("token", token), ("next", "/unknown")]);
        assert_eq!((answer.status(), answer.header("location")), (303, Some("/unknown")));
        let cookie = answer.header("set-cookie").unwrap();
        for part in ["HttpOnly", "SameSite=Strict", "Path=/"] {
            assert!(cookie.contains(part), "{cookie}");
        }
        Self { gateway, cookie: cookie.split(';').next().unwrap().to_owned() }
    }

    pub(crate) fn get(&self, path: &str) -> Message {
        send(self.gateway.admin, &request("GET", path, &[("Cookie", &self.cookie)], b""))
    }

    pub(crate) fn submit(&self, path: &str, fields: &[(&str, &str)]) -> Message {
        self.submit_from(path, fields, &[])
    }

    pub(crate) fn submit_from(
        &self,
        path: &str,
        fields: &[(&str, &str)],
        more: &[(&str, &str)],
    ) -> Message {
        let encode =
            |text: &str| -> String { text.bytes().map(|byte| format!("%{byte:02x}")).collect() };
        let body: Vec<String> =
            fields.iter().map(|(name, value)| format!("{name}={}", encode(value))).collect();
        let mut headers = vec![
            ("Cookie", self.cookie.as_str()),
            ("Content-Type", "application/x-www-form-urlencoded"),
        ];
        headers.extend(more);
        send(self.gateway.admin, &request("POST", path, &headers, body.join("&").as_bytes()))
    }

    /// What the forms of a page carry.
    pub(crate) fn form_key(&self, path: &str) -> String {
        field(&self.get(path).text(), "form_key")
    }
}

/// The value of a hidden field.
pub(crate) fn field(page: &str, name: &str) -> String {
    let (_, rest) = page
        .split_once(&format!("name=\"{name}\" value=\""))
        .unwrap_or_else(|| panic!("{name} in {page}"));
    rest.split('"').next().unwrap().to_owned()
}

/// A gateway with one request whose outcome nobody knows: its key and its record's id.
fn with_unknown(upstream: &Upstream, gateway: &Gateway) -> (String, String) {
    upstream.script("/pay", vec![Step::Drop, reply(201, "{\"again\":1}")]);
    let key = key();
    assert_eq!(gateway.post("/pay", &key, "{}").status(), 502);
    let id = gateway.unknown_at("/pay")["id"].as_str().unwrap().to_owned();
    (key, id)
}

#[test]
fn an_unknown_payment_is_found_previewed_decided_and_replayed() {
    let upstream = Upstream::start();
    let gateway = Gateway::start(&upstream, "");
    let (key, id) = with_unknown(&upstream, &gateway);
    let reader = Reader::logged_in(&gateway, TOKEN);
    let board = reader.get("/unknown").text();
    assert!(board.contains(&format!("/keys/{id}")) && board.contains("POST /pay"), "{board}");
    // Nobody looks anything up here, so that is for a person, too.
    let board = reader.get("/unknown?dead_lettered=true").text();
    assert!(board.contains(&format!("/keys/{id}")), "{board}");
    let path = format!("/keys/{id}");
    let story = reader.get(&path).text();
    for part in ["<svg", "began", "settled", "Decide", &id] {
        assert!(story.contains(part), "{part}: {story}");
    }
    let form_key = field(&story, "form_key");
    let fence = field(&story, "fence");
    let fields = [
        ("form_key", form_key.as_str()),
        ("fence", &fence),
        ("finding", "answer"),
        ("status", "201"),
        ("content_type", "application/json"),
        ("body", "{\"by\":\"hand\"}"),
        ("reason", MARKUP),
    ];
    let preview = reader.submit(&format!("{path}/preview"), &fields);
    let shown = preview.text();
    assert_eq!(preview.status(), 200, "{shown}");
    assert!(shown.contains("a replay: status 201"), "{shown}");
    assert!(!shown.contains("<img"), "{shown}");
    assert_eq!(
        gateway.post("/pay", &key, "{}").code(),
        "outcome_unknown",
        "a preview changes nothing"
    );
    let decided = reader.submit(&format!("{path}/decide"), &fields);
    assert_eq!(
        (decided.status(), decided.header("location")),
        (303, Some(&*path)),
        "{}",
        decided.text()
    );
    let replay = gateway.post("/pay", &key, "{}");
    assert_eq!((replay.status(), replay.text().as_str()), (201, "{\"by\":\"hand\"}"));
    assert_eq!(upstream.count("/pay"), 1);
    let after = reader.get(&path).text();
    assert!(after.contains("resolved") && !after.contains("<img"), "{after}");
    // Decided once: the same form again is refused, and says why.
    let again = reader.submit(&format!("{path}/decide"), &fields);
    assert_eq!(again.status(), 409, "{}", again.text());
}

#[test]
fn nobody_reads_or_decides_without_a_session() {
    let upstream = Upstream::start();
    let gateway = Gateway::start(&upstream, "");
    let (key, id) = with_unknown(&upstream, &gateway);
    let stranger = Reader { gateway: &gateway, cookie: "retrysafe-session=guess".to_owned() };
    for path in [
        "/",
        "/unknown",
        "/keys",
        &format!("/keys/{id}"),
        "/outbox",
        "/outbox/1",
        "/inbox",
        "/inbox/1",
        "/ledger",
        "/store",
        "/settings",
        "/events",
    ] {
        let answer = stranger.get(path);
        assert_eq!(answer.status(), 303, "{path}");
        assert!(answer.header("location").unwrap().starts_with("/login"), "{path}");
    }
    let wrong = stranger.submit("/login", &[("token", "a-token-that-nobody-has")]);
    assert_eq!((wrong.status(), wrong.header("set-cookie")), (401, None));
    let fields = [("form_key", ""), ("fence", "1"), ("finding", "not_executed"), ("reason", "x")];
    assert_eq!(stranger.submit(&format!("/keys/{id}/decide"), &fields).status(), 303);
    // After the log-out the cookie is worth nothing.
    let reader = Reader::logged_in(&gateway, TOKEN);
    let form_key = reader.form_key("/");
    assert_eq!(reader.submit("/logout", &[("form_key", &form_key)]).status(), 303);
    assert_eq!(reader.get("/").status(), 303);
    assert_eq!(gateway.post("/pay", &key, "{}").code(), "outcome_unknown");
}

#[test]
fn another_site_can_make_a_browser_do_nothing() {
    let upstream = Upstream::start();
    let gateway = Gateway::start(&upstream, "");
    let (key, id) = with_unknown(&upstream, &gateway);
    let reader = Reader::logged_in(&gateway, TOKEN);
    let other = Reader::logged_in(&gateway, TOKEN);
    let path = format!("/keys/{id}/decide");
    let form_key = reader.form_key(&format!("/keys/{id}"));
    let fence = field(&reader.get(&format!("/keys/{id}")).text(), "fence");
    let fields = |form_key| {
        [
            ("form_key", form_key),
            ("fence", fence.as_str()),
            ("finding", "not_executed"),
            ("reason", "x"),
        ]
    };
    let foreign = other.form_key("/");
    for wrong in ["", "guess", &foreign] {
        assert_eq!(reader.submit(&path, &fields(wrong)).status(), 403, "{wrong}");
    }
    for site in
        [("Origin", "https://evil.example"), ("Sec-Fetch-Site", "cross-site"), ("Origin", "null")]
    {
        assert_eq!(
            reader.submit_from(&path, &fields(&form_key), &[site]).status(),
            403,
            "{site:?}"
        );
        assert_eq!(
            reader.submit_from("/login", &[("token", TOKEN)], &[site]).status(),
            403,
            "{site:?}"
        );
    }
    assert_eq!(gateway.post("/pay", &key, "{}").code(), "outcome_unknown");
    // In no frame, in no cache, and nothing from elsewhere.
    let page = reader.get("/");
    let policy = page.header("content-security-policy").unwrap();
    assert!(
        policy.contains("default-src 'none'") && policy.contains("frame-ancestors 'none'"),
        "{policy}"
    );
    assert!(!policy.contains("unsafe"), "{policy}");
    assert_eq!(
        ["x-frame-options", "cache-control", "x-content-type-options", "referrer-policy"]
            .map(|name| page.header(name)),
        [Some("DENY"), Some("no-store"), Some("nosniff"), Some("same-origin")]
    );
    assert!(
        !page.text().contains("<script>") && !page.text().contains("style=\""),
        "{}",
        page.text()
    );
}

/// What no page of ours has in it: the beginnings of what others would like to be an element or an attribute.
const ALIVE: [&str; 8] =
    ["<script>", "<b>", "<i>", "<img", "\"onfocus=", "'onfocus=", "\" onfocus=", "' onfocus="];

#[test]
fn markup_of_others_is_shown_as_text() {
    const CALLER: &str = "\"onfocus=alert(1) '><b>caller</b><img src=x>";
    const PATH: &str = "/pay/\"onfocus=alert(1)'onfocus=alert(1)/%3Cscript%3E";
    let upstream = Upstream::start();
    let gateway = Gateway::start(&upstream, "[defaults]\nscope = [\"header:x-tenant\"]\n");
    let body = "<script>alert(1)</script>";
    let headers = [
        ("X-Tenant", CALLER),
        ("X-Request-Id", "<b>id</b>"),
        ("Authorization", "Bearer <i>x</i>"),
        ("User-Agent", "<script>alert(1)</script>"),
        ("X-Note", "' onfocus=alert(1) <img src=x>"),
    ];
    upstream.script("/pay", vec![Step::Drop]);
    gateway.post_with("/pay", &key(), body, &headers);
    let id = gateway.unknown_at("/pay")["id"].as_str().unwrap().to_owned();
    // An answer whose headers hold markup is kept, and given again as it is; of its headers pages show the names.
    let note = "\" onfocus=alert(1) <script>alert(1)</script>";
    let kept = ["X-Note", "Schema-Version", "Location"].map(|name| (name, note.to_owned()));
    upstream.script(PATH, vec![Step::Reply(201, kept.to_vec(), body.into())]);
    let answered = key();
    let target = format!("{PATH}?note='onfocus=alert(1)'%3Cimg%20src=x%3E");
    let post = || gateway.post_with(&target, &answered, body, &headers);
    assert_eq!(post().status(), 201);
    let replay = post();
    assert!(replay.is_replay() && replay.header("x-note") == Some(note), "{replay:?}");
    // Angle brackets cannot stand in a path as they are.
    assert_eq!(gateway.post_with("/pay/<img>", &key(), body, &headers).status(), 400);
    let listed = gateway.ask("GET", "/api/v1/keys?state=completed", "").json();
    let completed = listed["keys"][0]["id"].as_str().unwrap().to_owned();
    let reader = Reader::logged_in(&gateway, TOKEN);
    let encoded = "%3Cscript%3Ealert(1)%3C/script%3E%22onfocus=%27onfocus=";
    let pages = [
        format!("/keys/{id}"),
        format!("/keys/{completed}"),
        "/unknown".to_owned(),
        "/keys".to_owned(),
        "/".to_owned(),
        "/store".to_owned(),
        "/settings".to_owned(),
        format!("/keys?text={encoded}&state=%22%3E%3Cscript%3E&route={encoded}"),
        format!("/keys?text={encoded}"),
        format!("/login?next={encoded}"),
        format!("/login?next=/{encoded}"),
        format!("/keys/{encoded}"),
        format!("/outbox?state={encoded}&kind={encoded}"),
        format!("/inbox?state={encoded}&provider={encoded}"),
        format!("/keys?scope={encoded}&path={encoded}"),
        format!("/unknown?cursor={encoded}"),
    ];
    let mut alive = Vec::new();
    for path in pages {
        let text = reader.get(&path).text();
        alive.extend(
            ALIVE.iter().filter(|part| text.contains(**part)).map(|part| (path.clone(), *part)),
        );
    }
    assert_eq!(alive, []);
    // It is there, as text.
    let story = reader.get(&format!("/keys/{completed}")).text();
    for part in [
        "&#34;onfocus=alert(1) &#39;&#62;&#60;b&#62;caller",
        "/pay/&#34;onfocus=alert(1)&#39;onfocus=alert(1)/%3Cscript%3E",
    ] {
        assert!(story.contains(part), "{part}: {story}");
    }
}

#[test]
fn a_token_that_may_read_decides_nothing() {
    let upstream = Upstream::start();
    let toml = "[admin.tokens.nightwatch]\nrole = \"read\"\ntoken = \"token-of-the-nightwatch\"\n";
    let gateway = Gateway::start(&upstream, toml);
    let (key, id) = with_unknown(&upstream, &gateway);
    let reader = Reader::logged_in(&gateway, "token-of-the-nightwatch");
    let story = reader.get(&format!("/keys/{id}")).text();
    assert!(story.contains("nightwatch") && !story.contains("/preview"), "{story}");
    let form_key = field(&story, "form_key");
    let fields = [
        ("form_key", form_key.as_str()),
        ("fence", "1"),
        ("finding", "not_executed"),
        ("reason", "x"),
    ];
    for verb in ["preview", "decide"] {
        assert_eq!(reader.submit(&format!("/keys/{id}/{verb}"), &fields).status(), 403, "{verb}");
    }
    assert_eq!(gateway.post("/pay", &key, "{}").code(), "outcome_unknown");
}

/// A browser sends a cookie to every port of a host. The session went through the gateway to the upstream, and made its reader another
/// caller: on a route that knows callers by their credentials, one without any was refused for showing a cookie.
#[test]
fn the_cookie_of_a_session_stops_at_the_gateway() {
    let upstream = Upstream::start();
    let gateway = Gateway::start(&upstream, "");
    let reader = Reader::logged_in(&gateway, TOKEN);
    let key = key();
    let both = format!("theme=dark; {}; lang=en", reader.cookie);
    let seen = |path: &str| upstream.seen_at(path)[0].header("cookie").map(str::to_owned);
    let first = gateway.post_with("/pay", &key, "{}", &[("Cookie", &reader.cookie)]);
    assert_eq!((first.status(), seen("/pay")), (201, None), "{}", first.text());
    let again = gateway.post_with("/pay", &key, "{}", &[]);
    assert!(again.is_replay(), "with the session and without it is one caller");
    let passed = request("GET", "/page", &[("Cookie", &both)], b"");
    assert_eq!(send(gateway.address, &passed).status(), 201);
    assert_eq!(seen("/page").as_deref(), Some("theme=dark; lang=en"));
}

/// For one page of the board every unknown record of the store was read.
#[test]
fn a_list_of_what_is_unknown_reads_no_more_than_it_may_and_says_so() {
    let upstream = Upstream::start();
    let gateway = Gateway::start(&upstream, "");
    for number in 0..3 {
        let path = format!("/pay/{number}");
        upstream.script(&path, vec![Step::Drop]);
        assert_eq!(gateway.post(&path, &key(), "{}").status(), 502);
    }
    let list = |query: &str| gateway.ask("GET", &format!("/api/v1/unknown?{query}"), "").json();
    let ids = |page: &Value| -> Vec<String> {
        let listed = page["unknown"].as_array().unwrap().iter();
        listed.map(|key| key["id"].as_str().unwrap().to_owned()).collect()
    };
    let whole = list("read_max=100");
    assert_eq!((ids(&whole).len(), &whole["cut"]), (3, &json!(false)), "{whole}");
    assert_eq!(list("")["cut"], false);
    let cut = list("read_max=2");
    assert_eq!((ids(&cut).len(), &cut["cut"]), (2, &json!(true)), "{cut}");
    // A page that is remembered says it, too, and a list that may read all is not mistaken for it.
    let first = list("read_max=2&limit=1");
    let cursor = first["cursor"].as_str().unwrap();
    let second = list(&format!("read_max=2&limit=1&cursor={cursor}"));
    assert_eq!(
        (ids(&second).len(), &second["cut"], &second["cursor"]),
        (1, &json!(true), &Value::Null)
    );
    assert_ne!(ids(&first), ids(&second));
    let rest = list(&format!("limit=2&cursor={cursor}"));
    assert_eq!(rest["cut"], false, "{rest}");
    assert_eq!(gateway.ask("GET", "/api/v1/unknown?read_max=many", "").code(), "invalid");
    let board = Reader::logged_in(&gateway, TOKEN).get("/unknown").text();
    assert!(board.contains("POST /pay/0") && !board.contains("were read"), "{board}");
}
