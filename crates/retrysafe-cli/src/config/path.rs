//! Is this the path of a route, or a pattern of another language?
//!
//! Routes are written `/orders/{id}` and `/files/{*rest}`. The patterns of other programs (`/v1/*`,
//! `/orders/:id`, `<id>`, `{id:[0-9]+}`) would be taken literally, match no request, and guard
//! nothing. They are refused, with the right spelling.

/// Checks a path as it stands in a `[[route]]`.
///
/// # Errors
///
/// What is wrong with it, and how it is mended.
pub(super) fn check(path: &str) -> Result<(), String> {
    if !path.starts_with('/') {
        return Err(format!("{path:?} does not begin with a slash"));
    }
    if path.contains(['?', '#']) {
        return Err(format!(
            "{path:?} has a query or a fragment; a route is found by its path alone"
        ));
    }
    for (at, segment) in path.split('/').enumerate() {
        let is_last = at == path.matches('/').count();
        check_segment(segment, is_last).map_err(|what| format!("{path:?}: {what}"))?;
    }
    Ok(())
}

fn check_segment(segment: &str, is_last: bool) -> Result<(), String> {
    if matches!(segment, "." | "..") {
        return Err(format!("{segment:?} is resolved before routes are looked up; leave it out"));
    }
    if let Some(name) = segment.strip_prefix(':') {
        return Err(format!("{segment:?} would be taken literally; write {{{name}}}"));
    }
    let mut rest = segment;
    while let Some((literal, after)) = rest.split_once('{') {
        check_literal(literal, segment, is_last)?;
        let Some((name, after)) = after.split_once('}') else {
            return Err(format!("{segment:?} has a brace that is not closed"));
        };
        check_name(name, segment)?;
        rest = after;
    }
    check_literal(rest, segment, is_last)
}

/// The part of a segment outside of braces.
fn check_literal(literal: &str, segment: &str, is_last: bool) -> Result<(), String> {
    if literal.contains('*') {
        let cure = if is_last { "{*rest}" } else { "{name}" };
        return Err(format!("{segment:?} would be taken literally; write {cure}"));
    }
    if let Some(odd) = literal.chars().find(|c| "<>[]}^|`\"".contains(*c)) {
        return Err(format!(
            "{odd:?} does not stand in a path; write {{name}} for a segment that varies"
        ));
    }
    Ok(())
}

/// The name between braces.
fn check_name(name: &str, segment: &str) -> Result<(), String> {
    let bare = name.strip_prefix('*').unwrap_or(name);
    let is_name =
        !bare.is_empty() && bare.chars().all(|c| c.is_ascii_alphanumeric() || "_-".contains(c));
    if is_name {
        Ok(())
    } else {
        Err(format!(
            "{segment:?} has no plain name in its braces; write {{name}} for one segment and {{*rest}} for \
             everything from there on"
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_of_other_languages_are_refused_with_their_cure() {
        for (path, cure) in [
            ("/v1/*", "{*rest}"),
            ("/v1/**", "{*rest}"),
            ("/v1/*/refunds", "{name}"),
            ("/v1/.*", "{*rest}"),
            ("/orders/:id", "{id}"),
            ("/orders/:id/items", "{id}"),
            ("/orders/<id>", "{name}"),
            ("/orders/<int:id>", "{name}"),
            ("/orders/{id:[0-9]+}", "{name}"),
            ("/orders/{rest:path}", "{*rest}"),
            ("/orders/{**rest}", "{*rest}"),
            ("/orders/{rest...}", "{*rest}"),
            ("/orders/{}", "{name}"),
            ("/orders/[id]", "{name}"),
            ("/orders/{id", "not closed"),
            ("orders", "slash"),
            ("/orders?x=1", "query"),
            ("/a/../b", "leave it out"),
        ] {
            let told = check(path).unwrap_err();
            assert!(told.contains(cure) && told.contains(path), "{path}: {told}");
        }
    }

    #[test]
    fn paths_of_routes_pass() {
        for path in [
            "/",
            "/orders",
            "/orders/",
            "/orders/{id}",
            "/v1/{*rest}",
            "/a/{id}.json",
            "/v1/things:cancel",
            "/a/@me/~x",
        ] {
            assert_eq!(check(path), Ok(()), "{path}");
        }
    }
}
