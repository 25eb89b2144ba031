//! What is the one spelling of this number, and does it still say the same?
//!
//! RFC 8785 prints every number as ECMAScript prints the nearest double. That rounds: `9007199254740993` comes
//! out as `9007199254740992`. A fingerprint must not merge two amounts, so a number counts as lossless only
//! if the printed form is numerically equal to the text it came from.
//!
//! Two facts keep this short and fast. Every decimal of at most 15 significant digits in the normal range
//! survives the trip through a double, and no other such decimal shares its double; so its printed form has the
//! same digits and no floating point is needed. And no double prints with more than 17 significant digits;
//! so a longer text is lossy without looking further, however many thousand digits it has.

/// Up to this many significant digits a decimal and its double name each other (`f64::DIGITS`).
const DIGITS_SURE: u32 = f64::DIGITS;

/// No shortest form of a double has more significant digits than this.
const DIGITS_MAX: u32 = 17;

/// Decimal points this near to the first digit are far from both ends of the doubles' range (about 10^±308), where
/// the precision of 15 digits holds.
const POINT_SURE: i64 = 290;

/// Beyond this decimal point a nonzero number of at most 17 digits is infinite or zero as a double.
const POINT_MAX: i64 = 400;

/// The longest spelling is `-0.0000012345678901234567`, 25 bytes.
const SPELLING_BYTES_MAX: usize = 32;

/// What becomes of a number that a double cannot hold exactly.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Numbers {
    /// It makes the document lossy. Fingerprints use this.
    Exact,
    /// It is rounded, as RFC 8785 asks, and `-0` becomes `0`. Only vectors and comparisons use this.
    Rounded,
}

/// The exact value of a number's text: `mantissa * 10^exponent`, where the mantissa does not end in a zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Decimal {
    negative: bool,
    mantissa: u64,
    /// Significant digits of the mantissa; more than [`DIGITS_MAX`] means that they did not fit and it is void.
    digits: u32,
    exponent: i64,
}

/// A canonical spelling, on the stack.
#[derive(Clone, Copy, Debug)]
pub(super) struct Spelling {
    bytes: [u8; SPELLING_BYTES_MAX],
    len: usize,
}

/// The length of the number at the start of `text`, if it is plainly in its canonical form: an integer or a decimal
/// fraction of few digits without needless zeros, as nearly all numbers are. `None` says nothing.
#[inline]
pub(super) fn canonical_len(text: &[u8]) -> Option<usize> {
    let whole = usize::from(text.first() == Some(&b'-'));
    // A leading zero may be `0`, `0.5`, `-0` or wrong: left to `read`.
    if !matches!(text.get(whole), Some(b'1'..=b'9')) {
        return None;
    }
    let mut end = digits_end(text, whole + 1);
    let mut digits = end - whole;
    if text.get(end) == Some(&b'.') {
        let fraction = end + 1;
        end = digits_end(text, fraction);
        digits += end - fraction;
        if !matches!(text.get(end - 1), Some(b'1'..=b'9')) {
            return None;
        }
    }
    let is_short = digits <= DIGITS_SURE as usize;
    (is_short && !matches!(text.get(end), Some(b'e' | b'E'))).then_some(end)
}

/// Reads the number at the start of `text`: its value, and how many bytes it takes. `None` if JSON has no such number.
///
/// One pass over the bytes, whatever they are.
pub(super) fn read(text: &[u8]) -> Option<(Decimal, usize)> {
    let mut at = 0;
    let negative = text.first() == Some(&b'-');
    at += usize::from(negative);

    let mut significant = Significant::default();
    let whole = at;
    while let Some(digit) = digit_at(text, at) {
        significant.push(digit);
        at += 1;
    }
    let whole_digits = at - whole;
    if whole_digits == 0 || (whole_digits > 1 && text.get(whole) == Some(&b'0')) {
        return None;
    }

    let mut fraction_digits = 0;
    if text.get(at) == Some(&b'.') {
        at += 1;
        let fraction = at;
        while let Some(digit) = digit_at(text, at) {
            significant.push(digit);
            at += 1;
        }
        fraction_digits = at - fraction;
        if fraction_digits == 0 {
            return None;
        }
    }

    let mut exponent = 0;
    if matches!(text.get(at), Some(b'e' | b'E')) {
        at += 1;
        let (value, len) = read_exponent(text.get(at..)?)?;
        exponent = value;
        at += len;
    }

    let shift = i64::try_from(significant.zeros).ok()? - i64::try_from(fraction_digits).ok()?;
    let decimal = Decimal {
        negative,
        mantissa: significant.mantissa,
        digits: significant.digits,
        exponent: exponent.saturating_add(shift),
    };
    Some((decimal, at))
}

/// The canonical spelling of a number's text, or `None` if that would say something else than `decimal`.
pub(super) fn spell(decimal: &Decimal) -> Option<Spelling> {
    if decimal.digits == 0 {
        // `-0` is a value of its own to a double, and RFC 8785 prints it as `0`.
        return if decimal.negative { None } else { Some(Spelling::of(b"0")) };
    }
    if decimal.digits > DIGITS_MAX {
        return None;
    }
    let point = decimal.exponent.saturating_add(i64::from(decimal.digits));
    if decimal.digits <= DIGITS_SURE && point.abs() <= POINT_SURE {
        return Some(spell_digits(decimal, point));
    }
    if point.abs() > POINT_MAX {
        return None;
    }
    let sign = if decimal.negative { "-" } else { "" };
    let text = format!("{sign}{}e{}", decimal.mantissa, decimal.exponent);
    let spelling = spell_rounded(&text)?;
    let (printed, _) = read(spelling.as_bytes())?;
    (printed == *decimal).then_some(spelling)
}

/// The spelling RFC 8785 gives to the double nearest to `text`, or `None` if that is not finite.
pub(super) fn spell_rounded(text: &str) -> Option<Spelling> {
    let value: f64 = text.parse().ok()?;
    if !value.is_finite() {
        return None;
    }
    Some(Spelling::of(ryu_js::Buffer::new().format_finite(value).as_bytes()))
}

/// Lays out the digits as ECMAScript's `Number::toString` does; `point` is where the decimal point stands,
/// counted from the first digit.
fn spell_digits(decimal: &Decimal, point: i64) -> Spelling {
    let mut digits = Spelling::of(b"");
    let mut divisor = 10u64.pow(decimal.digits.saturating_sub(1));
    while divisor > 0 {
        // A single digit always fits a byte.
        digits.push(b'0' + (decimal.mantissa / divisor % 10) as u8);
        divisor /= 10;
    }
    let count = i64::from(decimal.digits);

    let mut spelling = Spelling::of(if decimal.negative { b"-" } else { b"" });
    if (count..=21).contains(&point) {
        spelling.extend(digits.as_bytes());
        spelling.zeros(point - count);
    } else if (1..=21).contains(&point) {
        let (whole, fraction) = digits.split(point);
        spelling.extend(whole);
        spelling.push(b'.');
        spelling.extend(fraction);
    } else if (-5..=0).contains(&point) {
        spelling.extend(b"0.");
        spelling.zeros(-point);
        spelling.extend(digits.as_bytes());
    } else {
        let (first, others) = digits.split(1);
        spelling.extend(first);
        if !others.is_empty() {
            spelling.push(b'.');
            spelling.extend(others);
        }
        let power = point - 1;
        spelling.extend(if power < 0 { b"e-" } else { b"e+" });
        spelling.whole(power.unsigned_abs());
    }
    spelling
}

/// The significant digits seen so far: no zero before the first, and zeros at the end counted apart, since they are
/// significant only if another digit follows.
#[derive(Default)]
struct Significant {
    mantissa: u64,
    digits: u32,
    zeros: usize,
}

impl Significant {
    #[inline]
    fn push(&mut self, digit: u8) {
        if digit == 0 {
            self.zeros += usize::from(self.digits > 0);
            return;
        }
        let digits = self.zeros.saturating_add(1).saturating_add(self.digits as usize);
        if digits > DIGITS_MAX as usize {
            // Void from here on, and it stays so: the count never falls.
            self.digits = DIGITS_MAX + 1;
        } else {
            self.mantissa = self.mantissa * 10u64.pow(self.zeros as u32 + 1) + u64::from(digit);
            self.digits = digits as u32;
        }
        self.zeros = 0;
    }
}

#[inline]
fn digit_at(text: &[u8], at: usize) -> Option<u8> {
    text.get(at).map(|byte| byte.wrapping_sub(b'0')).filter(|digit| *digit < 10)
}

#[inline]
fn digits_end(text: &[u8], from: usize) -> usize {
    let mut end = from;
    while digit_at(text, end).is_some() {
        end += 1;
    }
    end
}

/// Reads what follows the `e`: the power, saturated, and its length in bytes.
fn read_exponent(text: &[u8]) -> Option<(i64, usize)> {
    let signed = matches!(text.first(), Some(b'+' | b'-'));
    let mut at = usize::from(signed);
    let mut power = 0i64;
    while let Some(digit) = digit_at(text, at) {
        // No text is long enough for its digits to make up for a saturated power, so saturating stays lossy.
        power = power.saturating_mul(10).saturating_add(i64::from(digit));
        at += 1;
    }
    if at == usize::from(signed) {
        return None;
    }
    Some((if text.first() == Some(&b'-') { -power } else { power }, at))
}

impl Spelling {
    fn of(bytes: &[u8]) -> Self {
        let mut spelling = Self { bytes: [0; SPELLING_BYTES_MAX], len: 0 };
        spelling.extend(bytes);
        spelling
    }

    pub(super) fn as_bytes(&self) -> &[u8] {
        self.bytes.get(..self.len).unwrap_or_default()
    }

    fn push(&mut self, byte: u8) {
        debug_assert!(self.len < SPELLING_BYTES_MAX, "a spelling never fills its buffer");
        if let Some(place) = self.bytes.get_mut(self.len) {
            *place = byte;
            self.len += 1;
        }
    }

    fn extend(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.push(*byte);
        }
    }

    fn zeros(&mut self, count: i64) {
        for _ in 0..count {
            self.push(b'0');
        }
    }

    /// Writes a power of ten; it has at most three digits.
    fn whole(&mut self, value: u64) {
        for divisor in [100, 10, 1] {
            if value >= divisor || divisor == 1 {
                self.push(b'0' + (value / divisor % 10) as u8);
            }
        }
    }

    fn split(&self, at: i64) -> (&[u8], &[u8]) {
        let at = usize::try_from(at).unwrap_or_default();
        self.as_bytes().split_at_checked(at).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn exact(text: &str) -> Option<String> {
        let (decimal, len) = read(text.as_bytes())?;
        (len == text.len()).then_some(())?;
        let spelling = spell(&decimal);
        if canonical_len(text.as_bytes()).is_some() {
            assert_eq!(spelling.as_ref().map(Spelling::as_bytes), Some(text.as_bytes()));
        }
        spelling.map(|spelling| String::from_utf8(spelling.as_bytes().to_vec()).unwrap())
    }

    #[test]
    fn equal_numbers_have_one_spelling() {
        for (text, spelling) in [
            ("0", "0"),
            ("0.000", "0"),
            ("0e999999999999999999999", "0"),
            ("1.0", "1"),
            ("10e-1", "1"),
            ("1e0000000000000000000000000000000002", "100"),
            ("0.1", "0.1"),
            ("-19.990", "-19.99"),
            ("1e20", "100000000000000000000"),
            ("1E21", "1e+21"),
            ("123456789e13", "1.23456789e+21"),
            ("0.000001", "0.000001"),
            ("0.0000001", "1e-7"),
            ("-0.00000123", "-0.00000123"),
            ("1.5e-10", "1.5e-10"),
            ("1e23", "1e+23"),
            ("5e-324", "5e-324"),
            ("1.7976931348623157e308", "1.7976931348623157e+308"),
            ("9007199254740991", "9007199254740991"),
            ("9007199254740992", "9007199254740992"),
            ("-9007199254740994", "-9007199254740994"),
        ] {
            assert_eq!(exact(text).as_deref(), Some(spelling), "{text}");
        }
    }

    #[test]
    fn numbers_that_a_double_cannot_hold_are_lossy() {
        for text in [
            "-0",
            "-0.0",
            "-0e5",
            "9007199254740993",
            "0.10000000000000000555",
            "1e400",
            "-1e99999999999999999999999",
            "1e-400",
            "1e-99999999999999999999999",
            "333333333.33333329",
            "123456789012345678",
            "4e-324",
            "1.7976931348623159e308",
        ] {
            assert_eq!(exact(text), None, "{text}");
        }
    }

    #[test]
    fn what_json_does_not_call_a_number_is_none() {
        for text in
            ["", "-", "01", "-01", "1.", ".5", "+1", "1e", "1e+", "1.e1", "--1", "1x", "0x1"]
        {
            assert_eq!(exact(text), None, "{text}");
        }
    }

    #[test]
    fn ten_thousand_digits_are_judged_by_value() {
        let zeros = "0".repeat(10_000);
        assert_eq!(exact(&format!("1.{zeros}")).as_deref(), Some("1"));
        assert_eq!(exact(&format!("1{zeros}e-10000")).as_deref(), Some("1"));
        assert_eq!(exact(&format!("0.{zeros}1e10001")).as_deref(), Some("1"));
        assert_eq!(exact(&format!("1.{zeros}1")), None);
        assert_eq!(exact(&"9".repeat(10_000)), None);
    }

    #[test]
    fn a_million_zeros_are_made_up_for_by_the_exponent() {
        let zeros = "0".repeat(1_000_000);
        assert_eq!(exact(&format!("0.{zeros}25e1000002")).as_deref(), Some("25"));
    }

    proptest! {
        /// The short cut without floating point prints what the reference algorithm prints.
        #[test]
        fn short_decimals_print_like_their_doubles(
            mantissa in 1u64..=999_999_999_999_999,
            exponent in -320i64..=320,
            negative: bool,
        ) {
            let text = format!("{}{mantissa}e{exponent}", if negative { "-" } else { "" });
            let (decimal, _) = read(text.as_bytes()).unwrap();
            if let Some(spelling) = spell(&decimal) {
                let rounded = spell_rounded(&text).unwrap();
                prop_assert_eq!(spelling.as_bytes(), rounded.as_bytes());
            } else {
                let point = decimal.exponent + i64::from(decimal.digits);
                prop_assert!(point.abs() > POINT_SURE, "{} is in the normal range", text);
            }
        }

        /// Whatever a double prints is lossless and prints as itself.
        #[test]
        fn printed_doubles_are_fixed_points(bits: u64) {
            let value = f64::from_bits(bits);
            prop_assume!(value.is_finite() && value != 0.0);
            let printed = ryu_js::Buffer::new().format_finite(value).to_owned();
            prop_assert_eq!(exact(&printed), Some(printed));
        }
    }
}
