//! In which order do the members of the objects stand?
//!
//! While a document is read, the members of the open objects are noted, with the place of each in the form as written.
//! When an object closes with its members in order, they are forgotten: nothing is to be done. Otherwise they are sorted
//! and kept as [`Piece`]s, and [`Arrangement::write`] puts the whole document in order at the end. Doing it on the spot
//! would move the inside of a nested document once per level.

use std::cmp::Ordering;

use super::string;

/// What is known of the objects of one document. Positions count bytes of the form as written, unless they belong to
/// a [`Name`].
pub(super) struct Arrangement<'a> {
    text: &'a str,
    /// The members of all open objects, outermost first.
    members: Vec<Member>,
    /// Objects by their start, if they or an object inside them need arranging, or are still open.
    slots: Vec<Slot>,
    /// The members of every object that needs arranging, in the right order.
    pieces: Vec<Piece>,
}

/// A name as it stands in the text, between the quotes.
#[derive(Clone, Copy)]
pub(super) struct Name {
    pub(super) start: usize,
    pub(super) end: usize,
    pub(super) escaped: bool,
}

/// Where the notes about an open object begin.
#[derive(Clone, Copy, Default)]
pub(super) struct Opened {
    members: usize,
    slot: usize,
    /// Some member came before its predecessor in order.
    falls: bool,
}

struct Member {
    /// The first eight bytes of the name. They decide the order of two `plain` names unless they are equal.
    prefix: u64,
    name_start: u32,
    name_end: u32,
    piece: Piece,
    /// The prefix is ASCII and nothing in the name is escaped.
    plain: bool,
    escaped: bool,
}

/// A member as it stands in the form, from the quote of its name to the end of its value.
#[derive(Clone, Copy)]
struct Piece {
    start: u32,
    end: u32,
    /// The first slot that does not start before this piece.
    slot: u32,
}

/// An object that may need arranging.
struct Slot {
    start: u32,
    end: u32,
    /// Its pieces; none if its own members were in order.
    pieces: (u32, u32),
    /// The first slot that is not inside it.
    next: u32,
}

impl<'a> Arrangement<'a> {
    pub(super) fn new(text: &'a str) -> Self {
        // Members of a request body take 16 bytes or more on average; a few dozen fit most bodies without growing.
        let members = (text.len() / 16).min(64);
        Self { text, members: Vec::with_capacity(members), slots: Vec::new(), pieces: Vec::new() }
    }

    /// An object starts here.
    pub(super) fn open(&mut self, start: u32) -> Opened {
        let opened = Opened { members: self.members.len(), slot: self.slots.len(), falls: false };
        self.slots.push(Slot { start, end: 0, pieces: (0, 0), next: 0 });
        opened
    }

    /// A member starts here. `None` if it has the name of its predecessor.
    #[inline]
    pub(super) fn begin_member(
        &mut self,
        object: &mut Opened,
        name: Name,
        start: u32,
    ) -> Option<()> {
        let prefix = prefix(self.text.as_bytes(), name);
        // Pushed before it is compared: written field by field to its place, never through a copy.
        self.members.push(Member {
            prefix,
            name_start: name.start as u32,
            name_end: name.end as u32,
            piece: Piece { start, end: 0, slot: self.slots.len() as u32 },
            plain: !name.escaped && prefix & NON_ASCII == 0,
            escaped: name.escaped,
        });
        if !object.falls
            && let Some([.., previous, this]) = self.members.get(object.members..)
        {
            match order(self.text, previous, this) {
                Ordering::Less => {}
                Ordering::Equal => return None,
                Ordering::Greater => object.falls = true,
            }
        }
        Some(())
    }

    /// The last member of an object ends here, if it has one.
    #[inline]
    pub(super) fn end_member(&mut self, object: Opened, end: u32) {
        if self.members.len() > object.members
            && let Some(member) = self.members.last_mut()
        {
            member.piece.end = end;
        }
    }

    /// An object closes with the bracket that stands here. `None` if it has two members of one name.
    pub(super) fn close(&mut self, object: Opened, end: u32) -> Option<()> {
        self.end_member(object, end);
        if object.falls {
            let text = self.text;
            let members = self.members.get_mut(object.members..)?;
            members.sort_unstable_by(|left, right| order(text, left, right));
            if members.array_windows().any(|[left, right]| order(text, left, right).is_eq()) {
                return None;
            }
            if self.pieces.capacity() == 0 {
                self.pieces.reserve(members.len().max(32));
            }
            let first = self.pieces.len() as u32;
            self.pieces.extend(members.iter().map(|member| member.piece));
            let next = self.slots.len() as u32;
            let slot = self.slots.get_mut(object.slot)?;
            slot.end = end;
            slot.pieces = (first, self.pieces.len() as u32);
            slot.next = next;
        } else if self.slots.len() == object.slot + 1 {
            self.slots.pop();
        }
        self.members.truncate(object.members);
        Some(())
    }

    /// The document is in order as it was written.
    pub(super) fn is_settled(&self) -> bool {
        self.pieces.is_empty()
    }

    /// Writes the document in order. Every byte is copied once.
    pub(super) fn write(&self, form: &[u8]) -> Option<Vec<u8>> {
        // A little more room than the form needs, for what `append` writes too many.
        let mut arranged = Vec::with_capacity(form.len() + SHORT);
        self.write_piece(form, Piece { start: 0, end: form.len() as u32, slot: 0 }, &mut arranged)?;
        Some(arranged)
    }

    /// The recursion goes no deeper than the document, that is [`super::DEPTH_MAX`].
    fn write_piece(&self, form: &[u8], piece: Piece, arranged: &mut Vec<u8>) -> Option<()> {
        let mut from = piece.start;
        let mut next = piece.slot;
        while let Some(slot) = self.slots.get(next as usize)
            && slot.start < piece.end
        {
            let (first, end) = slot.pieces;
            if first == end {
                next += 1;
                continue;
            }
            append(arranged, form, from as usize, slot.start as usize + 1);
            let pieces = self.pieces.get(first as usize..end as usize)?;
            for (count, inner) in pieces.iter().enumerate() {
                if count > 0 {
                    arranged.push(b',');
                }
                // Most members hold nothing to arrange, and need no call to find that out.
                if self.slots.get(inner.slot as usize).is_some_and(|slot| slot.start < inner.end) {
                    self.write_piece(form, *inner, arranged)?;
                } else {
                    append(arranged, form, inner.start as usize, inner.end as usize);
                }
            }
            from = slot.end;
            next = slot.next;
        }
        append(arranged, form, from as usize, piece.end as usize);
        Some(())
    }
}

/// A copy up to this length takes a few instructions.
pub(super) const SHORT: usize = 32;

/// Appends `from[start..end]`. Most pieces are short, and copying a fixed number of bytes, too many as a rule, and
/// cutting off the rest is several times as fast as asking for a copy of exactly so many.
#[inline]
pub(super) fn append(to: &mut Vec<u8>, from: &[u8], start: usize, end: usize) {
    let rest = from.get(start..).unwrap_or_default();
    let len = end - start;
    match rest.first_chunk::<SHORT>() {
        Some(chunk) if len <= SHORT => {
            let end = to.len() + len;
            to.extend_from_slice(chunk);
            to.truncate(end);
        }
        _ => to.extend_from_slice(rest.get(..len).unwrap_or_default()),
    }
}

const NON_ASCII: u64 = u64::from_ne_bytes([0x80; 8]);

/// The first eight bytes of a name as a number, filled up with zeros. Zeros do not occur in a name that is not
/// escaped, so of two such names the shorter one comes first, as it should.
#[inline]
fn prefix(text: &[u8], name: Name) -> u64 {
    let rest = text.get(name.start..).unwrap_or_default();
    let word = match rest.first_chunk::<8>() {
        Some(chunk) => u64::from_be_bytes(*chunk),
        None => {
            let filled = rest.iter().chain(std::iter::repeat(&0)).take(8);
            filled.fold(0, |word, byte| word << 8 | u64::from(*byte))
        }
    };
    let len = name.end - name.start;
    if len < 8 { word & !(u64::MAX >> (8 * len)) } else { word }
}

#[inline]
fn order(text: &str, left: &Member, right: &Member) -> Ordering {
    if left.plain && right.plain && left.prefix != right.prefix {
        return left.prefix.cmp(&right.prefix);
    }
    order_by_name(text, left, right)
}

fn order_by_name(text: &str, left: &Member, right: &Member) -> Ordering {
    let name = |member: &Member| {
        text.get(member.name_start as usize..member.name_end as usize).unwrap_or_default()
    };
    if left.escaped || right.escaped {
        string::order_escaped(name(left), name(right))
    } else {
        string::order(name(left).as_bytes(), name(right).as_bytes())
    }
}
