//! How do the last write of a transaction and its COMMIT become one message?
//!
//! PostgreSQL takes several statements in one message only as text, so the arrays of the write become literals. If one of
//! the statements fails, those after it are not run: nothing is committed without the write.

use std::fmt::Write as _;

use retrysafe_core::store::{StoreError, StoreErrorKind};
use sqlx::postgres::{PgConnection, PgRow};
use sqlx::{AssertSqlSafe, Row as _};

use super::column::{Column, ElementKind};
use super::row::Cells;
use super::tx::{ApplicationTransaction, sealed::Joined};

/// A transaction whose next statement of ours is its last one.
///
/// The connection is left inside another transaction, an empty one: the driver counts the BEGIN that it has sent, and
/// will send the ROLLBACK that belongs to it.
pub(crate) struct LastStatement<'a> {
    connection: &'a mut PgConnection,
    before: Option<String>,
}

/// A row of a write, as a message of text returns it.
pub(crate) struct WrittenRow {
    id: Option<Vec<u8>>,
    version: Option<i64>,
    now_ms: Option<i64>,
}

impl<'a> LastStatement<'a> {
    /// The last statement after this one.
    pub(crate) fn after(before: String, connection: &'a mut PgConnection) -> Self {
        Self { connection, before: Some(before) }
    }
}

impl ApplicationTransaction for LastStatement<'_> {}

impl Joined for LastStatement<'_> {
    type Row = WrittenRow;

    async fn check(&mut self) -> Result<(), StoreError> {
        Ok(())
    }

    async fn ask(
        &mut self,
        sql: &'static str,
        columns: &[Column],
    ) -> Result<Vec<WrittenRow>, StoreError> {
        let Some(before) = self.before.take() else {
            return Err(StoreError::not_applied(StoreErrorKind::Broken)
                .because("the last statement of this transaction is sent already"));
        };
        let text = format!("{before}; {}; COMMIT AND CHAIN", with_literals(sql, columns));
        let asked = sqlx::raw_sql(AssertSqlSafe(text)).fetch_all(&mut *self.connection).await;
        let rows = asked.map_err(refused)?;
        // The statement before returns a row too, of one column.
        let written = rows.iter().filter(|row| row.len() > 1).map(WrittenRow::read);
        written.collect::<sqlx::Result<_>>().map_err(refused)
    }
}

impl WrittenRow {
    fn read(row: &PgRow) -> sqlx::Result<Self> {
        Ok(Self { id: row.try_get(0)?, version: row.try_get(1)?, now_ms: row.try_get(2)? })
    }
}

impl Cells for WrittenRow {
    fn short(&self, _: usize) -> Option<i16> {
        None
    }

    fn number(&self, at: usize) -> Option<i64> {
        match at {
            1 => self.version,
            2 => self.now_ms,
            _ => None,
        }
    }

    fn bytes(&self, at: usize) -> Option<&[u8]> {
        self.id.as_deref().filter(|_| at == 0)
    }
}

/// Whether it was applied is for whoever reads the error to say: COMMIT is part of the message.
fn refused(error: sqlx::Error) -> StoreError {
    StoreError::maybe_applied(StoreErrorKind::Unavailable).because(error)
}

/// A statement with its parameters in their places.
fn with_literals(sql: &str, columns: &[Column]) -> String {
    let mut parts = sql.split('$');
    let mut text = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let digits = part.bytes().take_while(u8::is_ascii_digit).count();
        let (number, rest) = part.split_at(digits);
        let place = number.parse::<usize>().ok().and_then(|number| number.checked_sub(1));
        match place.and_then(|place| columns.get(place)) {
            Some(column) => put_array(&mut text, column),
            // A statement of ours has a column for each of its places; the server refuses anything else.
            None => text.push('$'),
        }
        text.push_str(rest);
    }
    text
}

fn put_array(text: &mut String, column: &Column) {
    text.push_str("ARRAY[");
    for (number, element) in column.iter().enumerate() {
        if number > 0 {
            text.push(',');
        }
        match element {
            Some(element) => put_element(text, column.kind(), element),
            None => text.push_str("NULL"),
        }
    }
    // Writing to a string does not fail.
    let _ = write!(text, "]::{}[]", type_name(column.kind()));
}

fn type_name(kind: ElementKind) -> &'static str {
    match kind {
        ElementKind::Bytes => "bytea",
        ElementKind::Text => "text",
        ElementKind::Number => "bigint",
        ElementKind::Short => "smallint",
        ElementKind::Place => "tid",
    }
}

fn put_element(text: &mut String, kind: ElementKind, element: &[u8]) {
    match kind {
        ElementKind::Bytes => put_bytes(text, element),
        ElementKind::Text => put_text(text, &String::from_utf8_lossy(element)),
        ElementKind::Number => put_number(text, element.try_into().map_or(0, i64::from_be_bytes)),
        ElementKind::Short => {
            put_number(text, element.try_into().map_or(0, i16::from_be_bytes).into());
        }
        ElementKind::Place => put_place(text, element),
    }
}

fn put_number(text: &mut String, number: i64) {
    // In brackets, for the sign.
    let _ = write!(text, "({number})");
}

fn put_place(text: &mut String, place: &[u8]) {
    let Some((page, number)) = place.split_first_chunk() else { return };
    let page = u32::from_be_bytes(*page);
    let number = number.try_into().map_or(0, u16::from_be_bytes);
    let _ = write!(text, "'({page},{number})'");
}

fn put_bytes(text: &mut String, bytes: &[u8]) {
    // The escapes of `E` mean the same whatever the server's settings are.
    text.push_str("E'\\\\x");
    for byte in bytes {
        let _ = write!(text, "{byte:02x}");
    }
    text.push('\'');
}

fn put_text(text: &mut String, value: &str) {
    text.push_str("E'");
    for letter in value.chars() {
        if matches!(letter, '\'' | '\\') {
            text.push('\\');
        }
        text.push(letter);
    }
    text.push('\'');
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parameters_stand_in_their_places() {
        let mut bytes = Column::of_bytes();
        bytes.push(&[0, 0xab]);
        let mut numbers = Column::of_numbers();
        numbers.push_number(-7);
        numbers.push_null();
        let mut texts = Column::of_texts();
        texts.push(b"it's \\ $1");
        let mut places = Column::of_places();
        places.push(&[0, 0, 1, 2, 0, 7]);
        let mut many = vec![bytes, numbers, texts, places];
        many.extend((5..=11).map(|number: i16| {
            let mut shorts = Column::of_shorts();
            shorts.push_short(number);
            shorts
        }));
        assert_eq!(
            with_literals("f($1, $2, $3, $11, $1, $4)", &many),
            "f(ARRAY[E'\\\\x00ab']::bytea[], ARRAY[(-7),NULL]::bigint[], ARRAY[E'it\\'s \\\\ $1']::text[], \
             ARRAY[(11)]::smallint[], ARRAY[E'\\\\x00ab']::bytea[], ARRAY['(258,7)']::tid[])"
        );
    }
}
