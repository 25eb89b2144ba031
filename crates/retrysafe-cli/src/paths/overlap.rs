//! Can one request be meant by two patterns?
//!
//! Segments are compared from the left, without regard to case, and a slash at the end makes no difference, as in `patterns`. Where a
//! segment is partly a parameter (`v{number}`), the answers keep to the side on which nothing is overlooked: such a segment may be met by
//! every other one, and stands for no other one as a whole.

/// Whether some path fits both patterns.
pub(crate) fn overlap(one: &str, other: &str) -> bool {
    let mut ones = segments(one);
    let mut others = segments(other);
    loop {
        match (ones.next(), others.next()) {
            (Some(one), _) if is_rest(one) => return true,
            (_, Some(other)) if is_rest(other) => return true,
            (None, None) => return true,
            (Some(one), Some(other)) if may_meet(one, other) => {}
            (Some(_), _) | (None, Some(_)) => return false,
        }
    }
}

/// Whether every path of a pattern fits this one, too.
pub(crate) fn covers(wide: &str, narrow: &str) -> bool {
    let mut wides = segments(wide);
    let mut narrows = segments(narrow);
    loop {
        match (wides.next(), narrows.next()) {
            (Some(wide), _) if is_rest(wide) => return true,
            (None, None) => return true,
            (Some(_), Some(narrow)) if is_rest(narrow) => return false,
            (Some(wide), Some(narrow)) if is_parameter(wide) || is_same(wide, narrow) => {}
            (Some(_), _) | (None, Some(_)) => return false,
        }
    }
}

fn segments(pattern: &str) -> impl Iterator<Item = &str> {
    pattern.split('/').filter(|segment| !segment.is_empty())
}

/// Whether it stands for everything from there on, and for nothing.
fn is_rest(segment: &str) -> bool {
    segment.starts_with("{*")
}

/// Whether it stands for every segment.
fn is_parameter(segment: &str) -> bool {
    let name = segment.strip_prefix('{').and_then(|name| name.strip_suffix('}'));
    name.is_some_and(|name| !name.contains(['{', '}']))
}

fn is_same(one: &str, other: &str) -> bool {
    let is_literal = !one.contains('{') && !other.contains('{');
    is_literal && one.eq_ignore_ascii_case(other)
}

fn may_meet(one: &str, other: &str) -> bool {
    one.contains('{') || other.contains('{') || is_same(one, other)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_overlap_where_a_path_fits_both() {
        for (one, other, is_so) in [
            ("/a", "/a", true),
            ("/a", "/A/", true),
            ("/a", "/b", false),
            ("/a", "/a/b", false),
            ("/a/{id}", "/a/b", true),
            ("/a/{id}", "/{x}/b", true),
            ("/a/{id}", "/b/{id}", false),
            ("/a/{id}/c", "/a/b", false),
            ("/a/v{n}", "/a/w", true),
            ("/a/{*rest}", "/a", true),
            ("/a/{*rest}", "/a/b/c", true),
            ("/a/{*rest}", "/ab", false),
            ("/a/{*rest}", "/{x}/b", true),
            ("/{*rest}", "/", true),
        ] {
            assert_eq!(overlap(one, other), is_so, "{one} {other}");
            assert_eq!(overlap(other, one), is_so, "{other} {one}");
        }
    }

    #[test]
    fn a_pattern_covers_another_where_every_path_fits() {
        for (wide, narrow, is_so) in [
            ("/a", "/A/", true),
            ("/a/{id}", "/a/b", true),
            ("/a/{id}", "/a/{name}", true),
            ("/a/{id}", "/a/v{n}", true),
            ("/a/b", "/a/{id}", false),
            ("/a/v{n}", "/a/v{n}", false),
            ("/a/{*rest}", "/a", true),
            ("/a/{*rest}", "/a/{id}/c", true),
            ("/a/{*rest}", "/a/{*other}", true),
            ("/a/{*rest}", "/{*rest}", false),
            ("/a/{id}", "/a/{*rest}", false),
            ("/a", "/a/{*rest}", false),
            ("/a/{*rest}", "/ab", false),
            ("/a/b", "/a", false),
        ] {
            assert_eq!(covers(wide, narrow), is_so, "{wide} {narrow}");
        }
    }
}
