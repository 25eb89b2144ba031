//! Is it in a provider's list?
//!
//! The list is read page by page, up to a bound. An item that holds what was sent is read by the rules. What the items say, or that there
//! is none, means something only if the list came whole: after a page that cannot be read, a cursor that comes twice or a page too
//! many, nobody knows what the rest says.

use http::{HeaderMap, Uri};
use retrysafe::evidence::{DocumentVerdict, JsonDocument, JsonItem};
use retrysafe_core::canonical::Pointer;

use super::link::next_link;
use super::{
    LookupFound, LookupQuestion, LookupServer, ProviderAnswer, RawAnswer, get, shown, too_often,
    unreadable,
};
use crate::config::list::{ListRules, NextPage};
use crate::config::lookup::LookupRules;
use crate::percent;

/// Where a list goes on after a page.
#[derive(Debug, PartialEq, Eq)]
enum AfterPage {
    /// It has ended.
    End,
    /// On this path.
    Path(String),
}

/// Looks for an item in a list that begins at this path. The list is read to its end also where an item was found: another item of the
/// same key may say the opposite.
pub(super) async fn search(
    rules: &LookupRules,
    list: &ListRules,
    question: &LookupQuestion<'_>,
    first: String,
    server: &impl LookupServer,
) -> ProviderAnswer {
    let mut seen = vec![first.clone()];
    let mut path = first.clone();
    let mut excerpt = None;
    let mut wanted = WantedItems::default();
    for page in 1..=list.pages_max {
        let answer = match get(rules, &path, server).await {
            Ok(answer) => answer,
            Err(why) => return wanted.incomplete(page, &why, excerpt),
        };
        if let Some(pause) = too_often(&answer) {
            let excerpt = Some(shown(rules, &answer));
            return ProviderAnswer { found: LookupFound::TooOften(pause), excerpt };
        }
        if wanted.verdict.is_none() {
            excerpt = Some(shown(rules, &answer));
        }
        let PageRead { items, next } = match read_page(list, question, &answer, &first, server) {
            Ok(read) => read,
            Err(why) => return wanted.incomplete(page, &why, excerpt),
        };
        for item in &items {
            if wanted.verdict.is_none() {
                excerpt = Some(shown_item(rules, &answer, item));
            }
            wanted.add(page, rules.documents.read(item.as_bytes()));
        }
        match next {
            Ok(AfterPage::End) => {
                let excerpt = wanted.told(rules, excerpt);
                return ProviderAnswer { found: wanted.found(), excerpt };
            }
            Ok(AfterPage::Path(next)) if seen.contains(&next) => {
                let why = "it leads back to a page that was read before";
                return wanted.incomplete(page, why, excerpt);
            }
            Ok(AfterPage::Path(next)) => {
                seen.push(next.clone());
                path = next;
            }
            Err(why) => return wanted.incomplete(page, &why, excerpt),
        }
    }
    let found_on = match wanted.page {
        Some(page) => {
            format!("found on page {page}, but another item may say the opposite: only the")
        }
        None => "not among the".to_owned(),
    };
    let why = format!(
        "{found_on} first {} pages of the list were read, which is longer than that (`{}.list.pages_max`)",
        list.pages_max, rules.table
    );
    ProviderAnswer { found: LookupFound::inconclusive(why), excerpt }
}

/// What the items say that were sent with what is looked for.
#[derive(Default)]
pub(super) struct WantedItems {
    verdict: Option<DocumentVerdict>,
    /// The page of the first of them.
    page: Option<u32>,
    is_contradictory: bool,
    /// How many of them say that it was executed.
    executions: u32,
}

impl WantedItems {
    pub(super) fn add(&mut self, page: u32, verdict: DocumentVerdict) {
        self.executions += u32::from(matches!(verdict, DocumentVerdict::Executed(_)));
        match &self.verdict {
            Some(first) => self.is_contradictory |= *first != verdict,
            None => {
                self.verdict = Some(verdict);
                self.page = Some(page);
            }
        }
    }

    /// What an operator sees. Where several items say that it was executed, somebody must look whether it has taken effect several times:
    /// that is decided by none of them.
    fn told(&self, rules: &LookupRules, excerpt: Option<Box<str>>) -> Option<Box<str>> {
        if self.executions < 2 {
            return excerpt;
        }
        let items = self.executions;
        tracing::warn!(target: "retrysafe", table = rules.table, items, "lookup_found_several");
        let shown = excerpt.unwrap_or_default();
        Some(
            format!(
                "executed more than once? {items} items of the list say so. The first: {shown}"
            )
            .into(),
        )
    }

    /// What a whole list says.
    pub(super) fn found(self) -> LookupFound {
        match self.verdict {
            None => LookupFound::Absent,
            Some(_) if self.is_contradictory => LookupFound::inconclusive(
                "the list has it more than once, and the items contradict each other",
            ),
            Some(verdict) => LookupFound::Document(verdict),
        }
    }

    /// What a list says that was not read to its end: nothing, for this reason.
    fn incomplete(self, page: u32, why: &str, excerpt: Option<Box<str>>) -> ProviderAnswer {
        let found_on = self
            .page
            .map(|page| format!("found on page {page}, but the list did not come whole: "));
        let why = format!("{}page {page} of the list: {why}", found_on.unwrap_or_default());
        ProviderAnswer { found: LookupFound::inconclusive(why), excerpt }
    }
}

/// What a page holds.
struct PageRead {
    /// The items that were sent with what is looked for.
    items: Vec<String>,
    /// Where the list goes on, or why that cannot be told.
    next: Result<AfterPage, String>,
}

fn read_page(
    list: &ListRules,
    question: &LookupQuestion<'_>,
    answer: &RawAnswer,
    first: &str,
    server: &impl LookupServer,
) -> Result<PageRead, String> {
    if let Some(why) = unreadable(answer, false) {
        return Err(why);
    }
    let page = JsonDocument::parse(&answer.body).ok_or("it is not JSON")?;
    let items = match page.at(&list.items) {
        JsonItem::Value(value) => value.items(),
        JsonItem::Nothing | JsonItem::Ambiguous => None,
    };
    let items = items.ok_or_else(|| format!("there is no list at {:?}", list.items.to_string()))?;
    // It may be the one that is looked for.
    if items.iter().any(|item| matches!(item.at(&list.key), JsonItem::Ambiguous)) {
        return Err(format!("an item has more than one value at {:?}", list.key.to_string()));
    }
    let is_wanted = |item: &&JsonDocument<'_>| match item.at(&list.key) {
        JsonItem::Value(value) => value.plain().as_deref() == Some(question.identity),
        JsonItem::Nothing | JsonItem::Ambiguous => false,
    };
    let wanted = items.iter().filter(is_wanted).map(|item| item.as_text().to_owned()).collect();
    let next = next_page(list, &page, items.last(), &answer.headers, first, server);
    Ok(PageRead { items: wanted, next })
}

fn shown_item(rules: &LookupRules, answer: &RawAnswer, item: &str) -> Box<str> {
    let item = RawAnswer {
        status: answer.status,
        headers: answer.headers.clone(),
        body: item.to_owned().into(),
    };
    shown(rules, &item)
}

fn next_page(
    list: &ListRules,
    page: &JsonDocument<'_>,
    last: Option<&JsonDocument<'_>>,
    headers: &HeaderMap,
    first: &str,
    server: &impl LookupServer,
) -> Result<AfterPage, String> {
    let has_more = list.more.as_ref().map(|more| read_more(page, more)).transpose()?;
    if has_more == Some(false) {
        return Ok(AfterPage::End);
    }
    let cursor = match &list.next {
        NextPage::None => None,
        NextPage::Link => match next_link(headers)? {
            Some(url) => return same_server(&url, server).map(AfterPage::Path),
            None => None,
        },
        NextPage::At(pointer) => read_cursor(page, pointer)?,
        NextPage::InLastItem(pointer) => match last {
            Some(item) => read_cursor(item, pointer)?,
            None => None,
        },
    };
    match (cursor, has_more, &list.parameter) {
        (None, Some(true), _) => Err("it says that there are more, and not where".into()),
        (None, _, _) => Ok(AfterPage::End),
        (Some(cursor), _, Some(parameter)) => {
            let joint = if first.contains('?') { '&' } else { '?' };
            let cursor = percent::encoded(&cursor);
            Ok(AfterPage::Path(format!("{first}{joint}{}={cursor}", percent::encoded(parameter))))
        }
        (Some(url), _, None) => same_server(&url, server).map(AfterPage::Path),
    }
}

fn read_more(page: &JsonDocument<'_>, pointer: &Pointer) -> Result<bool, String> {
    match page.at(pointer) {
        JsonItem::Value(value) if value.as_text() == "true" => Ok(true),
        JsonItem::Value(value) if value.as_text() == "false" => Ok(false),
        JsonItem::Value(_) | JsonItem::Nothing | JsonItem::Ambiguous => {
            Err(format!("there is no true or false at {pointer}"))
        }
    }
}

/// The cursor; none where it is absent, null, false or empty.
fn read_cursor(document: &JsonDocument<'_>, pointer: &Pointer) -> Result<Option<String>, String> {
    match document.at(pointer) {
        JsonItem::Nothing => Ok(None),
        JsonItem::Value(value) if value.is_null() || value.as_text() == "false" => Ok(None),
        JsonItem::Value(value) => {
            let cursor = value.plain().ok_or_else(|| format!("{pointer} holds no cursor"))?;
            Ok(Some(cursor).filter(|cursor| !cursor.is_empty()))
        }
        JsonItem::Ambiguous => Err(format!("{pointer} is there twice")),
    }
}

/// The path of a URL of the server that was asked. Another server is not asked: the question has credentials.
fn same_server(url: &str, server: &impl LookupServer) -> Result<String, String> {
    let uri: Uri = url.parse().map_err(|_| "its next page is no URL")?;
    let host = server.host().map_err(|error| error.to_string())?;
    let is_same = match uri.authority() {
        None => url.starts_with('/'),
        Some(authority) => authority.as_str().as_bytes().eq_ignore_ascii_case(host.as_bytes()),
    };
    let path = uri.path_and_query().map(|path| path.as_str().to_owned());
    path.filter(|_| is_same)
        .ok_or_else(|| "its next page is at another server, which is not asked".into())
}
