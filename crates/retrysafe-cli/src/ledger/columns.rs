//! Which columns of a ledger are compared, and how do they become an entry?

use super::amount::Amount;
use super::entry::{Entry, KEY_BYTES_MAX, Place};
use super::quote::quoted;
use super::window::Window;

/// The longest currency, in bytes: a code of ISO 4217 has three.
const CURRENCY_BYTES_MAX: usize = 32;

/// The columns of one side, by name or by JSON pointer.
#[derive(Clone, Debug)]
pub(crate) struct Columns {
    pub key: String,
    pub amount: Option<String>,
    pub currency: Option<String>,
    pub time: Option<String>,
    pub fields: Vec<String>,
}

/// What a line is made of, in the order of [`Columns::wanted`].
pub(super) trait Values {
    /// The value; none if it is absent or null.
    fn value(&self, at: usize) -> Option<&str>;
}

impl Values for [Option<String>] {
    fn value(&self, at: usize) -> Option<&str> {
        self.get(at)?.as_deref()
    }
}

impl Columns {
    /// The names of all columns that are read.
    pub(super) fn wanted(&self) -> Vec<&str> {
        let single =
            [Some(&self.key), self.amount.as_ref(), self.currency.as_ref(), self.time.as_ref()];
        single.into_iter().flatten().chain(&self.fields).map(String::as_str).collect()
    }

    /// The entry of a line; none if its time is not within the window.
    ///
    /// # Errors
    ///
    /// Which column is wrong, and why.
    pub(super) fn entry(
        &self,
        values: &(impl Values + ?Sized),
        window: &Window,
        place: Place,
    ) -> Result<Option<Entry>, String> {
        let mut places = 0..;
        let mut next = || places.next().and_then(|place| values.value(place));
        let key = next().unwrap_or_default();
        let amount = self.amount.as_deref().map(|column| (column, next()));
        let currency = self.currency.as_deref().map(|column| (column, next()));
        let time = self.time.as_deref().map(|column| (column, next()));
        if let Some((column, value)) = time {
            let is_within = window.has(value.unwrap_or_default());
            if !is_within.map_err(|why| format!("column {}: {why}", quoted(column)))? {
                return Ok(None);
            }
        }
        let fields = self.fields.iter().map(|_| next().unwrap_or_default().to_owned()).collect();
        Ok(Some(Entry {
            key: self.key(key)?,
            amount: amount.map(|(column, value)| read_amount(column, value)).transpose()?,
            currency: currency.map(|(column, value)| read_currency(column, value)).transpose()?,
            fields,
            place,
        }))
    }

    fn key(&self, key: &str) -> Result<String, String> {
        if key.is_empty() {
            return Err(format!("it has no key: {} is empty or absent", quoted(&self.key)));
        }
        if key.len() > KEY_BYTES_MAX {
            let length = key.len();
            return Err(format!("its key is {length} bytes long, {KEY_BYTES_MAX} are the most"));
        }
        Ok(key.to_owned())
    }
}

fn read_amount(column: &str, value: Option<&str>) -> Result<Amount, String> {
    let wrong = |why: String| format!("column {}: {why}", quoted(column));
    Amount::parse(value.unwrap_or_default()).map_err(wrong)
}

fn read_currency(column: &str, value: Option<&str>) -> Result<String, String> {
    let value = value.unwrap_or_default();
    if value.is_empty() || value.len() > CURRENCY_BYTES_MAX {
        return Err(format!(
            "column {}: {} is no currency: 1 to {CURRENCY_BYTES_MAX} bytes, such as EUR",
            quoted(column),
            quoted(value)
        ));
    }
    Ok(value.to_owned())
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    pub(in crate::ledger) fn columns() -> Columns {
        Columns {
            key: "id".into(),
            amount: Some("amount".into()),
            currency: Some("currency".into()),
            time: None,
            fields: vec!["status".into()],
        }
    }

    fn values(given: &[&str]) -> Vec<Option<String>> {
        given.iter().map(|value| Some((*value).to_owned())).collect()
    }

    fn read(columns: &Columns, given: &[&str]) -> Result<Option<Entry>, String> {
        columns.entry(values(given).as_slice(), &Window::default(), Place::Line(1))
    }

    #[test]
    fn values_are_taken_in_the_order_of_the_columns() {
        let columns = columns();
        assert_eq!(columns.wanted(), ["id", "amount", "currency", "status"]);
        let entry = read(&columns, &["k", "1.5", "EUR", "paid"]).unwrap().unwrap();
        assert_eq!((entry.key.as_str(), entry.fields.as_slice()), ("k", &["paid".to_owned()][..]));
        assert_eq!(entry.amount.unwrap().to_string(), "1.50");
        assert_eq!(entry.currency.as_deref(), Some("EUR"));
    }

    #[test]
    fn a_wrong_value_names_its_column() {
        let columns = columns();
        for (given, why) in [
            (["", "1", "EUR", ""], "no key: \"id\""),
            (["k", "", "EUR", ""], "\"amount\": \"\" is no amount"),
            (["k", "12,50", "EUR", ""], "\"amount\": \"12,50\""),
            (["k", "1", "", ""], "\"currency\": \"\" is no currency"),
        ] {
            let told = read(&columns, &given).unwrap_err();
            assert!(told.contains(why), "{told}");
        }
        let long = "x".repeat(KEY_BYTES_MAX + 1);
        assert!(read(&columns, &[&long, "1", "EUR", ""]).unwrap_err().contains("1025 bytes"));
    }

    #[test]
    fn a_line_outside_the_window_is_no_entry_and_its_time_must_be_one() {
        let mut columns = columns();
        columns.time = Some("at".into());
        let window = Window::parse(Some("2026-11-16"), Some("2026-11-17")).unwrap();
        let read = |time: &str| {
            let values = values(&["k", "1", "EUR", time, "paid"]);
            columns.entry(values.as_slice(), &window, Place::Line(1))
        };
        assert!(read("2026-11-16T00:00:00Z").unwrap().is_some());
        assert!(read("2026-11-17T00:00:00Z").unwrap().is_none());
        assert!(read("yesterday").unwrap_err().contains("\"at\""));
    }
}
