//! Which of the fields that we look for does a request have?
//!
//! A look-up in a header map costs a hundred instructions, found or not, and a request has hardly any of the fields that decide what becomes
//! of it. So its names are read once, and only what is there is looked up.

use http::header::{self, HeaderMap, HeaderName};

/// The header that names one request in the logs of all who handle it.
pub(crate) const X_REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");

/// What a request has. Each is true if there is at least one field of the name.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct NamedFields {
    pub connection: bool,
    pub cookie: bool,
    pub expect: bool,
    pub origin: bool,
    pub request_id: bool,
    pub te: bool,
    pub transfer_encoding: bool,
    pub upgrade: bool,
}

impl NamedFields {
    pub(crate) fn of(headers: &HeaderMap) -> Self {
        let mut named = Self::default();
        for name in headers.keys() {
            match *name {
                header::CONNECTION => named.connection = true,
                header::COOKIE => named.cookie = true,
                header::EXPECT => named.expect = true,
                header::ORIGIN => named.origin = true,
                header::TE => named.te = true,
                header::TRANSFER_ENCODING => named.transfer_encoding = true,
                header::UPGRADE => named.upgrade = true,
                _ => named.request_id |= *name == X_REQUEST_ID,
            }
        }
        named
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::HeaderValue;

    #[test]
    fn each_field_is_noticed_among_others_and_by_itself() {
        type Place = fn(&mut NamedFields) -> &mut bool;
        let all: [(&str, Place); 8] = [
            ("connection", |named| &mut named.connection),
            ("cookie", |named| &mut named.cookie),
            ("expect", |named| &mut named.expect),
            ("origin", |named| &mut named.origin),
            ("x-request-id", |named| &mut named.request_id),
            ("te", |named| &mut named.te),
            ("transfer-encoding", |named| &mut named.transfer_encoding),
            ("upgrade", |named| &mut named.upgrade),
        ];
        for (name, place) in all {
            let mut headers = HeaderMap::new();
            for name in ["host", "x-other", name, "accept"] {
                headers.append(name, HeaderValue::from_static("1"));
            }
            let mut only = NamedFields::default();
            *place(&mut only) = true;
            assert_eq!(NamedFields::of(&headers), only, "{name}");
        }
        assert_eq!(NamedFields::of(&HeaderMap::new()), NamedFields::default());
    }
}
