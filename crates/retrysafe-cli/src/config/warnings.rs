//! What is allowed, and yet most likely not meant?

use std::collections::BTreeMap;
use std::net::IpAddr;

use http::Uri;
use http::uri::Scheme;

use super::blot;
use super::environment;
use super::file::File;

/// A warning for each such thing.
pub(super) fn warnings(file: &File, variables: &BTreeMap<String, String>) -> Vec<String> {
    let mut warnings = environment::warnings(variables);
    let jwks_url = file.jwt.as_ref().and_then(|jwt| jwt.jwks_url.as_deref());
    if let Some(url) = jwks_url.filter(|url| is_open_to_others(url)) {
        warnings.push(format!(
            "`jwt.jwks_url`: {} is read without encryption: whoever stands in between can put a key \
             of their own in, and sign tokens in anybody's name; write https://",
            blot::without_values(url)
        ));
    }
    warnings
}

/// Whether others can change what a URL gives. What does not leave the machine nobody can.
fn is_open_to_others(url: &str) -> bool {
    let Ok(uri) = url.parse::<Uri>() else { return false };
    let host = uri.host().unwrap_or_default().trim_matches(['[', ']']);
    let is_loopback =
        host.parse::<IpAddr>().map_or(host.eq_ignore_ascii_case("localhost"), |address| {
            address.to_canonical().is_loopback()
        });
    uri.scheme() == Some(&Scheme::HTTP) && !is_loopback
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::JwtFile;

    #[test]
    fn keys_that_travel_in_the_open_are_warned_of() {
        let told = |url: &str| {
            let jwt = JwtFile { jwks_url: Some(url.into()), ..JwtFile::default() };
            let file = File { jwt: Some(jwt), ..File::default() };
            warnings(&file, &BTreeMap::new())
        };
        for url in ["http://id.example/keys", "HTTP://10.0.0.7:8080/keys", "http://[2001:db8::1]/"]
        {
            let told = told(url);
            assert!(told.len() == 1 && told[0].contains("`jwt.jwks_url`"), "{url}: {told:?}");
        }
        for url in [
            "https://id.example/keys",
            "http://127.0.0.1:8080/keys",
            "http://[::1]/keys",
            "http://localhost/keys",
        ] {
            assert_eq!(told(url), Vec::<String>::new(), "{url}");
        }
        assert_eq!(warnings(&File::default(), &BTreeMap::new()), Vec::<String>::new());
    }
}
