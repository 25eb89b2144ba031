//! How do the last write of a transaction and its COMMIT become one message?
//!
//! PostgreSQL takes several statements in one message only as text, so the arrays of the write become literals. If one of
//! the statements fails, those after it are not run: nothing is committed without the write.

use std::fmt::Write as _;

use retrysafe_core::store::{StoreError, StoreErrorKind};
use sqlx::postgres::{PgConnection, PgRow};
use sqlx::{AssertSqlSafe, Row as _};

use super::columns::Column;
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
    match column {
        Column::Bytes(values) => put(text, "bytea", values.iter().map(Some), put_bytes),
        Column::MaybeBytes(values) => {
            put(text, "bytea", values.iter().map(Option::as_ref), put_bytes);
        }
        Column::MaybeTexts(values) => {
            put(text, "text", values.iter().map(Option::as_ref), |text, value| {
                put_text(text, value);
            });
        }
        Column::Numbers(values) => put(text, "bigint", values.iter().map(Some), put_number),
        Column::MaybeNumbers(values) => {
            put(text, "bigint", values.iter().map(Option::as_ref), put_number);
        }
        Column::Shorts(values) => put(text, "smallint", values.iter().map(Some), put_number),
        Column::MaybeShorts(values) => {
            put(text, "smallint", values.iter().map(Option::as_ref), put_number);
        }
    }
}

fn put<'a, T: 'a>(
    text: &mut String,
    of: &str,
    values: impl Iterator<Item = Option<&'a T>>,
    put_one: impl Fn(&mut String, &T),
) {
    text.push_str("ARRAY[");
    for (number, value) in values.enumerate() {
        if number > 0 {
            text.push(',');
        }
        match value {
            Some(value) => put_one(text, value),
            None => text.push_str("NULL"),
        }
    }
    // Writing to a string does not fail.
    let _ = write!(text, "]::{of}[]");
}

fn put_number(text: &mut String, value: &impl std::fmt::Display) {
    // In brackets, for the sign.
    let _ = write!(text, "({value})");
}

fn put_bytes(text: &mut String, value: &Vec<u8>) {
    // The escapes of `E` mean the same whatever the server's settings are.
    text.push_str("E'\\\\x");
    for byte in value {
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
        let columns = [
            Column::Bytes(vec![vec![0, 0xab]]),
            Column::MaybeNumbers(vec![Some(-7), None]),
            Column::MaybeTexts(vec![Some("it's \\ $1".into())]),
        ];
        let mut many: Vec<Column> = columns.into();
        many.extend((4..=11).map(|number| Column::Shorts(vec![number])));
        assert_eq!(
            with_literals("f($1, $2, $3, $11, $1)", &many),
            "f(ARRAY[E'\\\\x00ab']::bytea[], ARRAY[(-7),NULL]::bigint[], ARRAY[E'it\\'s \\\\ $1']::text[], \
             ARRAY[(11)]::smallint[], ARRAY[E'\\\\x00ab']::bytea[])"
        );
    }
}
