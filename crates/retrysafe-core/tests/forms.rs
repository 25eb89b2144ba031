//! Do two form bodies have one fingerprint exactly when they are one form under two boundaries?
//!
//! The judge in this file decides that without any code of the product: it cuts the body at every line that begins with the
//! delimiter, looks at the pieces, and puts them together again. Where a piece is odd, only equal bytes under an equal media
//! type are equal.

#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "a broken judge should fail loudly"
)]

use http::{HeaderMap, HeaderValue, header};
use proptest::collection::vec;
use proptest::prelude::*;
use retrysafe_core::fingerprint::multipart::Form;
use retrysafe_core::fingerprint::{Fingerprint, Pointer, Request, Rules};

/// A body and the boundary that its media type names.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Upload {
    boundary: String,
    body: Vec<u8>,
}

fn print(upload: &Upload) -> Fingerprint {
    let content_type = format!("multipart/form-data; boundary=\"{}\"", upload.boundary);
    let headers = HeaderMap::from_iter([(
        header::CONTENT_TYPE,
        HeaderValue::from_str(&content_type).unwrap(),
    )]);
    Rules::default().print(&Request {
        method: "POST",
        authority: "api.example",
        path_and_query: "/",
        headers: &headers,
        body: &upload.body,
    })
}

/// Header lines and content of every part, and what follows the closing delimiter.
type Parts = (Vec<(String, Vec<u8>)>, Vec<u8>);

fn cut(text: &[u8], at: &[u8]) -> Vec<Vec<u8>> {
    let mut pieces = vec![Vec::new()];
    let mut place = 0;
    while place < text.len() {
        if text[place..].starts_with(at) {
            pieces.push(Vec::new());
            place += at.len();
        } else {
            pieces.last_mut().unwrap().push(text[place]);
            place += 1;
        }
    }
    pieces
}

/// What a body says, or `None` where two servers could read it differently.
fn judge(upload: &Upload) -> Option<Parts> {
    let delimiter = format!("--{}", upload.boundary).into_bytes();
    let line_and_delimiter = [b"\r\n", delimiter.as_slice()].concat();
    let mut pieces = cut(&[b"\r\n", upload.body.as_slice()].concat(), &line_and_delimiter);
    // Ahead of the first delimiter stands nothing; behind the last one its dashes, and at most a line end.
    let is_first_empty = pieces.remove(0).is_empty();
    let end = pieces.pop()?;
    if !is_first_empty || !(end == b"--" || end == b"--\r\n") {
        return None;
    }
    let mut parts = Vec::new();
    for piece in &pieces {
        // The text of a delimiter occurs nowhere else, not even across the end of a real one.
        if cut(&[delimiter.as_slice(), piece].concat()[1..], &delimiter).len() > 1 {
            return None;
        }
        let blank = (0..piece.len()).find(|at| piece[*at..].starts_with(b"\r\n\r\n"))?;
        let head = &piece[..blank];
        let content = piece[blank + 4..].to_vec();
        if head.is_empty() {
            parts.push((String::new(), content));
            continue;
        }
        let head = head.strip_prefix(b"\r\n")?;
        let latin: String = head.iter().copied().map(char::from).collect();
        for line in latin.split("\r\n") {
            let (name, value) = line.split_once(':')?;
            let is_name = !name.is_empty()
                && name.chars().all(|c| c.is_ascii_alphanumeric() || "!#$%&'*+-.^_`|~".contains(c));
            let is_value = value.chars().all(|c| c == '\t' || (c >= ' ' && c != '\u{7f}'));
            if !is_name || !is_value {
                return None;
            }
        }
        if latin.to_lowercase().contains("multipart/") {
            return None;
        }
        parts.push((latin, content));
    }
    Some((parts, end))
}

/// Whether two uploads are the same request, as the judge sees it.
fn same(left: &Upload, right: &Upload) -> bool {
    match (judge(left), judge(right)) {
        (Some(left), Some(right)) => left == right,
        _ => left == right,
    }
}

fn write(boundary: &str, (parts, end): &Parts) -> Upload {
    let mut body = Vec::new();
    for (head, content) in parts {
        body.extend_from_slice(format!("--{boundary}\r\n").as_bytes());
        body.extend(head.chars().map(|c| c as u8));
        body.extend_from_slice(if head.is_empty() { b"\r\n" } else { b"\r\n\r\n" });
        body.extend_from_slice(content);
        body.extend_from_slice(b"\r\n");
    }
    body.extend_from_slice(format!("--{boundary}").as_bytes());
    body.extend_from_slice(end);
    Upload { boundary: boundary.to_owned(), body }
}

/// Boundaries as clients draw them, and some that are beginnings of others or made of dashes.
fn boundaries() -> impl Strategy<Value = String> {
    prop_oneof![
        3 => "----WebKitFormBoundary[a-zA-Z0-9]{16}",
        3 => "[0-9a-f]{32}",
        1 => "-{24}[0-9]{12}",
        2 => prop::sample::select(vec!["a", "aa", "a--", "-", "--", "a-", "-a", "a'()+_,-./:=?"]).prop_map(str::to_owned),
    ]
}

fn heads() -> impl Strategy<Value = String> {
    let line = prop::sample::select(vec![
        "Content-Disposition: form-data; name=\"a\"",
        "Content-Disposition: form-data; name=\"b\"",
        "Content-Disposition: form-data; name=\"a\"; filename=\"\u{e9}.pdf\"",
        "Content-Type: application/pdf",
        "content-type: application/pdf",
        "X:",
    ]);
    vec(line, 0..3).prop_map(|lines| lines.join("\r\n"))
}

fn contents() -> impl Strategy<Value = Vec<u8>> {
    let word = prop::sample::select(vec![
        &b"x"[..],
        b"y",
        b"\r\n",
        b"\n",
        b"\r",
        b"--",
        b"-",
        b"a",
        b"\x00\xff",
        b"\r\n\r\n",
        b"X: y",
    ]);
    vec(word, 0..6).prop_map(|words| words.concat())
}

fn forms() -> impl Strategy<Value = Parts> {
    let end = prop::sample::select(vec![&b"--"[..], b"--\r\n"]).prop_map(<[u8]>::to_vec);
    (vec((heads(), contents()), 0..4), end)
}

/// What may not stand just anywhere in a form.
fn odd_words() -> impl Strategy<Value = &'static [u8]> {
    prop::sample::select(vec![
        &b"\r\n"[..],
        b"\n",
        b"\r",
        b"\n\r\n",
        b"--",
        b"-",
        b" ",
        b"\x00",
        b"\r\nX: y",
        b"\nX: y",
        b"\r\n X: y",
        b"X: multiPart/mixed\r\n",
        b"x",
    ])
}

/// Whether the product reads an upload as a form.
fn is_read(upload: &Upload) -> bool {
    Form::read(upload.boundary.as_bytes(), &upload.body).is_some()
}

/// Bodies put together from the words of forms, most of them odd, and many of them nearly a form.
fn odd_uploads() -> impl Strategy<Value = Upload> {
    let word = prop::sample::select(vec![
        &b"--a"[..],
        b"--a\r\n",
        b"\r\n--a",
        b"\r\n--a\r\n\r\n",
        b"--aa\r\n",
        b"--",
        b"\r\n",
        b"\r\n\r\n",
        b"\n",
        b"\r",
        b" ",
        b"a",
        b"x",
        b"X: y",
        b"X: y\r\n\r\n",
        b"X:\x00",
        b"X y",
        b"X: multiPart/mixed",
        b": y",
        b"\r\n--a--",
        b"\r\n--a--\r\n",
    ]);
    let boundary = prop::sample::select(vec!["a", "aa", "-a", "x"]);
    (boundary, vec(word, 0..9), any::<bool>(), any::<bool>()).prop_map(
        |(boundary, words, begins, ends)| {
            let begin = if begins { "--a\r\n" } else { "" };
            let end = if ends { "\r\n--a--\r\n" } else { "" };
            let body = [begin.as_bytes(), &words.concat(), end.as_bytes()].concat();
            Upload { boundary: boundary.to_owned(), body }
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_000))]

    #[test]
    fn one_form_has_one_fingerprint_under_every_boundary(form in forms(), one in boundaries(), other in boundaries()) {
        let (one, other) = (write(&one, &form), write(&other, &form));
        prop_assert_eq!(print(&one) == print(&other), same(&one, &other), "{:?} {:?}", one, other);
        // Boundaries as clients draw them never occur in contents, so those must be read.
        if one.boundary.len() > 20 {
            prop_assert_eq!(judge(&one), Some(form), "the judge reads what was written");
            prop_assert!(is_read(&one));
        }
    }

    #[test]
    fn other_forms_have_other_fingerprints(left in forms(), right in forms(), one in boundaries(), other in boundaries()) {
        let (left, right) = (write(&one, &left), write(&other, &right));
        prop_assert_eq!(print(&left) == print(&right), same(&left, &right), "{:?} {:?}", left, right);
    }

    #[test]
    fn one_changed_byte_is_judged_right(form in forms(), boundary in boundaries(), at: prop::sample::Index, to in prop_oneof![prop::sample::select(b"\r\n-a: \x00".to_vec()), any::<u8>()]) {
        let upload = write(&boundary, &form);
        let mut other = upload.clone();
        let at = at.index(other.body.len());
        other.body[at] = to;
        prop_assert_eq!(print(&upload) == print(&other), same(&upload, &other), "{:?} {:?}", upload, other);
        // One byte less is another form as well.
        let mut shorter = upload.clone();
        shorter.body.remove(at);
        prop_assert_eq!(print(&upload) == print(&shorter), same(&upload, &shorter), "{:?} {:?}", upload, shorter);
    }

    /// Nothing may move unseen from a header line to a content, or from one part to the next.
    #[test]
    fn a_byte_that_moves_is_seen(form in forms(), boundary in boundaries(), from: prop::sample::Index) {
        let (parts, end) = &form;
        if let Some(from) = (!parts.is_empty()).then(|| from.index(parts.len()))
            && let Some((first, rest)) = parts[from].1.split_first()
        {
            let mut into_head = parts.clone();
            into_head[from] = (format!("{}{}", parts[from].0, char::from(*first)), rest.to_vec());
            let mut into_former = parts.clone();
            into_former[from].1 = rest.to_vec();
            into_former[from.saturating_sub(1)].1.push(*first);
            let upload = write(&boundary, &form);
            for moved in [into_head, into_former] {
                let moved = write(&boundary, &(moved, end.clone()));
                prop_assert_eq!(print(&upload) == print(&moved), same(&upload, &moved), "{:?} {:?}", upload, moved);
            }
        }
    }

    /// A form into which one word was put or from which a few bytes were taken is read exactly when the judge says so, and so
    /// is one with a delimiter too many, in the middle of a line or at the beginning of one.
    #[test]
    fn a_damaged_form_is_judged_right(form in forms(), boundary in boundaries(), at: prop::sample::Index, word in odd_words(), cut_bytes in 0..5usize) {
        let upload = write(&boundary, &form);
        let at = at.index(upload.body.len() + 1);
        let (before, after) = upload.body.split_at(at);
        let delimiter = format!("--{boundary}");
        let line = format!("\r\n--{boundary}\r\n\r\n");
        for insertion in [word, delimiter.as_bytes(), line.as_bytes(), format!("{delimiter}\r\n\r\n").as_bytes()] {
            let damaged = Upload { boundary: boundary.clone(), body: [before, insertion, after].concat() };
            prop_assert_eq!(is_read(&damaged), judge(&damaged).is_some(), "{:?}", damaged);
            prop_assert_eq!(print(&upload) == print(&damaged), same(&upload, &damaged), "{:?} {:?}", upload, damaged);
        }
        let shorter = Upload { boundary, body: [before, after.get(cut_bytes..).unwrap_or_default()].concat() };
        prop_assert_eq!(is_read(&shorter), judge(&shorter).is_some(), "{:?}", shorter);
    }

    #[test]
    fn odd_bodies_are_read_exactly_when_the_judge_says_so(left in odd_uploads(), right in odd_uploads()) {
        prop_assert_eq!(is_read(&left), judge(&left).is_some(), "{:?}", left);
        // The same text with another boundary in its place, and the same body under another media type.
        let text: Vec<u8> = cut(&left.body, b"a").join(&b"b"[..]);
        let renamed = Upload { boundary: left.boundary.replace('a', "b"), body: text };
        let elsewhere = Upload { boundary: right.boundary.clone(), ..left.clone() };
        let longer = Upload { body: [left.body.as_slice(), b"\r\n"].concat(), ..left.clone() };
        for other in [&right, &renamed, &elsewhere, &longer] {
            prop_assert_eq!(print(&left) == print(other), same(&left, other), "{:?} {:?}", left, other);
        }
    }

    #[test]
    fn a_boundary_and_a_form_give_the_body_back(upload in odd_uploads()) {
        if let Some(form) = Form::read(upload.boundary.as_bytes(), &upload.body) {
            let parts = form.parts.iter().map(|part| {
                (part.head.iter().copied().map(char::from).collect(), part.content.to_vec())
            });
            let end = if form.ends_with_line { &b"--\r\n"[..] } else { b"--" };
            prop_assert_eq!(write(&upload.boundary, &(parts.collect(), end.to_vec())), upload);
        }
    }
}

/// The bodies of five clients, each sent twice: as a browser, `curl -F`, Python's `requests`, Node's `FormData` and .NET write them.
#[test]
fn clients_of_every_kind_can_repeat_an_upload() {
    let with = |content_type: &str, body: String| {
        let headers = HeaderMap::from_iter([(
            header::CONTENT_TYPE,
            HeaderValue::from_str(content_type).unwrap(),
        )]);
        // Pointers are about JSON, and say nothing about a form.
        Rules::default().exclude(Pointer::parse("/a").unwrap()).print(&Request {
            method: "POST",
            authority: "api.example",
            path_and_query: "/",
            headers: &headers,
            body: body.as_bytes(),
        })
    };
    let plain = |b: &str| {
        format!(
            "--{b}\r\nContent-Disposition: form-data; name=\"a\"\r\n\r\n1\r\n--{b}\r\nContent-Disposition: form-data; name=\"f\"; filename=\"f.txt\"\r\nContent-Type: text/plain\r\n\r\nline\nline\n\r\n--{b}--"
        )
    };
    for (one, other) in [
        ("----WebKitFormBoundary7MA4YWxkTrZu0gW1", "----WebKitFormBoundaryAbCdEfGhIjKlMnOp"),
        ("------------------------d74496d66958873e", "------------------------0123456789abcdef"),
        ("f1e2d3c4b5a697887766554433221100", "00112233445566778899aabbccddeeff"),
        ("----formdata-undici-012345678901", "----formdata-undici-998877665544"),
    ] {
        for end in ["", "\r\n"] {
            let of = |b: &str| with(&format!("multipart/form-data; boundary={b}"), plain(b) + end);
            assert_eq!(of(one), of(other), "{one}");
        }
    }
    let quoted = |b: &str| with(&format!("multipart/form-data; boundary=\"{b}\""), plain(b));
    assert_eq!(quoted("5f0c1a9e-6a7b-4c1d"), quoted("8e03978e-40d5-43dd"));
}
