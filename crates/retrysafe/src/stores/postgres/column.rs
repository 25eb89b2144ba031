//! How does a column of a batch look on its way to the server?
//!
//! As the server's own binary form of an array: each element with its length in front of it, -1 for NULL. So a column is one buffer, whatever
//! it holds and however many elements it has, and whichever driver sends it has nothing left to do but to copy it.

use std::error::Error;

use bytes::{BufMut, BytesMut};
use tokio_postgres::types::{IsNull, Kind, ToSql, Type, to_sql_checked};

use super::fields::{LENGTH_BYTES, put_with_length};
use super::place::Place;

/// What the elements of a column are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ElementKind {
    Bytes,
    Text,
    Number,
    Short,
    Place,
}

/// A parameter of one of our statements: an array with one element for each record.
#[derive(Clone, Debug)]
pub struct Column {
    kind: ElementKind,
    count: usize,
    has_null: bool,
    elements: Vec<u8>,
    /// Where the content of the last element begins.
    last_from: usize,
}

/// The length of an element that is NULL.
const NULL: i32 = -1;

impl ElementKind {
    pub(super) fn array_type(self) -> Type {
        match self {
            Self::Bytes => Type::BYTEA_ARRAY,
            Self::Text => Type::TEXT_ARRAY,
            Self::Number => Type::INT8_ARRAY,
            Self::Short => Type::INT2_ARRAY,
            Self::Place => Type::TID_ARRAY,
        }
    }

    fn element_type(self) -> Type {
        match self {
            Self::Bytes => Type::BYTEA,
            Self::Text => Type::TEXT,
            Self::Number => Type::INT8,
            Self::Short => Type::INT2,
            Self::Place => Type::TID,
        }
    }
}

impl Column {
    pub(super) const fn of(kind: ElementKind) -> Self {
        Self { kind, count: 0, has_null: false, elements: Vec::new(), last_from: 0 }
    }

    pub(super) const fn of_bytes() -> Self {
        Self::of(ElementKind::Bytes)
    }

    pub(super) const fn of_texts() -> Self {
        Self::of(ElementKind::Text)
    }

    pub(super) const fn of_numbers() -> Self {
        Self::of(ElementKind::Number)
    }

    pub(super) const fn of_shorts() -> Self {
        Self::of(ElementKind::Short)
    }

    pub(super) const fn of_places() -> Self {
        Self::of(ElementKind::Place)
    }

    #[cfg(feature = "sqlx")]
    pub(super) fn kind(&self) -> ElementKind {
        self.kind
    }

    pub(super) fn is_empty(&self) -> bool {
        self.count == 0
    }

    pub(super) fn push(&mut self, bytes: &[u8]) {
        self.push_written(|out| out.extend_from_slice(bytes));
    }

    pub(super) fn push_number(&mut self, number: impl Into<Option<i64>>) {
        match number.into() {
            Some(number) => self.push(&number.to_be_bytes()),
            None => self.push_null(),
        }
    }

    pub(super) fn push_short(&mut self, short: impl Into<Option<i16>>) {
        match short.into() {
            Some(short) => self.push(&short.to_be_bytes()),
            None => self.push_null(),
        }
    }

    pub(super) fn push_place(&mut self, place: Option<Place>) {
        match place {
            Some(place) => self.push(place.as_bytes()),
            None => self.push_null(),
        }
    }

    pub(super) fn push_null(&mut self) {
        self.elements.extend_from_slice(&NULL.to_be_bytes());
        self.last_from = self.elements.len();
        self.count += 1;
        self.has_null = true;
    }

    /// Appends an element that `write` appends to the buffer.
    pub(super) fn push_written(&mut self, write: impl FnOnce(&mut Vec<u8>)) {
        let length_from = self.elements.len();
        put_with_length(&mut self.elements, write);
        self.last_from = length_from + LENGTH_BYTES;
        self.count += 1;
    }

    /// The element that was appended last; empty if it is NULL.
    pub(super) fn last(&self) -> &[u8] {
        self.elements.get(self.last_from..).unwrap_or_default()
    }

    /// The elements; None is NULL.
    #[cfg(any(test, feature = "phases"))]
    pub(super) fn iter(&self) -> impl Iterator<Item = Option<&[u8]>> {
        let mut rest = self.elements.as_slice();
        std::iter::from_fn(move || {
            let (length, behind) = rest.split_first_chunk::<LENGTH_BYTES>()?;
            let length = usize::try_from(i32::from_be_bytes(*length)).ok();
            let (element, behind) = behind.split_at_checked(length.unwrap_or(0))?;
            rest = behind;
            Some(length.map(|_| element))
        })
    }

    /// Appends the whole array as the server reads it.
    pub(super) fn put(&self, out: &mut impl BufMut) {
        // How many dimensions, whether something is NULL, of what; then how long, and the number of the first.
        out.put_i32(i32::from(!self.is_empty()));
        out.put_i32(i32::from(self.has_null));
        out.put_u32(self.kind.element_type().oid());
        if !self.is_empty() {
            out.put_i32(i32::try_from(self.count).unwrap_or(i32::MAX));
            out.put_i32(1);
        }
        out.put_slice(&self.elements);
    }

    /// The value and the type that the store's own driver sends.
    pub(super) fn parameter(&self) -> (&(dyn ToSql + Sync), Type) {
        (self, self.kind.array_type())
    }
}

impl ToSql for Column {
    fn to_sql(&self, _: &Type, out: &mut BytesMut) -> Result<IsNull, Box<dyn Error + Sync + Send>> {
        self.put(out);
        Ok(IsNull::No)
    }

    fn accepts(kind: &Type) -> bool {
        matches!(kind.kind(), Kind::Array(_))
    }

    to_sql_checked!();
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sent(column: &Column) -> Vec<u8> {
        let mut out = Vec::new();
        column.put(&mut out);
        out
    }

    #[test]
    fn an_array_is_sent_as_the_server_reads_it() {
        // SELECT array_send(ARRAY[7, NULL, -1]::smallint[]), on PostgreSQL 15.
        let mut column = Column::of_shorts();
        column.push_short(7);
        column.push_short(None);
        column.push_short(-1);
        let length_and_first = [0, 0, 0, 3, 0, 0, 0, 1];
        let elements = [0, 0, 0, 2, 0, 7, 255, 255, 255, 255, 0, 0, 0, 2, 255, 255];
        let head = [0, 0, 0, 1, 0, 0, 0, 1, 0, 0, 0, 21];
        assert_eq!(sent(&column), [&head[..], &length_and_first, &elements].concat());
        // SELECT array_send('{}'::bytea[])
        assert_eq!(sent(&Column::of_bytes()), [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 17]);
    }

    #[test]
    fn elements_are_read_as_they_were_written() {
        let mut column = Column::of_bytes();
        assert_eq!(column.last(), b"");
        column.push(b"one");
        assert_eq!(column.last(), b"one");
        column.push_null();
        assert_eq!(column.last(), b"");
        column.push(b"");
        column.push_written(|out| out.extend_from_slice(&[0; 300]));
        assert_eq!(column.last(), [0; 300]);
        let elements: Vec<_> = column.iter().collect();
        assert_eq!(elements, [Some(&b"one"[..]), None, Some(b""), Some(&[0; 300])]);
    }
}
