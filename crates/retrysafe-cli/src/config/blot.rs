//! How much of an address may everybody see who may see the settings?
//!
//! An address can be a credential: a path that nobody else knows, a token in a query, a password before the host. Whoever may read the
//! settings need not be the one who may use them.

/// What stands for something that is not shown.
const BLOT: &str = "…";

/// The server of a URL. That there was more is shown, and no more than that.
pub(super) fn server_only(url: &str) -> String {
    let (scheme, server, rest) = parts(url);
    match rest {
        // `https:` alone stands for every host.
        _ if scheme.is_empty() => url.into(),
        "" | "/" => format!("{scheme}{server}{rest}"),
        _ => format!("{scheme}{server}/{BLOT}"),
    }
}

/// A URL, or the path of one, with the values in its query blotted out. Where a template stands for a value, the template is
/// shown.
pub(super) fn without_values(url: &str) -> String {
    let (scheme, server, rest) = parts(url);
    let Some((path, query)) = rest.split_once('?') else {
        return format!("{scheme}{server}{rest}");
    };
    let pairs: Vec<String> = query.split('&').map(without_value).collect();
    format!("{scheme}{server}{path}?{}", pairs.join("&"))
}

fn without_value(pair: &str) -> String {
    match pair.split_once('=') {
        Some((name, value)) if !is_template(value) => format!("{name}={BLOT}"),
        None if !is_template(pair) => BLOT.into(),
        Some(_) | None => pair.into(),
    }
}

/// Such as `{downstream_key}`, and nothing beside it.
fn is_template(value: &str) -> bool {
    let inner = value.strip_prefix('{').and_then(|value| value.strip_suffix('}'));
    inner.is_some_and(|inner| !inner.contains(['{', '}']))
}

/// A URL's scheme, its host and port, and all the rest; without a name and a password before the host.
fn parts(url: &str) -> (&str, &str, &str) {
    let Some((scheme, after)) =
        url.find("://").and_then(|at| url.split_at_checked(at + "://".len()))
    else {
        return ("", "", url);
    };
    let end = after.find(['/', '?', '#']).unwrap_or(after.len());
    let (server, rest) = after.split_at_checked(end).unwrap_or((after, ""));
    let host = server.rsplit_once('@').map_or(server, |(_, host)| host);
    (scheme, host, rest)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_a_receiver_only_the_server_is_shown() {
        for (url, shown) in [
            ("https://hooks.example/T0/secret?x=1", "https://hooks.example/…"),
            ("https://hooks.example?token=secret", "https://hooks.example/…"),
            ("https://hooks.example#secret", "https://hooks.example/…"),
            ("https://anna:secret@hooks.example:8443/", "https://hooks.example:8443/"),
            ("https://hooks.example/", "https://hooks.example/"),
            ("https://hooks.example", "https://hooks.example"),
            ("https:", "https:"),
        ] {
            assert_eq!(server_only(url), shown);
        }
    }

    #[test]
    fn of_a_query_only_names_and_templates_are_shown() {
        for (url, shown) in [
            (
                "https://api.bank/find?api_key=secret&ref={id}",
                "https://api.bank/find?api_key=…&ref={id}",
            ),
            ("/find?secret&id={id}", "/find?…&id={id}"),
            ("/find/{id}?key=secret{id}", "/find/{id}?key=…"),
            ("https://anna:secret@id.example/jwks", "https://id.example/jwks"),
            ("https://id.example/jwks.json", "https://id.example/jwks.json"),
            ("/healthz", "/healthz"),
        ] {
            assert_eq!(without_values(url), shown);
        }
    }
}
