//! How is a ledger read from an API that gives it page by page?
//!
//! A page is a JSON document with a list in it. Where the next page begins stands in the document, or is the key of the last
//! item; a place that was there before would go round for ever, and is an error. A page that does not come whole is
//! asked for again, and never used in part.

use std::collections::HashSet;
use std::fmt;

use http::{HeaderMap, HeaderName, HeaderValue, Uri};
use serde_json::value::RawValue;
use sha2::{Digest as _, Sha256};

use super::columns::Columns;
use super::entry::{Entry, Place};
use super::page_client::PageClient;
use super::pointer::{Pointers, plain};
use super::quote::quoted;
use super::window::Window;
use crate::percent::encoded;

/// How many pages are read. A cursor that never ends is ended here.
const PAGES_MAX: u64 = 1_000_000;

/// Where pages are, and how one leads to the next.
#[derive(Debug)]
pub(crate) struct PageOptions {
    pub url: String,
    /// The pointer to the list of a page.
    pub items: String,
    /// The pointer to where the next page begins.
    pub cursor: Option<String>,
    /// The pointer inside the last item to where the next page begins.
    pub cursor_item: Option<String>,
    /// The pointer to whether there is another page.
    pub more: Option<String>,
    /// The name of the query's parameter that says where a page begins.
    pub cursor_parameter: String,
    /// Fields of each request, such as a credential: the text of a file.
    pub headers: String,
}

impl fmt::Display for PageOptions {
    /// Without a query and without a user: both may hold a credential.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let url = self.url.split(['?', '#']).next().unwrap_or_default();
        let (scheme, rest) = url.split_once("://").unwrap_or(("http", url));
        let rest = rest.split_once('@').map_or(rest, |(_, rest)| rest);
        write!(f, "{scheme}://{rest}")
    }
}

impl PageOptions {
    /// Whether the URL asks for each end that the window has.
    pub(super) fn names_window(&self, window: &Window) -> bool {
        (window.since.is_none() || self.url.contains("{since"))
            && (window.until.is_none() || self.url.contains("{until"))
    }

    fn filled_url(&self, window: &Window) -> Result<String, String> {
        let mut url = self.url.clone();
        for (name, end) in [("since", window.since), ("until", window.until)] {
            let Some(end) = end else { continue };
            url = url.replace(&format!("{{{name}}}"), &encoded(&end.to_string()));
            url = url.replace(&format!("{{{name}_unix}}"), &end.as_second().to_string());
        }
        if url.contains(['{', '}']) {
            return Err("its URL has braces that nothing is put in place of: --since and --until fill {since}, {until}, \
                         {since_unix} and {until_unix}"
                .into());
        }
        Ok(url)
    }
}

/// Pages that are read one after the other.
#[derive(Debug)]
pub(super) struct PagesLedger {
    client: PageClient,
    first: String,
    options: PageOptions,
    /// The next page's URL; none at the end.
    next: Option<String>,
    /// What each page's beginning was, in short: a million of them are a few tens of megabytes.
    seen: HashSet<[u8; 16]>,
    page: u64,
    places: Pointers,
    item_cursor: Pointers,
    pointers: Pointers,
    columns: Columns,
    window: Window,
}

/// What a page says about the next one.
struct PageTurn<'p> {
    items: Vec<&'p RawValue>,
    cursor: Option<String>,
    more: Option<String>,
}

impl PagesLedger {
    pub(super) fn new(
        options: PageOptions,
        columns: Columns,
        window: Window,
    ) -> Result<Self, String> {
        let first = options.filled_url(&window)?;
        let uri: Uri = first.parse().map_err(|error| format!("its URL cannot be read: {error}"))?;
        if !matches!(uri.scheme_str(), Some("http" | "https")) || uri.host().is_none() {
            return Err("its URL must begin with http:// or https:// and a host".into());
        }
        let named = [Some(&options.items), options.cursor.as_ref(), options.more.as_ref()];
        let places = Pointers::new(named.into_iter().flatten().map(String::as_str))?;
        let item_cursor = Pointers::new(options.cursor_item.as_deref())?;
        Ok(Self {
            client: PageClient::new(read_headers(&options.headers)?),
            next: Some(first.clone()),
            first,
            seen: HashSet::new(),
            page: 0,
            places,
            item_cursor,
            pointers: Pointers::new(columns.wanted())?,
            columns,
            window,
            options,
        })
    }

    pub(super) async fn next_page(&mut self) -> Result<Option<Vec<Entry>>, String> {
        let Some(url) = self.next.take() else { return Ok(None) };
        self.page += 1;
        let page = self.page;
        let told = |why: String| format!("page {page}: {why}");
        if page > PAGES_MAX {
            return Err(told(format!(
                "there are more than {PAGES_MAX} pages: does its cursor ever end?"
            )));
        }
        let text = self.client.get(&url).await.map_err(told)?;
        let turn = self.read_page(&text).map_err(told)?;
        let mut entries = Vec::with_capacity(turn.items.len());
        for (number, item) in (1..).zip(&turn.items) {
            let place = Place::Item(page, number);
            let wrong = |why| format!("{place}: {why}");
            let values = self.pointers.texts(item.get()).map_err(wrong)?;
            entries
                .extend(self.columns.entry(values.as_slice(), &self.window, place).map_err(wrong)?);
        }
        let begins_at = self.next_cursor(&turn).map_err(told)?;
        self.next = begins_at.map(|cursor| self.next_url(&cursor)).transpose().map_err(told)?;
        Ok(Some(entries))
    }

    fn read_page<'p>(&self, text: &'p str) -> Result<PageTurn<'p>, String> {
        let found = self.places.find(text).map_err(|error| format!("it is no JSON: {error}"))?;
        let mut found = found.into_iter();
        let items = found.next().flatten().ok_or_else(|| {
            format!(
                "it has nothing at {}: --items says where its list is",
                quoted(&self.options.items)
            )
        })?;
        let items = serde_json::from_str(items.get())
            .map_err(|_| format!("there is no list at {}", quoted(&self.options.items)))?;
        let mut text_of = |is_asked: bool| {
            let raw = if is_asked { found.next().flatten() } else { None };
            raw.map_or(Ok(None), plain)
        };
        let cursor = text_of(self.options.cursor.is_some())?;
        let more = text_of(self.options.more.is_some())?;
        Ok(PageTurn { items, cursor, more })
    }

    /// Where the next page begins; none at the end.
    fn next_cursor(&self, turn: &PageTurn<'_>) -> Result<Option<String>, String> {
        if let Some(pointer) = &self.options.more {
            match turn.more.as_deref() {
                Some("true") => {}
                Some("false") => return Ok(None),
                Some(_) | None => {
                    return Err(format!("there is neither true nor false at {}", quoted(pointer)));
                }
            }
        }
        let cursor =
            match (&self.options.cursor_item, turn.items.last()) {
                (None, _) => turn.cursor.clone(),
                (Some(_), None) => None,
                (Some(pointer), Some(last)) => {
                    let found = self.item_cursor.texts(last.get())?.pop().flatten();
                    Some(found.ok_or_else(|| {
                        format!("its last item has nothing at {}", quoted(pointer))
                    })?)
                }
            };
        let cursor = cursor.filter(|cursor| !cursor.is_empty());
        if cursor.is_none() && self.options.more.is_some() {
            return Err("it says that there is another page, and not where that begins".into());
        }
        Ok(cursor)
    }

    /// The URL of the page that begins at a cursor, which may be a URL itself.
    fn next_url(&mut self, cursor: &str) -> Result<String, String> {
        let digest = Sha256::digest(cursor.as_bytes());
        let short: [u8; 16] = digest.first_chunk().copied().unwrap_or_default();
        if !self.seen.insert(short) {
            return Err(format!(
                "its cursor {} was there before: the pages go round in a circle",
                quoted(cursor)
            ));
        }
        if !cursor.starts_with("http://") && !cursor.starts_with("https://") {
            let joint = if self.first.contains('?') { '&' } else { '?' };
            let parameter = encoded(&self.options.cursor_parameter);
            return Ok(format!("{}{joint}{parameter}={}", self.first, encoded(cursor)));
        }
        let server = |url: &str| {
            let url: Uri = url.parse().ok()?;
            Some((url.scheme_str()?.to_owned(), url.authority()?.as_str().to_owned()))
        };
        // Our credential is for the server that was named, and for no other.
        let is_there =
            server(cursor).is_some_and(|server_of| server(&self.first) == Some(server_of));
        if !is_there {
            return Err(format!("its next page {} is on another server", quoted(cursor)));
        }
        Ok(cursor.to_owned())
    }
}

/// Fields of requests, one `Name: value` on each line.
fn read_headers(text: &str) -> Result<HeaderMap, String> {
    let mut headers = HeaderMap::new();
    for (number, line) in (1..).zip(text.lines()) {
        if line.trim().is_empty() || line.starts_with('#') {
            continue;
        }
        // The line itself may be a secret, and is not shown.
        let wrong = || format!("--headers: line {number} is no field such as `Name: value`");
        let (name, value) = line.split_once(':').ok_or_else(wrong)?;
        let name: HeaderName = name.trim().parse().map_err(|_| wrong())?;
        let mut value: HeaderValue = value.trim().parse().map_err(|_| wrong())?;
        value.set_sensitive(true);
        headers.append(name, value);
    }
    Ok(headers)
}

#[cfg(test)]
mod tests {
    use super::super::columns::tests::columns;
    use super::*;

    fn options(url: &str) -> PageOptions {
        PageOptions {
            url: url.into(),
            items: "/data".into(),
            cursor: Some("/next".into()),
            cursor_item: None,
            more: None,
            cursor_parameter: "after".into(),
            headers: String::new(),
        }
    }

    fn ledger(options: PageOptions) -> PagesLedger {
        PagesLedger::new(options, columns(), Window::default()).unwrap()
    }

    fn turn(ledger: &mut PagesLedger, page: &str) -> Result<Option<String>, String> {
        let turn = ledger.read_page(page)?;
        let cursor = ledger.next_cursor(&turn)?;
        cursor.map(|cursor| ledger.next_url(&cursor)).transpose()
    }

    #[test]
    fn a_page_leads_to_the_next_by_cursor_url_or_last_item() {
        let mut by_cursor = ledger(options("https://api.example/list?limit=2"));
        let next = turn(&mut by_cursor, r#"{"data":[],"next":"a/b="}"#).unwrap().unwrap();
        assert_eq!(next, format!("https://api.example/list?limit=2&after={}", encoded("a/b=")));
        for last in [r#"{"data":[],"next":null}"#, r#"{"data":[]}"#, r#"{"data":[],"next":""}"#] {
            assert_eq!(turn(&mut by_cursor, last), Ok(None), "{last}");
        }
        let by_url =
            turn(&mut by_cursor, r#"{"data":[],"next":"https://api.example/list?page=2"}"#);
        assert_eq!(by_url, Ok(Some("https://api.example/list?page=2".into())));

        let more = Some("/has_more".to_owned());
        let cursor_item = Some("/id".to_owned());
        let mut by_item =
            ledger(PageOptions { cursor: None, cursor_item, more, ..options("http://h/list") });
        let next = turn(&mut by_item, r#"{"data":[{"id":"a"},{"id":"b"}],"has_more":true}"#);
        assert_eq!(next, Ok(Some("http://h/list?after=b".into())));
        assert_eq!(turn(&mut by_item, r#"{"data":[{"id":"c"}],"has_more":false}"#), Ok(None));
        assert!(turn(&mut by_item, r#"{"data":[{"id":"c"}]}"#).unwrap_err().contains("has_more"));
        assert!(turn(&mut by_item, r#"{"data":[],"has_more":true}"#).is_err());
    }

    #[test]
    fn a_cursor_that_repeats_or_leads_elsewhere_is_refused() {
        let mut ledger = ledger(options("https://api.example/list"));
        let page = r#"{"data":[],"next":"x"}"#;
        let other = r#"{"data":[],"next":"y"}"#;
        assert!(turn(&mut ledger, page).is_ok() && turn(&mut ledger, other).is_ok());
        assert!(turn(&mut ledger, page).unwrap_err().contains("circle"));
        for elsewhere in
            ["https://evil.example/list", "http://api.example/list", "https://api.example:1/"]
        {
            let page = format!(r#"{{"data":[],"next":"{elsewhere}"}}"#);
            assert!(
                turn(&mut ledger, &page).unwrap_err().contains("another server"),
                "{elsewhere}"
            );
        }
    }

    #[test]
    fn a_page_that_is_none_says_so() {
        let mut ledger = ledger(options("https://api.example/list"));
        assert!(turn(&mut ledger, r#"{"data":[{"id":"#).unwrap_err().contains("no JSON"));
        assert!(turn(&mut ledger, r#"{"items":[]}"#).unwrap_err().contains("--items"));
        assert!(turn(&mut ledger, r#"{"data":{}}"#).unwrap_err().contains("no list"));
    }

    #[test]
    fn urls_are_filled_and_shown_without_secrets() {
        let window = Window::parse(Some("2026-11-16"), Some("2026-11-17")).unwrap();
        let given = options("https://u:p@api.example/list?from={since}&to={until_unix}&key=secret");
        assert!(given.names_window(&window));
        let url = given.filled_url(&window).unwrap();
        assert!(
            url.contains(&encoded("2026-11-16T00:00:00Z")) && url.contains("to=1794873600"),
            "{url}"
        );
        assert!(given.filled_url(&Window::default()).unwrap_err().contains("--since"));
        assert_eq!(given.to_string(), "https://api.example/list");
        assert!(PagesLedger::new(options("/list"), columns(), window).is_err());
        assert!(read_headers("Authorization secret").unwrap_err().contains("line 1"));
        assert_eq!(read_headers("# ours\n\nA: b\nA: c\n").unwrap().len(), 2);
    }
}
