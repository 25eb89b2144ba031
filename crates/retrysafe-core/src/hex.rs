//! How do bytes look in hexadecimal digits?

/// Two digits for each byte.
pub(crate) fn hex(bytes: &[u8]) -> String {
    // Not by way of `write!`: a record's name is spelt out for every request.
    let digit = |half: u8| if half < 10 { b'0' + half } else { b'a' + half - 10 };
    let mut digits = Vec::with_capacity(bytes.len() * 2);
    for byte in bytes {
        digits.extend_from_slice(&[digit(byte >> 4), digit(byte & 15)]);
    }
    String::from_utf8(digits).unwrap_or_default()
}
