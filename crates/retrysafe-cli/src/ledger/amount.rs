//! How much is it, exactly?
//!
//! Digits, a point and decimals, as people and machines write amounts that nobody has rounded. A comma may be a
//! thousand or a decimal, and an exponent comes from a floating-point number: both are refused, never guessed.

use std::fmt;

/// The most digits before the point: the money of the whole world in the smallest of units has fewer.
const WHOLE_DIGITS_MAX: usize = 18;

/// The most digits after the point. Crypto-currencies are counted in up to this many where banks take part.
const DECIMALS_MAX: usize = 12;

/// What one is in the units that are counted.
const ONE: i128 = 10_i128.pow(DECIMALS_MAX as u32);

/// An exact amount. A hundred million of the largest can be added up.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Amount(i128);

impl Amount {
    /// Reads an amount.
    ///
    /// # Errors
    ///
    /// Why it is none.
    pub(super) fn parse(text: &str) -> Result<Self, String> {
        Self::read(text).ok_or_else(|| {
            format!(
                "{} is no amount: write digits with a point and at most {DECIMALS_MAX} decimals, such as 12.50 or -3; \
                 no comma, no exponent, no blank, no currency, and at most {WHOLE_DIGITS_MAX} digits before the point",
                super::quote::quoted(text)
            )
        })
    }

    fn read(text: &str) -> Option<Self> {
        let digits = text.strip_prefix('-').unwrap_or(text);
        let has_point = digits.contains('.');
        let (whole, decimals) = digits.split_once('.').unwrap_or((digits, ""));
        let are_digits = |part: &str| part.bytes().all(|byte| byte.is_ascii_digit());
        let is_well_formed = (1..=WHOLE_DIGITS_MAX).contains(&whole.len())
            && are_digits(whole)
            && decimals.len() <= DECIMALS_MAX
            && are_digits(decimals)
            && has_point != decimals.is_empty();
        if !is_well_formed {
            return None;
        }
        let units = format!("{whole}{decimals:0<DECIMALS_MAX$}").parse::<i128>().ok()?;
        Some(Self(if text.starts_with('-') { -units } else { units }))
    }

    /// The sum; none if it is too large to be exact.
    pub(super) fn plus(self, other: Self) -> Option<Self> {
        self.0.checked_add(other.0).map(Self)
    }

    /// The difference; none if it is too large to be exact.
    pub(super) fn minus(self, other: Self) -> Option<Self> {
        self.0.checked_sub(other.0).map(Self)
    }

    /// Its bytes, for a file that is read again.
    pub(super) fn to_bytes(self) -> [u8; 16] {
        self.0.to_le_bytes()
    }

    pub(super) fn from_bytes(bytes: [u8; 16]) -> Self {
        Self(i128::from_le_bytes(bytes))
    }
}

/// As few decimals as are exact, and two where there are any.
impl fmt::Display for Amount {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let sign = if self.0 < 0 { "-" } else { "" };
        let units = self.0.unsigned_abs();
        let one = ONE.unsigned_abs();
        let whole = units / one;
        let decimals = format!("{:0>DECIMALS_MAX$}", units % one);
        let decimals = decimals.trim_end_matches('0');
        if decimals.is_empty() {
            return f.pad(&format!("{sign}{whole}"));
        }
        f.pad(&format!("{sign}{whole}.{decimals:0<2}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn amounts_are_exact_and_shown_as_they_are() {
        for (text, shown) in [
            ("0", "0"),
            ("-0", "0"),
            ("12.5", "12.50"),
            ("12.50", "12.50"),
            ("0012.500", "12.50"),
            ("-3", "-3"),
            ("-0.01", "-0.01"),
            ("0.000000000001", "0.000000000001"),
            ("999999999999999999.999999999999", "999999999999999999.999999999999"),
        ] {
            let amount = Amount::parse(text).unwrap();
            assert_eq!(amount.to_string(), shown, "{text}");
            assert_eq!(Amount::from_bytes(amount.to_bytes()), amount);
        }
        let [tenth, fifth] = ["0.1", "0.2"].map(|text| Amount::parse(text).unwrap());
        assert_eq!(tenth.plus(fifth), Amount::parse("0.3").ok(), "no floating point");
        assert_eq!(tenth.minus(fifth), Amount::parse("-0.1").ok());
    }

    #[test]
    fn what_could_be_read_in_two_ways_is_refused() {
        for text in [
            "",
            "-",
            ".",
            "1.",
            ".5",
            "12,50",
            "1,000.00",
            "1e3",
            "1E3",
            "+5",
            " 5",
            "5 ",
            "5 EUR",
            "€5",
            "0x10",
            "NaN",
            "1.2.3",
            "--1",
            "(5)",
            "−5",
            "٣",
            "1_000",
            "1234567890123456789",
            "0.0000000000001",
        ] {
            let refused = Amount::parse(text).unwrap_err();
            assert!(refused.contains("is no amount"), "{text}: {refused}");
        }
    }

    #[test]
    fn a_sum_that_cannot_be_exact_is_none() {
        let most = Amount(i128::MAX);
        assert_eq!(most.plus(Amount(1)), None);
        assert_eq!(Amount(i128::MIN).minus(Amount(1)), None);
    }
}
