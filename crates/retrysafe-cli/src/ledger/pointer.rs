//! What stands at a place of a JSON document, to the letter?
//!
//! Numbers are taken as they are written: read as floating-point numbers, 0.1 and 12345678901234567890 would be others.
//! A name that is there twice could be read in two ways, so it is refused.

use std::fmt;

use serde::de::{DeserializeSeed, Error as _, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::value::RawValue;

use super::quote::quoted;

/// Places to look at, all in one reading.
#[derive(Debug, Default)]
pub(super) struct Pointers {
    root: Node,
    count: usize,
}

#[derive(Debug, Default)]
struct Node {
    /// The numbers of the places that end here.
    wanted: Vec<usize>,
    children: Vec<(String, Node)>,
}

impl Pointers {
    /// Places by JSON pointer (`/data/id`), or by the name of a member (`id`).
    ///
    /// # Errors
    ///
    /// If one is no JSON pointer.
    pub(super) fn new<'a>(places: impl IntoIterator<Item = &'a str>) -> Result<Self, String> {
        let mut pointers = Self::default();
        for place in places {
            let mut node = &mut pointers.root;
            for name in names(place)? {
                let known = node.children.iter().position(|(child, _)| *child == name);
                let at = known.unwrap_or(node.children.len());
                if known.is_none() {
                    node.children.push((name, Node::default()));
                }
                let Some((_, child)) = node.children.get_mut(at) else { break };
                node = child;
            }
            node.wanted.push(pointers.count);
            pointers.count += 1;
        }
        Ok(pointers)
    }

    /// What stands at each place, as it is written; none where there is nothing.
    ///
    /// # Errors
    ///
    /// If the text is no JSON, or has a name twice on the way.
    pub(super) fn find<'a>(
        &self,
        text: &'a str,
    ) -> Result<Vec<Option<&'a RawValue>>, serde_json::Error> {
        let mut found = vec![None; self.count];
        walk(&self.root, text, &mut found)?;
        Ok(found)
    }

    /// The plain values at each place, as texts.
    ///
    /// # Errors
    ///
    /// The same; or if a list or an object stands there.
    pub(super) fn texts(&self, document: &str) -> Result<Vec<Option<String>>, String> {
        let found = self.find(document).map_err(|error| error.to_string())?;
        found.into_iter().map(|raw| raw.map_or(Ok(None), plain)).collect()
    }
}

/// The names of a pointer, one after the other.
fn names(place: &str) -> Result<Vec<String>, String> {
    if place.is_empty() {
        return Ok(Vec::new());
    }
    let Some(names) = place.strip_prefix('/') else { return Ok(vec![place.to_owned()]) };
    let unescaped = |name: &str| {
        let rest = name.replace("~0", "").replace("~1", "");
        if rest.contains('~') {
            return Err(format!(
                "{} is no JSON pointer: ~ is written ~0 in it, and / is ~1",
                quoted(place)
            ));
        }
        Ok(name.replace("~1", "/").replace("~0", "~"))
    };
    names.split('/').map(unescaped).collect()
}

/// A plain value as text; none for null.
pub(super) fn plain(raw: &RawValue) -> Result<Option<String>, String> {
    let text = raw.get();
    match text.as_bytes().first() {
        Some(b'"') => serde_json::from_str(text).map(Some).map_err(|error| error.to_string()),
        Some(b'{' | b'[') => Err(format!("{} is no plain value", quoted(text))),
        Some(b'n') | None => Ok(None),
        Some(_) => Ok(Some(text.to_owned())),
    }
}

fn walk<'a>(
    node: &Node,
    text: &'a str,
    found: &mut [Option<&'a RawValue>],
) -> Result<(), serde_json::Error> {
    if !node.wanted.is_empty() {
        let raw: &RawValue = serde_json::from_str(text)?;
        for place in &node.wanted {
            if let Some(slot) = found.get_mut(*place) {
                *slot = Some(raw);
            }
        }
    }
    if node.children.is_empty() {
        return Ok(());
    }
    let mut reading = serde_json::Deserializer::from_str(text);
    Walk { node, found }.deserialize(&mut reading)?;
    reading.end()
}

/// Goes through one object or list.
struct Walk<'n, 'f, 'a> {
    node: &'n Node,
    found: &'f mut [Option<&'a RawValue>],
}

impl<'a> DeserializeSeed<'a> for Walk<'_, '_, 'a> {
    type Value = ();

    fn deserialize<D: serde::Deserializer<'a>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'a> Visitor<'a> for Walk<'_, '_, 'a> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JSON")
    }

    fn visit_map<A: MapAccess<'a>>(self, mut map: A) -> Result<(), A::Error> {
        let mut seen = vec![false; self.node.children.len()];
        while let Some(at) = map.next_key_seed(ChildNamed(self.node))? {
            let Some((name, child)) = at.and_then(|at| self.node.children.get(at)) else {
                map.next_value::<IgnoredAny>()?;
                continue;
            };
            if let Some(seen) = at.and_then(|at| seen.get_mut(at))
                && std::mem::replace(seen, true)
            {
                return Err(A::Error::custom(format!("the name {} is there twice", quoted(name))));
            }
            let raw: &RawValue = map.next_value()?;
            walk(child, raw.get(), self.found).map_err(A::Error::custom)?;
        }
        Ok(())
    }

    fn visit_seq<A: SeqAccess<'a>>(self, mut items: A) -> Result<(), A::Error> {
        let mut at = 0_usize;
        while let Some(raw) = items.next_element::<&RawValue>()? {
            let number = at.to_string();
            if let Some((_, child)) = self.node.children.iter().find(|(name, _)| *name == number) {
                walk(child, raw.get(), self.found).map_err(A::Error::custom)?;
            }
            at += 1;
        }
        Ok(())
    }

    // Below a plain value there is nothing.

    fn visit_unit<E>(self) -> Result<(), E> {
        Ok(())
    }

    fn visit_bool<E>(self, _: bool) -> Result<(), E> {
        Ok(())
    }

    fn visit_i64<E>(self, _: i64) -> Result<(), E> {
        Ok(())
    }

    fn visit_u64<E>(self, _: u64) -> Result<(), E> {
        Ok(())
    }

    fn visit_f64<E>(self, _: f64) -> Result<(), E> {
        Ok(())
    }

    fn visit_str<E>(self, _: &str) -> Result<(), E> {
        Ok(())
    }
}

/// Which child of a node has the name that is read.
struct ChildNamed<'n>(&'n Node);

impl<'a> DeserializeSeed<'a> for ChildNamed<'_> {
    type Value = Option<usize>;

    fn deserialize<D: serde::Deserializer<'a>>(
        self,
        deserializer: D,
    ) -> Result<Self::Value, D::Error> {
        deserializer.deserialize_str(self)
    }
}

impl Visitor<'_> for ChildNamed<'_> {
    type Value = Option<usize>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a name")
    }

    fn visit_str<E>(self, name: &str) -> Result<Self::Value, E> {
        Ok(self.0.children.iter().position(|(child, _)| child == name))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(places: &[&str], document: &str) -> Result<Vec<Option<String>>, String> {
        Pointers::new(places.iter().copied()).unwrap().texts(document)
    }

    fn some(text: &str) -> Option<String> {
        Some(text.to_owned())
    }

    #[test]
    fn values_are_taken_to_the_letter() {
        let document = r#"{"id":"k\u00e4y","amount":12345678901234567890.10,"paid":true,"none":null,
            "data":{"a/b":[10,{"c~d":0.1}]},"other":{"x":[1,2]}}"#;
        let places = [
            "id",
            "/amount",
            "paid",
            "none",
            "absent",
            "/data/a~1b/1/c~0d",
            "/data/a~1b/0",
            "/id/x",
        ];
        let expected = [
            some("käy"),
            some("12345678901234567890.10"),
            some("true"),
            None,
            None,
            some("0.1"),
            some("10"),
            None,
        ];
        assert_eq!(texts(&places, document).unwrap(), expected);
        let items = Pointers::new(["/data", "/data/more"]).unwrap();
        let found = items.find(r#"{"data": {"more": false}}"#).unwrap();
        assert_eq!(found[0].unwrap().get(), r#"{"more": false}"#);
        assert_eq!(found[1].unwrap().get(), "false");
    }

    #[test]
    fn what_could_be_read_in_two_ways_is_refused() {
        assert!(texts(&["id"], r#"{"id":1,"id":2}"#).unwrap_err().contains("twice"));
        assert!(texts(&["id"], r#"{"id":{}}"#).unwrap_err().contains("no plain value"));
        assert!(texts(&["id"], r#"{"id":1"#).is_err(), "broken off");
        assert!(texts(&["id"], r#"{"id":1} {"id":2}"#).is_err(), "two documents");
        assert!(Pointers::new(["/a~b"]).unwrap_err().contains("~0"));
    }
}
