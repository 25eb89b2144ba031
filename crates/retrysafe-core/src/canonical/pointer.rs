//! Which parts of a document count?
//!
//! A [`Pointer`] (RFC 6901) names one value in a document. A [`Selection`] holds the pointers of a rule set as a tree,
//! so that a document is matched while it is read, one step per member, however many pointers there are.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use super::DEPTH_MAX;

/// A JSON pointer: the way from a document's root to one of its values.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Pointer {
    tokens: Vec<String>,
}

/// Why a text is not a JSON pointer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum PointerError {
    /// It is neither empty nor does it begin with `/`.
    NoLeadingSlash,
    /// A `~` is followed by something else than `0` or `1`.
    BadEscape,
    /// It has more steps than a canonical document has levels, so it could never name anything.
    TooDeep,
}

impl fmt::Display for PointerError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoLeadingSlash => f.write_str("a JSON pointer is empty or begins with `/`"),
            Self::BadEscape => {
                f.write_str("in a JSON pointer `~` is written `~0` and `/` is written `~1`")
            }
            Self::TooDeep => write!(f, "a JSON pointer has at most {DEPTH_MAX} steps"),
        }
    }
}

impl std::error::Error for PointerError {}

impl Pointer {
    /// Reads a pointer such as `/items/0/price`. The empty text names the whole document.
    pub fn parse(text: &str) -> Result<Self, PointerError> {
        if text.is_empty() {
            return Ok(Self { tokens: Vec::new() });
        }
        let steps = text.strip_prefix('/').ok_or(PointerError::NoLeadingSlash)?;
        let tokens = steps.split('/').map(unescape).collect::<Result<Vec<_>, _>>()?;
        if tokens.len() > DEPTH_MAX {
            return Err(PointerError::TooDeep);
        }
        Ok(Self { tokens })
    }

    /// The names and numbers on the way, from the root on.
    pub fn steps(&self) -> impl ExactSizeIterator<Item = &str> {
        self.tokens.iter().map(String::as_str)
    }

    /// Whether it names the whole document.
    pub fn is_root(&self) -> bool {
        self.tokens.is_empty()
    }
}

impl fmt::Display for Pointer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for token in &self.tokens {
            write!(f, "/{}", token.replace('~', "~0").replace('/', "~1"))?;
        }
        Ok(())
    }
}

fn unescape(token: &str) -> Result<String, PointerError> {
    let mut plain = String::with_capacity(token.len());
    let mut rest = token.chars();
    while let Some(next) = rest.next() {
        plain.push(match next {
            '~' => match rest.next() {
                Some('0') => '~',
                Some('1') => '/',
                _ => return Err(PointerError::BadEscape),
            },
            other => other,
        });
    }
    Ok(plain)
}

/// The parts of a document that count: the included subtrees, or everything, less the excluded ones.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Selection {
    include: BTreeSet<Pointer>,
    exclude: BTreeSet<Pointer>,
    root: Node,
}

/// One step of the pointers, and the steps after it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Node {
    included: bool,
    excluded: bool,
    /// An included value lies further down.
    leads_to_included: bool,
    children: BTreeMap<String, Node>,
}

/// Where the reader stands in a [`Selection`].
#[derive(Clone, Copy, Debug)]
pub(super) struct Place<'a> {
    node: Option<&'a Node>,
    /// This value lies in an included subtree.
    whole: bool,
}

/// What becomes of a value.
#[derive(Clone, Copy, Debug)]
pub(super) enum Verdict<'a> {
    Keep(Place<'a>),
    /// Only something inside may count: keep it if it is an object or an array.
    KeepIfContainer(Place<'a>),
    Drop,
}

impl Selection {
    /// Keeps only what is included. Without a call of this, everything is.
    #[must_use]
    pub fn include(mut self, pointer: Pointer) -> Self {
        let mut node = &mut self.root;
        for token in &pointer.tokens {
            node.leads_to_included = true;
            node = node.children.entry(token.clone()).or_default();
        }
        node.included = true;
        self.include.insert(pointer);
        self
    }

    /// Drops a value, together with its name if it is a member.
    #[must_use]
    pub fn exclude(mut self, pointer: Pointer) -> Self {
        let mut node = &mut self.root;
        for token in &pointer.tokens {
            node = node.children.entry(token.clone()).or_default();
        }
        node.excluded = true;
        self.exclude.insert(pointer);
        self
    }

    /// Every value counts.
    #[must_use]
    pub fn is_everything(&self) -> bool {
        self.include.is_empty() && self.exclude.is_empty()
    }

    /// The pointers given to [`Selection::include`], in order, each once.
    pub fn included(&self) -> impl ExactSizeIterator<Item = &Pointer> {
        self.include.iter()
    }

    /// The pointers given to [`Selection::exclude`], in order, each once.
    pub fn excluded(&self) -> impl ExactSizeIterator<Item = &Pointer> {
        self.exclude.iter()
    }

    pub(super) fn root(&self) -> Verdict<'_> {
        let outside = Place { node: None, whole: self.include.is_empty() };
        outside.enter(Some(&self.root))
    }
}

impl<'a> Place<'a> {
    /// Inside an object: the member of this name.
    pub(super) fn member(self, name: &str) -> Verdict<'a> {
        self.enter(self.node.and_then(|node| node.children.get(name)))
    }

    /// Inside an array: the element at this index.
    pub(super) fn element(self, index: u32) -> Verdict<'a> {
        let children = self.node.map(|node| &node.children).filter(|children| !children.is_empty());
        self.enter(children.and_then(|children| children.get(&index.to_string())))
    }

    fn enter(self, node: Option<&'a Node>) -> Verdict<'a> {
        if node.is_some_and(|node| node.excluded) {
            return Verdict::Drop;
        }
        let whole = self.whole || node.is_some_and(|node| node.included);
        let place = Place { node, whole };
        if whole {
            Verdict::Keep(place)
        } else if node.is_some_and(|node| node.leads_to_included) {
            Verdict::KeepIfContainer(place)
        } else {
            Verdict::Drop
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pointers_are_read_as_rfc_6901_writes_them() {
        let tokens = |text| Pointer::parse(text).unwrap().tokens;
        assert_eq!(tokens(""), Vec::<String>::new());
        assert_eq!(tokens("/"), [""]);
        assert_eq!(tokens("/a~1b/m~0n/~01/0/ "), ["a/b", "m~n", "~1", "0", " "]);
        assert_eq!(Pointer::parse("a"), Err(PointerError::NoLeadingSlash));
        assert_eq!(Pointer::parse("/~"), Err(PointerError::BadEscape));
        assert_eq!(Pointer::parse("/~2"), Err(PointerError::BadEscape));
        assert_eq!(Pointer::parse(&"/a".repeat(DEPTH_MAX + 1)), Err(PointerError::TooDeep));
    }

    #[test]
    fn a_pointer_prints_as_it_was_read() {
        for text in ["", "/", "/a~1b/m~0n/~01/0/ ", "//"] {
            assert_eq!(Pointer::parse(text).unwrap().to_string(), text);
        }
    }
}
