//! How is a provider's list read, where it has no look-up by key? (`list` of a lookup)

use std::time::Duration;

use retrysafe_core::canonical::Pointer;

use super::lookup_file::ListFile;
use super::outcomes::read_pointer;

/// How many pages are read at the most, unless it is set.
const PAGES_MAX: u32 = 20;

/// How long before the request began the window of time opens, unless it is set: clocks differ.
const WINDOW_BEFORE: Duration = Duration::from_secs(5 * 60);

/// How a list is read.
#[derive(Clone, Debug)]
pub(crate) struct ListRules {
    pub items: Pointer,
    /// Where in an item stands what it was sent with.
    pub key: Pointer,
    pub next: NextPage,
    /// The parameter of the URL that takes the cursor.
    pub parameter: Option<String>,
    /// Where in a page it stands whether there are more.
    pub more: Option<Pointer>,
    pub pages_max: u32,
    pub window_before: Duration,
}

/// How the next page is found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum NextPage {
    /// One page is the whole list.
    None,
    /// By the header `Link`.
    Link,
    /// By what stands there in the page.
    At(Pointer),
    /// By what stands there in the last item.
    InLastItem(Pointer),
}

impl ListRules {
    /// The rules of a table.
    ///
    /// # Errors
    ///
    /// The setting that is wrong, and why.
    pub(super) fn read(file: &ListFile) -> Result<Self, (&'static str, String)> {
        let pointer =
            |setting: &'static str, text: &str| read_pointer(text).map_err(|what| (setting, what));
        let Some(key) = &file.key else {
            let what =
                "is not set: where in an item stands what it was sent with, such as /metadata/key?";
            return Err(("key", what.into()));
        };
        let next = match file.next.as_deref() {
            None => {
                let what = "is not set: an answer that is one page of many would be taken for the whole list. Write \"link\", a JSON \
                            pointer such as /next, \"last:/id\", or \"none\" where one page is the whole list";
                return Err(("next", what.into()));
            }
            Some("none") => NextPage::None,
            Some("link") => NextPage::Link,
            Some(text) => match text.strip_prefix("last:") {
                Some(text) => NextPage::InLastItem(pointer("next", text)?),
                None => NextPage::At(pointer("next", text)?),
            },
        };
        let more = file.more.as_deref().map(|text| pointer("more", text)).transpose()?;
        if matches!(next, NextPage::InLastItem(_)) {
            if more.is_none() {
                let what = "is not set: with a cursor from the last item nothing else says that there are no more pages";
                return Err(("more", what.into()));
            }
            if file.parameter.is_none() {
                let what = "is not set: which parameter takes the cursor?";
                return Err(("parameter", what.into()));
            }
        }
        let takes_cursor = matches!(next, NextPage::At(_) | NextPage::InLastItem(_));
        if file.parameter.is_some() && !takes_cursor {
            return Err(("parameter", "makes no sense: `next` names no cursor".into()));
        }
        Ok(Self {
            items: pointer("items", file.items.as_deref().unwrap_or(""))?,
            key: pointer("key", key)?,
            next,
            parameter: file.parameter.clone(),
            more,
            pages_max: file.pages_max.map_or(PAGES_MAX, std::num::NonZeroU32::get),
            window_before: file.window_before.map_or(WINDOW_BEFORE, |length| length.0),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_that_cannot_be_complete_is_refused() {
        let list = |next: Option<&str>, more: Option<&str>, parameter: Option<&str>| {
            let text = |text: &str| text.to_owned();
            ListRules::read(&ListFile {
                key: Some("/k".into()),
                next: next.map(text),
                more: more.map(text),
                parameter: parameter.map(text),
                ..ListFile::default()
            })
        };
        for (next, more, parameter, setting) in [
            (None, None, None, "next"),
            (Some("cursor"), None, None, "next"),
            (Some("last:id"), Some("/more"), Some("after"), "next"),
            (Some("last:/id"), None, Some("after"), "more"),
            (Some("last:/id"), Some("/more"), None, "parameter"),
            (Some("link"), None, Some("after"), "parameter"),
            (Some("/next"), Some("more"), None, "more"),
        ] {
            assert_eq!(list(next, more, parameter).unwrap_err().0, setting, "{next:?}");
        }
        assert!(list(Some("none"), None, None).is_ok());
        assert!(list(Some("link"), None, None).is_ok());
        assert!(list(Some("/next"), None, Some("cursor")).is_ok());
        assert!(list(Some("last:/id"), Some("/has_more"), Some("starting_after")).is_ok());
        assert_eq!(ListRules::read(&ListFile::default()).unwrap_err().0, "key");
    }
}
