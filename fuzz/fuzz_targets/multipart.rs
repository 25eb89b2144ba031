//! Does a form give its body back, and does one with another boundary count as the same form?
//!
//! The first line of the input is the `Content-Type`, the rest is the body.

#![no_main]

use http::{HeaderMap, HeaderValue, header};
use libfuzzer_sys::fuzz_target;
use retrysafe_core::fingerprint::multipart::{Form, FormType};
use retrysafe_core::fingerprint::{Fingerprint, Request, Rules};

fuzz_target!(|input: &[u8]| {
    let (content_type, body) = match input.iter().position(|byte| *byte == b'\n') {
        Some(end) => (&input[..end], &input[end + 1..]),
        None => (&b"multipart/form-data; boundary=b"[..], input),
    };
    let Ok(value) = HeaderValue::from_bytes(content_type) else { return };
    let first = print(&value, body);
    let Some(form_type) = FormType::read(content_type) else { return };
    let boundary = form_type.boundary();
    let Some(form) = Form::read(boundary, body) else { return };
    assert_eq!(write(boundary, &form), body, "nothing is lost");

    // A boundary that does not occur in the form may stand in the place of the first one.
    let other = b"another-boundary-0123456789";
    let elsewhere = write(other, &form);
    if let Some(again) = Form::read(other, &elsewhere) {
        assert_eq!(again, form);
        let plain = HeaderValue::from_static("multipart/form-data; boundary=another-boundary-0123456789");
        let is_plain = !content_type.trim_ascii_end().contains(&b'"')
            && content_type.iter().filter(|byte| **byte == b';').count() == 1;
        if is_plain {
            assert_eq!(print(&plain, &elsewhere), first, "the boundary alone has changed");
        }
    }
    // One byte more is another request, whatever is made of it.
    for end in [&b"x"[..], b"\r\n", b"\n", b"--"] {
        assert_ne!(print(&value, &[body, end].concat()), first);
    }
});

fn print(content_type: &HeaderValue, body: &[u8]) -> Fingerprint {
    let headers = HeaderMap::from_iter([(header::CONTENT_TYPE, content_type.clone())]);
    Rules::default().print(&Request {
        method: "POST",
        authority: "api.example",
        path_and_query: "/",
        headers: &headers,
        body,
    })
}

fn write(boundary: &[u8], form: &Form<'_>) -> Vec<u8> {
    let mut body = Vec::new();
    for part in &form.parts {
        body.extend([b"--", boundary, b"\r\n", part.head].concat());
        body.extend(if part.head.is_empty() { &b"\r\n"[..] } else { b"\r\n\r\n" });
        body.extend([part.content, b"\r\n"].concat());
    }
    body.extend([b"--", boundary, b"--"].concat());
    body.extend(if form.ends_with_line { &b"\r\n"[..] } else { b"" });
    body
}
