//! What is the one spelling of this JSON document, if it has one that loses nothing?
//!
//! RFC 8785 gives every JSON value one spelling: members sorted by UTF-16 code units, no spaces, numbers and escapes in
//! one form. [`canonical`] returns it, or `None` where it would lose meaning: a number that is not exactly
//! the double it prints as, a repeated member, a lone surrogate, nesting beyond [`DEPTH_MAX`], more than the
//! [`Bounds`], or a text that is not JSON at all. `None` is not an error: the caller takes the bytes as they are.
//!
//! ```
//! use retrysafe_core::canonical::canonicalise;
//!
//! let one = canonicalise(br#"{"b": [1.0, "\u00e9"], "a": null}"#);
//! assert_eq!(one.as_deref(), Some(r#"{"a":null,"b":[1,"é"]}"#.as_bytes()));
//! assert_eq!(canonicalise(b"9007199254740993"), None);
//! ```
//!
//! How it works. The text is read once, without recursion. Most of it is canonical already, so nothing is copied
//! until something differs: `run` marks where the stretch began that can be taken as it stands, and a space, an
//! escape or a number that is spelt differently ends the stretch. Objects whose members are out of
//! order are not rearranged on the spot; they are noted, and the whole document is written once at the end (`arrange.rs`).
//!
//! Cost on hostile input: linear, except for sorting the members of one object, which is n log n. Memory is bounded by the
//! size of the text (`1e20` grows to 21 digits; nothing grows more).

mod arrange;
mod number;
mod pointer;
mod skip;
mod string;

use std::borrow::Cow;

use self::arrange::{Arrangement, Name, Opened};
use self::number::Numbers;
use self::pointer::{Place, Verdict};
pub use self::pointer::{Pointer, PointerError, Selection};
use self::string::Escape;

/// Objects and arrays inside each other. Common parsers give up at about this depth, and the arrangement at the end
/// recurses once per level.
pub const DEPTH_MAX: usize = 128;

/// A longer text is never canonicalised: positions are kept in 32 bits, and a spelling can grow.
const TEXT_BYTES_MAX: usize = (u32::MAX / 8) as usize;

/// How much of a document is worth canonicalising. What is larger is taken as raw bytes.
///
/// Both bounds measure the canonical form, so that two spellings of one document never fall on different sides.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bounds {
    /// Members of all objects together. Each costs about 32 bytes of memory while the document is read.
    pub members_max: u32,
    /// Bytes of the canonical form.
    pub bytes_max: u32,
}

impl Default for Bounds {
    /// A million members and 16 MiB: more than any API accepts in a request that someone would retry.
    fn default() -> Self {
        Self { members_max: 1 << 20, bytes_max: 16 << 20 }
    }
}

/// The canonical form of the selected parts of a JSON text, or `None` if it would lose meaning.
///
/// Parts that are not selected must be JSON, but may be anything within it: a number too large for a double is no
/// reason to fall back to raw bytes if it does not count. A member that does not count may even be repeated.
#[must_use]
pub fn canonical<'a>(
    text: &'a [u8],
    selection: &Selection,
    bounds: Bounds,
) -> Option<Cow<'a, [u8]>> {
    read(text, selection, bounds, Numbers::Exact)
}

/// The canonical form of a whole JSON text within the default [`Bounds`], or `None` if it would lose meaning.
#[must_use]
pub fn canonicalise(text: &[u8]) -> Option<Vec<u8>> {
    canonical(text, &Selection::default(), Bounds::default()).map(Cow::into_owned)
}

/// As [`canonicalise`], but rounds numbers to doubles and turns `-0` into `0`, which is what RFC 8785 itself asks.
///
/// Two different amounts can come out alike, so this is for comparison with other implementations only.
#[must_use]
pub fn canonicalise_rounding(text: &[u8]) -> Option<Vec<u8>> {
    read(text, &Selection::default(), Bounds::default(), Numbers::Rounded).map(Cow::into_owned)
}

/// The canonical spelling of a double, or `None` for an infinity or NaN, which JSON cannot say.
#[must_use]
pub fn number(value: f64) -> Option<String> {
    value.is_finite().then(|| ryu_js::Buffer::new().format_finite(value).to_owned())
}

fn read<'a>(
    text: &'a [u8],
    selection: &Selection,
    bounds: Bounds,
    numbers: Numbers,
) -> Option<Cow<'a, [u8]>> {
    if text.len() > TEXT_BYTES_MAX {
        return None;
    }
    let valid = str::from_utf8(text).ok()?;
    let reader = Reader {
        text: valid,
        bytes: text,
        at: 0,
        run: 0,
        out: Vec::new(),
        frame: Frame::root(),
        outer: Vec::with_capacity(8),
        arrangement: Arrangement::new(valid),
        members_left: bounds.members_max,
        numbers,
        place: None,
    };
    let form = reader.document((!selection.is_everything()).then_some(selection))?;
    (form.len() <= bounds.bytes_max as usize).then_some(form)
}

/// Reads one document.
struct Reader<'a, 's> {
    text: &'a str,
    bytes: &'a [u8],
    at: usize,
    /// From here up to `at` the text is canonical and not yet copied.
    run: usize,
    /// What was written before `run`. Empty as long as the text has been canonical from its first byte.
    out: Vec<u8>,
    /// The innermost open object or array, and those around it.
    frame: Frame<'s>,
    outer: Vec<Frame<'s>>,
    arrangement: Arrangement<'a>,
    members_left: u32,
    numbers: Numbers,
    /// Where the value to be read next stands in the selection; `None` if everything counts, as it mostly does.
    place: Option<Place<'s>>,
}

/// An open object or array.
#[derive(Clone, Copy)]
struct Frame<'s> {
    kind: Kind,
    /// Some member or element was kept.
    kept_any: bool,
    /// Elements read so far.
    elements: u32,
    opened: Opened,
    place: Option<Place<'s>>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// Not a container: the document itself.
    Root,
    Object,
    Array,
}

/// What is expected next.
enum Next {
    Value,
    /// The comma or the bracket after a value, or the end of the document.
    After,
    End,
}

impl Frame<'_> {
    fn root() -> Self {
        Self {
            kind: Kind::Root,
            kept_any: false,
            elements: 0,
            opened: Opened::default(),
            place: None,
        }
    }
}

impl<'a, 's> Reader<'a, 's> {
    fn document(mut self, selection: Option<&'s Selection>) -> Option<Cow<'a, [u8]>> {
        self.at = skip::space(self.bytes, self.at);
        self.run = self.at;
        if let Some(selection) = selection {
            let verdict = selection.root();
            if matches!(verdict, Verdict::Drop) {
                let end = skip::value(self.bytes, self.at, DEPTH_MAX)?;
                let ended = skip::space(self.bytes, end) == self.bytes.len();
                return ended.then_some(Cow::Borrowed(&[]));
            }
            if !self.keep(verdict) {
                // Nothing can be picked out of a bare string or number, so its bytes are the better answer.
                return None;
            }
        }
        let mut next = Next::Value;
        loop {
            next = match next {
                Next::Value => self.value()?,
                Next::After => self.after()?,
                Next::End => return self.finish(),
            };
        }
    }

    /// Reads a scalar, or the beginning of an object or array.
    #[inline]
    fn value(&mut self) -> Option<Next> {
        match self.peek()? {
            b'"' => {
                self.string()?;
            }
            b'{' => return self.open_object(),
            b'[' => return self.open_array(),
            b't' => self.at = skip::literal(self.bytes, self.at, b"true")?,
            b'f' => self.at = skip::literal(self.bytes, self.at, b"false")?,
            b'n' => self.at = skip::literal(self.bytes, self.at, b"null")?,
            _ => self.number()?,
        }
        Some(Next::After)
    }

    fn open_object(&mut self) -> Option<Next> {
        let opened = self.arrangement.open(self.position());
        self.enter(Kind::Object, opened)?;
        if self.peek()? == b'}' {
            return self.close_object(self.position());
        }
        self.member(self.position())
    }

    fn open_array(&mut self) -> Option<Next> {
        self.enter(Kind::Array, Opened::default())?;
        if self.peek()? == b']' {
            return self.leave();
        }
        self.element(self.position())
    }

    /// Steps past the opening bracket.
    fn enter(&mut self, kind: Kind, opened: Opened) -> Option<()> {
        if self.outer.len() == DEPTH_MAX {
            return None;
        }
        let place = self.place;
        let inner = Frame { kind, kept_any: false, elements: 0, opened, place };
        self.outer.push(std::mem::replace(&mut self.frame, inner));
        self.at += 1;
        self.space();
        Some(())
    }

    /// Steps past the closing bracket.
    fn leave(&mut self) -> Option<Next> {
        self.at += 1;
        self.frame = self.outer.pop()?;
        Some(Next::After)
    }

    fn close_object(&mut self, end: u32) -> Option<Next> {
        self.arrangement.close(self.frame.opened, end)?;
        self.leave()
    }

    /// Goes on after a value.
    #[inline]
    fn after(&mut self) -> Option<Next> {
        if self.frame.kind == Kind::Root {
            // The form ends here, and `at` stays: what follows is only looked at.
            let ended = skip::space(self.bytes, self.at) == self.bytes.len();
            return ended.then_some(Next::End);
        }
        self.space();
        let mark = self.position();
        match (self.frame.kind, self.peek()?) {
            (Kind::Object, b',') => {
                self.arrangement.end_member(self.frame.opened, mark);
                self.comma();
                self.member(mark)
            }
            (Kind::Array, b',') => {
                self.comma();
                self.element(mark)
            }
            (Kind::Object, b'}') => self.close_object(mark),
            (Kind::Array, b']') => self.leave(),
            _ => None,
        }
    }

    #[inline]
    fn comma(&mut self) {
        self.at += 1;
        if !self.frame.kept_any {
            // Everything before this comma was dropped and the run begins with it: there is nothing to divide.
            self.run = self.at;
        }
        self.space();
    }

    /// Reads a member up to its value. `mark` is where the form ends if the member does not count.
    #[inline]
    fn member(&mut self, mark: u32) -> Option<Next> {
        let start = self.position();
        let quote = self.at;
        if self.peek()? != b'"' {
            return None;
        }
        let escaped = self.string()?;
        let name = Name { start: quote + 1, end: self.at - 1, escaped };
        self.space();
        if self.peek()? != b':' {
            return None;
        }
        self.at += 1;
        self.space();
        if let Some(place) = self.frame.place
            && !self.keep_member(place, name)?
        {
            return self.drop_value(mark);
        }
        self.members_left = self.members_left.checked_sub(1)?;
        self.frame.kept_any = true;
        self.arrangement.begin_member(&mut self.frame.opened, name, start)?;
        Some(Next::Value)
    }

    /// Stands before an element. `mark` is where the form ends if the element does not count.
    #[inline]
    fn element(&mut self, mark: u32) -> Option<Next> {
        let index = self.frame.elements;
        self.frame.elements += 1;
        if let Some(place) = self.frame.place
            && !self.keep(place.element(index))
        {
            return self.drop_value(mark);
        }
        self.frame.kept_any = true;
        Some(Next::Value)
    }

    fn keep_member(&mut self, place: Place<'s>, name: Name) -> Option<bool> {
        let text = self.text.get(name.start..name.end)?;
        Some(if name.escaped {
            self.keep(place.member(&string::decode(text)))
        } else {
            self.keep(place.member(text))
        })
    }

    /// Notes where the value to come stands in the selection; `false` if it does not count.
    fn keep(&mut self, verdict: Verdict<'s>) -> bool {
        self.place = match verdict {
            Verdict::Keep(place) => Some(place),
            Verdict::KeepIfContainer(place) => {
                matches!(self.peek(), Some(b'{' | b'[')).then_some(place)
            }
            Verdict::Drop => None,
        };
        self.place.is_some()
    }

    fn drop_value(&mut self, mark: u32) -> Option<Next> {
        self.flush();
        self.out.truncate(mark as usize);
        self.at = skip::value(self.bytes, self.at, DEPTH_MAX - self.outer.len())?;
        self.run = self.at;
        Some(Next::After)
    }

    /// Reads a string, of which the opening quote is next; tells whether it holds an escape.
    #[inline(always)]
    fn string(&mut self) -> Option<bool> {
        self.at = string::plain_run(self.bytes, self.at + 1);
        if self.peek()? == b'"' {
            self.at += 1;
            return Some(false);
        }
        self.escaped_string()?;
        Some(true)
    }

    /// Reads on in a string that has stopped being plain.
    #[inline(never)]
    fn escaped_string(&mut self) -> Option<()> {
        loop {
            match self.peek()? {
                b'"' => {
                    self.at += 1;
                    return Some(());
                }
                b'\\' => self.escape()?,
                _ => return None,
            }
            self.at = string::plain_run(self.bytes, self.at);
        }
    }

    fn escape(&mut self) -> Option<()> {
        let (escape, len) = string::escape(self.bytes.get(self.at..)?)?;
        match escape {
            Escape::Canonical => self.at += len,
            Escape::Means(meant) => {
                self.flush();
                string::push_char(&mut self.out, meant);
                self.at += len;
                self.run = self.at;
            }
            Escape::Lone => return None,
        }
        Some(())
    }

    #[inline]
    fn number(&mut self) -> Option<()> {
        let rest = self.bytes.get(self.at..)?;
        if let Some(len) = number::canonical_len(rest) {
            self.at += len;
            return Some(());
        }
        let (decimal, len) = number::read(rest)?;
        let spelling = match self.numbers {
            Numbers::Exact => number::spell(&decimal)?,
            Numbers::Rounded => number::spell_rounded(self.text.get(self.at..self.at + len)?)?,
        };
        self.flush();
        self.out.extend_from_slice(spelling.as_bytes());
        self.at += len;
        self.run = self.at;
        Some(())
    }

    #[inline]
    fn peek(&self) -> Option<u8> {
        self.bytes.get(self.at).copied()
    }

    /// The length of the form so far.
    #[inline]
    fn position(&self) -> u32 {
        // Fits: see `TEXT_BYTES_MAX`.
        (self.out.len() + (self.at - self.run)) as u32
    }

    /// Leaves out the space that stands here.
    #[inline]
    fn space(&mut self) {
        if matches!(self.peek(), Some(0..=b' ')) {
            self.leave_out_space();
        }
    }

    // Kept out of line, like `flush`: inlined at every call they slow down documents without spaces by a tenth.
    #[inline(never)]
    fn leave_out_space(&mut self) {
        self.flush();
        self.at = skip::space(self.bytes, self.at);
        self.run = self.at;
    }

    /// Copies the canonical stretch that ends here, because something differs from here on.
    #[inline(never)]
    fn flush(&mut self) {
        if self.out.capacity() == 0 {
            self.out.reserve(self.bytes.len() + arrange::SHORT);
        }
        arrange::append(&mut self.out, self.bytes, self.run, self.at);
        self.run = self.at;
    }

    fn finish(mut self) -> Option<Cow<'a, [u8]>> {
        let form = if self.out.is_empty() {
            Cow::Borrowed(self.bytes.get(self.run..self.at)?)
        } else {
            self.flush();
            Cow::Owned(self.out)
        };
        if self.arrangement.is_settled() {
            return Some(form);
        }
        self.arrangement.write(&form).map(Cow::Owned)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn form(text: &str) -> Option<String> {
        canonicalise(text.as_bytes()).map(|form| String::from_utf8(form).unwrap())
    }

    fn selected(text: &str, include: &[&str], exclude: &[&str]) -> Option<String> {
        let mut selection = Selection::default();
        for pointer in include {
            selection = selection.include(Pointer::parse(pointer).unwrap());
        }
        for pointer in exclude {
            selection = selection.exclude(Pointer::parse(pointer).unwrap());
        }
        canonical(text.as_bytes(), &selection, Bounds::default())
            .map(|form| String::from_utf8(form.into_owned()).unwrap())
    }

    #[test]
    fn a_canonical_document_is_not_copied() {
        let text = br#" {"a":[1,-2.5,"\n\u001f"],"b":{"c":null,"d":true}} "#;
        let rewritten = canonical(text, &Selection::default(), Bounds::default());
        assert!(matches!(rewritten, Some(Cow::Owned(_))), "an escape is always rewritten");

        let text = b"\n{\"a\":[1,-2.5,\"\\n\"],\"b\":{\"c\":null,\"d\":true}}\n";
        let kept = canonical(text, &Selection::default(), Bounds::default());
        assert!(matches!(kept, Some(Cow::Borrowed(_))));
        assert_eq!(kept.as_deref(), Some(text.trim_ascii()));
    }

    #[test]
    fn members_are_sorted_by_utf16_units_at_every_level() {
        assert_eq!(
            form(r#"{"c":{"z":1,"a":[{"y":0,"x":{}}]},"b":{},"a":{"q":{"b":1,"a":2},"p":0}}"#)
                .unwrap(),
            r#"{"a":{"p":0,"q":{"a":2,"b":1}},"b":{},"c":{"a":[{"x":{},"y":0}],"z":1}}"#,
        );
        // U+1F600 is a surrogate pair, whose first unit is below U+FB33.
        assert_eq!(form("{\"\u{fb33}\":1,\"😀\":2}").unwrap(), "{\"😀\":2,\"\u{fb33}\":1}");
        assert_eq!(form(r#"{"\ufb33":1,"\ud83d\ude00":2}"#).unwrap(), "{\"😀\":2,\"\u{fb33}\":1}");
        assert_eq!(
            form(r#"{"a":1,"":2,"A":3,"\u0000":4}"#).unwrap(),
            r#"{"":2,"\u0000":4,"A":3,"a":1}"#
        );
        assert_eq!(
            form(r#"{"prefix-prefix-b":1,"prefix-prefix-a":2,"prefix-p":3,"prefix-":4}"#).unwrap(),
            r#"{"prefix-":4,"prefix-p":3,"prefix-prefix-a":2,"prefix-prefix-b":1}"#,
        );
    }

    #[test]
    fn spaces_and_escapes_do_not_count() {
        let one = r#"{"a":["é\"\\/\b\f\n\r\t\u001f😀",1]}"#;
        let other = "\t{ \"\\u0061\" :\r\n[ \"\\u00E9\\u0022\\u005c\\/\\u0008\\u000C\\u000a\\u000D\\u0009\\u001F\\uD83D\\uDE00\" , 1.0 ] }\n";
        assert_eq!(form(other).unwrap(), one);
        assert_eq!(form(one).unwrap(), one);
    }

    #[test]
    fn what_would_lose_meaning_has_no_form() {
        for text in [
            // Numbers.
            "-0",
            "[-0.0]",
            "9007199254740993",
            "1e400",
            r#"{"a":0.10000000000000000555}"#,
            // Names that occur twice, side by side, apart, and spelt differently.
            r#"{"a":1,"a":1}"#,
            r#"{"b":1,"a":1,"b":2}"#,
            r#"{"a":1,"\u0061":1}"#,
            r#"{"z":0,"é":1,"\u00e9":1}"#,
            r#"{"z":{"b":1,"a":1,"b":2},"a":0}"#,
            // Halves of a surrogate pair.
            r#""\ud800""#,
            r#""\udc00\ud800""#,
            r#"{"\ud800":1}"#,
            // Not JSON.
            "",
            " ",
            "\u{feff}{}",
            "{} {}",
            "{},",
            "[1,]",
            "{\"a\":1,}",
            "{a:1}",
            "{'a':1}",
            "[1 2]",
            "{\"a\" 1}",
            "{\"a\"}",
            "{1:2}",
            "[",
            "]",
            "{",
            "}",
            "[}",
            "{]",
            "\"",
            "\"\t\"",
            "\"\\x\"",
            "tru",
            "nulll",
            "True",
            "NaN",
            "Infinity",
            "01",
            "1.",
            ".1",
            "+1",
            "1e",
            "--1",
            "// c\n1",
            "[1,,2]",
            "[,1]",
            "{,}",
            "\u{a0}1",
            "\u{0}",
        ] {
            assert_eq!(form(text), None, "{text:?}");
        }
        assert_eq!(canonicalise(b"\"\xff\""), None, "not UTF-8");
        assert_eq!(canonicalise(b"\"\xed\xa0\x80\""), None, "a surrogate in UTF-8");
    }

    #[test]
    fn depth_is_bounded_with_and_without_a_selection() {
        for (open, close) in [("[", "]"), ("{\"a\":", "}"), ("[{\"b\":1,\"a\":", "}]")] {
            let levels = DEPTH_MAX / open.matches(['[', '{']).count();
            let nested =
                |levels: usize| format!("{}0{}", open.repeat(levels), close.repeat(levels));
            assert!(form(&nested(levels)).is_some());
            assert_eq!(form(&nested(levels + 1)), None);
            let skipped = |levels: usize| format!("{{\"skip\":{}}}", nested(levels));
            assert_eq!(selected(&skipped(levels - 1), &[], &["/skip"]).as_deref(), Some("{}"));
            assert_eq!(selected(&skipped(levels + 1), &[], &["/skip"]), None);
        }
    }

    #[test]
    fn bounds_measure_the_form_and_not_its_spelling() {
        let selection = Selection::default();
        let within = |text: &str, members_max, bytes_max| {
            canonical(text.as_bytes(), &selection, Bounds { members_max, bytes_max }).is_some()
        };
        let (tight, loose) =
            (r#"{"a":{"b":1},"c":2}"#, "{ \"c\" : 2.000, \"\\u0061\" : { \"b\" : 1 } }");
        for text in [tight, loose] {
            assert!(within(text, 3, tight.len() as u32));
            assert!(!within(text, 2, tight.len() as u32));
            assert!(!within(text, 3, tight.len() as u32 - 1));
        }
    }

    #[test]
    fn excluded_values_are_dropped_with_their_names() {
        let text = r#"{"a":1,"b":{"c":2,"d":[3,4,5]},"e":6}"#;
        for (exclude, left) in [
            (&["/a"][..], r#"{"b":{"c":2,"d":[3,4,5]},"e":6}"#),
            (&["/b"], r#"{"a":1,"e":6}"#),
            (&["/e"], r#"{"a":1,"b":{"c":2,"d":[3,4,5]}}"#),
            (&["/a", "/b"], r#"{"e":6}"#),
            (&["/a", "/b", "/e"], "{}"),
            (&["/b/c"], r#"{"a":1,"b":{"d":[3,4,5]},"e":6}"#),
            (&["/b/d/0"], r#"{"a":1,"b":{"c":2,"d":[4,5]},"e":6}"#),
            (&["/b/d/1", "/b/d/2"], r#"{"a":1,"b":{"c":2,"d":[3]},"e":6}"#),
            (&["/b/d/0", "/b/d/1", "/b/d/2"], r#"{"a":1,"b":{"c":2,"d":[]},"e":6}"#),
            (&["/b/d/00", "/b/d/-", "/b/d/3", "/x", "/a/0"], text),
            (&[""], ""),
        ] {
            assert_eq!(selected(text, &[], exclude).as_deref(), Some(left), "{exclude:?}");
            let spaced = text.replace(',', " ,\n").replace(':', " : ").replace('a', "\\u0061");
            assert_eq!(selected(&spaced, &[], exclude).as_deref(), Some(left), "{exclude:?}");
        }
        let backwards = r#"{"e":6,"b":{"d":[3,4,5],"c":2},"a":1}"#;
        assert_eq!(
            selected(backwards, &[], &["/b/d/1"]).unwrap(),
            r#"{"a":1,"b":{"c":2,"d":[3,5]},"e":6}"#
        );
        assert_eq!(selected(backwards, &[], &["/b"]).unwrap(), r#"{"a":1,"e":6}"#);
    }

    #[test]
    fn only_included_values_are_kept() {
        let text = r#"{"a":1,"b":{"c":2,"d":[3,{"x":4,"y":5}]},"e":6}"#;
        for (include, exclude, left) in [
            (&["/a"][..], &[][..], r#"{"a":1}"#),
            (&["/e", "/b/c"], &[], r#"{"b":{"c":2},"e":6}"#),
            (&["/b/d/1/y"], &[], r#"{"b":{"d":[{"y":5}]}}"#),
            (&["/b"], &["/b/d/0"], r#"{"b":{"c":2,"d":[{"x":4,"y":5}]}}"#),
            (&["/b"], &["/b"], "{}"),
            (&["/a/deeper", "/e"], &[], r#"{"e":6}"#),
            (&["/missing"], &[], "{}"),
            (&["", "/a"], &[], text),
        ] {
            assert_eq!(selected(text, include, exclude).as_deref(), Some(left), "{include:?}");
        }
        assert_eq!(selected("5", &["/a"], &[]), None, "nothing to pick from");
        assert_eq!(selected("[5]", &["/a"], &[]).as_deref(), Some("[]"));
    }

    #[test]
    fn what_does_not_count_must_be_json_and_nothing_more() {
        for odd in [
            "1e400",
            "-0",
            "9007199254740993",
            r#""\ud800""#,
            r#"{"a":1,"a":[{},[],"\"",null,true,false]}"#,
        ] {
            let text = format!(r#"{{"keep":1,"drop":{odd},"drop":0}}"#);
            assert_eq!(selected(&text, &[], &["/drop"]).as_deref(), Some(r#"{"keep":1}"#), "{odd}");
        }
        for broken in [
            "",
            "x",
            "[1,]",
            "{\"a\"}",
            "{\"a\":}",
            "\"\\x\"",
            "\"\n\"",
            "[1}",
            "{\"a\":1]",
            "01",
            "nul",
            "{,}",
            "[,]",
        ] {
            let text = format!(r#"{{"keep":1,"drop":{broken}}}"#);
            assert_eq!(selected(&text, &[], &["/drop"]), None, "{broken}");
            assert_eq!(selected(broken, &[], &[""]), None, "{broken}");
        }
    }

    #[test]
    fn rounding_follows_the_rfc() {
        let rounded = |text: &str| String::from_utf8(canonicalise_rounding(text.as_bytes())?).ok();
        assert_eq!(
            rounded("[9007199254740993,-0,333333333.33333329]").unwrap(),
            "[9007199254740992,0,333333333.3333333]"
        );
        assert_eq!(rounded("1e400"), None);
        assert_eq!(number(-0.0).unwrap(), "0");
        assert_eq!(number(f64::NAN), None);
    }
}
