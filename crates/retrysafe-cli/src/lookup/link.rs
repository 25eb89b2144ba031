//! Where does the header `Link` say that a list goes on?
//!
//! Links are written in many ways (RFC 8288): with blanks around the signs, in quotes or without, with other parameters and several
//! relations. What is taken for the end of a list may become the proof that something is not in it. So a line that speaks of `next` and
//! cannot be read is an error, and never the end.

use std::borrow::Cow;

use http::HeaderMap;
use http::header::LINK;

/// The blanks between the parts of a link.
const BLANKS: [char; 2] = [' ', '\t'];

/// One link of a line.
#[derive(Default)]
struct LinkValue<'a> {
    url: &'a str,
    is_next: bool,
    /// Whether a relation is something with `next` in it, such as `nextpage`.
    is_like_next: bool,
    /// Whether it leads on from another page than this one.
    has_anchor: bool,
}

/// A parameter of a link, and what follows it in the line.
struct LinkParameter<'a> {
    name: &'a str,
    value: Cow<'a, str>,
    rest: &'a str,
}

/// The URL of `Link: <URL>; rel="next"`; none if there is no such link.
///
/// # Errors
///
/// Why nobody can say whether there is one, or which.
pub(super) fn next_link(headers: &HeaderMap) -> Result<Option<String>, String> {
    let mut found: Option<&str> = None;
    for value in headers.get_all(LINK) {
        let line = value.to_str().map_err(|_| "its Link header is no text")?;
        let Some(links) = read_line(line) else {
            if line.to_ascii_lowercase().contains("next") {
                return Err("its Link header speaks of a next page, and cannot be read".into());
            }
            continue;
        };
        for link in links {
            if link.is_like_next {
                return Err("its Link header has a relation that is like `next`".into());
            }
            if !link.is_next {
                continue;
            }
            if link.has_anchor {
                return Err("its Link header names the next page of another list".into());
            }
            if found.is_some_and(|found| found != link.url) {
                return Err("its Link header names two next pages".into());
            }
            found = Some(link.url);
        }
    }
    Ok(found.map(str::to_owned))
}

/// The links of a line; none if it cannot be read to its end.
fn read_line(line: &str) -> Option<Vec<LinkValue<'_>>> {
    let mut links = Vec::new();
    let mut rest = without_commas(line);
    while !rest.is_empty() {
        let (url, after) = rest.strip_prefix('<')?.split_once('>')?;
        let mut link = LinkValue { url: url.trim(), ..LinkValue::default() };
        rest = after.trim_start_matches(BLANKS);
        while let Some(after) = rest.strip_prefix(';') {
            let parameter = LinkParameter::read(after)?;
            link.add(&parameter);
            rest = parameter.rest;
        }
        if !rest.is_empty() && !rest.starts_with(',') {
            return None;
        }
        links.push(link);
        rest = without_commas(rest);
    }
    Some(links)
}

/// A list may have elements that are empty.
fn without_commas(rest: &str) -> &str {
    rest.trim_start_matches([' ', '\t', ','])
}

impl LinkValue<'_> {
    fn add(&mut self, parameter: &LinkParameter<'_>) {
        let name = parameter.name.trim_end_matches('*');
        self.has_anchor |= name.eq_ignore_ascii_case("anchor");
        if !name.eq_ignore_ascii_case("rel") {
            return;
        }
        for word in parameter.value.split_ascii_whitespace() {
            let is_next = word.eq_ignore_ascii_case("next");
            self.is_next |= is_next;
            self.is_like_next |= !is_next && word.to_ascii_lowercase().contains("next");
        }
    }
}

impl<'a> LinkParameter<'a> {
    /// Reads what stands behind a semicolon: `name`, `name=value` or nothing.
    fn read(text: &'a str) -> Option<Self> {
        let text = text.trim_start_matches(BLANKS);
        let end = text.find([' ', '\t', '=', ';', ',']).unwrap_or(text.len());
        let (name, rest) = text.split_at(end);
        let rest = rest.trim_start_matches(BLANKS);
        let Some(rest) = rest.strip_prefix('=') else {
            return Some(Self { name, value: Cow::Borrowed(""), rest });
        };
        let rest = rest.trim_start_matches(BLANKS);
        let quote = rest.chars().next().filter(|first| ['"', '\''].contains(first));
        let (value, rest) = match quote {
            Some(quote) => {
                let (value, rest) = read_quoted(rest.get(1..)?, quote)?;
                (Cow::Owned(value), rest)
            }
            None => {
                let end = rest.find([' ', '\t', ';', ',']).unwrap_or(rest.len());
                let (value, rest) = rest.split_at(end);
                (Cow::Borrowed(value), rest)
            }
        };
        Some(Self { name, value, rest: rest.trim_start_matches(BLANKS) })
    }
}

/// The text up to the quote that ends it, and what follows. None if nothing ends it.
fn read_quoted(text: &str, quote: char) -> Option<(String, &str)> {
    let mut value = String::new();
    let mut signs = text.chars();
    loop {
        match signs.next()? {
            sign if sign == quote => return Some((value, signs.as_str())),
            '\\' => value.push(signs.next()?),
            sign => value.push(sign),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_are_read_as_servers_write_them() {
        for (text, next) in [
            ("</a?p=2>; rel=\"next\"", Some("/a?p=2")),
            ("</a?p=0>; rel=\"prev\", </a?p=2>; rel=\"next\"", Some("/a?p=2")),
            ("</a?p=0>; rel=prev,</a?p=2>; rel=next", Some("/a?p=2")),
            ("<https://x/a>; title=\"n\"; REL=\"last next\"", Some("https://x/a")),
            // With blanks around the sign, as RFC 8288 permits, and in the other quotes.
            ("</a?p=2>; rel = \"next\"", Some("/a?p=2")),
            ("</a?p=2>\t;\trel\t=next", Some("/a?p=2")),
            ("</a?p=2>; rel='next'", Some("/a?p=2")),
            ("</a?p=2>; rel='last next'", Some("/a?p=2")),
            ("</a?p=2>; rel=\"last\tnext\"", Some("/a?p=2")),
            // Other parameters and links before it, with signs in their texts.
            ("</a?p=2>; title=\"a; b, <c>; \\\" d\"; rel=next", Some("/a?p=2")),
            ("</a?p=2>; title*=UTF-8''n%C3%A4chste; crossorigin; rel=\"next\"", Some("/a?p=2")),
            ("</a?p=0>; rel=prev  ,  </a?p=2>; rel=next", Some("/a?p=2")),
            ("</a?p=0>; rel=prev,, </a?p=1,<2>; rel=next,", Some("/a?p=1,<2")),
            ("</a?p=2>; rel=next, <https://x/a>; rel=last", Some("/a?p=2")),
            ("</a?p=2>; rel=next, </a?p=2>; rel=\"next\"", Some("/a?p=2")),
            ("", None),
            ("</next?next=2>; rel=\"prev\"; title=\"next\"", None),
            ("</a>; rel=\"last\"", None),
            ("nonsense", None),
        ] {
            let headers: HeaderMap = [(LINK, text.parse().unwrap())].into_iter().collect();
            assert_eq!(next_link(&headers).unwrap().as_deref(), next, "{text}");
        }
    }

    /// What is taken for the end of a list is taken for an absence behind it, and an absence may be proof.
    #[test]
    fn a_link_that_is_not_understood_is_never_the_end() {
        for text in [
            "</a?p=2>; rel=\"next",
            "</a?p=2>; rel='next",
            "</a?p=2>; rel=last next",
            "</a?p=2>; rel=\"https://x/rels/next\"",
            "</a?p=2>; rel=\"nextpage\"",
            "</a?p=2>; rel*=UTF-8''next",
            "</a?p=2; rel=\"next\"",
            "/a?p=2; rel=\"NEXT\"",
            "</a?p=0>; rel=\"prev\" </a?p=2>; rel=\"next\"",
            // Of which list?
            "</b?p=2>; rel=\"next\"; anchor=\"/b\"",
            "</a?p=2>; rel=\"next\", </a?p=3>; rel=\"next\"",
        ] {
            let headers: HeaderMap = [(LINK, text.parse().unwrap())].into_iter().collect();
            let told = next_link(&headers);
            assert!(told.is_err(), "{text}: {told:?}");
        }
        // One line is as good as the other.
        let lines = ["</a?p=2>; rel=\"next\"", "</a?p=3>; rel=\"next"];
        let headers = lines.iter().map(|line| (LINK, line.parse().unwrap())).collect();
        assert!(next_link(&headers).is_err());
    }
}
