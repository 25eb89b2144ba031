//! How does a journalled call look as bytes?
//!
//! A magic, a version, the fields in order, and a CRC-32C over all of it. Numbers are little-endian,
//! byte strings carry their length. Bytes of any content are safe to read; what does not fit is
//! damage, and damage is never executed.

use std::time::{Duration, UNIX_EPOCH};

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, Method, Request, Uri};
use retrysafe_core::Key;

use crate::client::age::{BootReading, FirstSent};

const MAGIC: &[u8] = b"retrysafe call ";
const VERSION: u8 = 2;

/// A call as the journal keeps it.
#[derive(Debug)]
pub(crate) struct Entry {
    /// When the first attempt was about to be made.
    pub(crate) first_sent: FirstSent,
    pub(crate) key: Key,
    /// The request, with its key and without the headers that are not journalled.
    pub(crate) request: Request<Bytes>,
    /// The headers it also had.
    pub(crate) withheld: Vec<HeaderName>,
}

/// Why a file of the journal is not a call.
#[derive(Debug)]
#[non_exhaustive]
pub enum Damage {
    /// The process ended while it wrote this. The call was never sent: remove the file.
    HalfWritten,
    /// The checksum does not fit. The call may have been sent.
    Checksum,
    /// Written by another version of this format. The call may have been sent.
    UnknownVersion(u8),
    /// The checksum fits, yet the fields make no sense. The call may have been sent.
    Malformed,
    /// The file could not be read. The call may have been sent.
    Unreadable(std::io::Error),
}

impl std::fmt::Display for Damage {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::HalfWritten => f.write_str("half written; the call was never sent"),
            Self::Checksum => f.write_str("the checksum does not fit; the call may have been sent"),
            Self::UnknownVersion(version) => {
                write!(f, "format {version} is not known to this program")
            }
            Self::Malformed => f.write_str("the fields make no sense; the call may have been sent"),
            Self::Unreadable(error) => write!(f, "cannot be read: {error}"),
        }
    }
}

/// The bytes of a call.
pub(super) fn encode(
    request: &Request<Bytes>,
    key: &Key,
    withheld: &[HeaderName],
    first_sent: &FirstSent,
) -> Vec<u8> {
    let mut out = Vec::with_capacity(1_024 + request.body().len());
    out.extend_from_slice(MAGIC);
    out.push(VERSION);
    let wall = first_sent.wall.duration_since(UNIX_EPOCH).unwrap_or_default();
    out.extend_from_slice(&whole_ms(wall).to_le_bytes());
    // No machine draws the number zero, so that it stands for one that was not read.
    let boot_id = first_sent.boot.map_or(0, |boot| boot.boot_id);
    let uptime = first_sent.boot.map(|boot| boot.uptime).unwrap_or_default();
    out.extend_from_slice(&boot_id.to_le_bytes());
    out.extend_from_slice(&whole_ms(uptime).to_le_bytes());
    put(&mut out, key.as_str().as_bytes());
    put(&mut out, request.method().as_str().as_bytes());
    put(&mut out, request.uri().to_string().as_bytes());
    let headers = request.headers();
    let absent: Vec<_> = withheld.iter().filter(|name| headers.contains_key(*name)).collect();
    for (name, value) in headers.iter().filter(|(name, _)| !absent.contains(name)) {
        put(&mut out, name.as_str().as_bytes());
        put(&mut out, value.as_bytes());
    }
    // No header has an empty name, so this ends the list.
    put(&mut out, b"");
    for name in absent {
        put(&mut out, name.as_str().as_bytes());
    }
    put(&mut out, b"");
    put(&mut out, request.body());
    let checksum = crc32c::crc32c(&out);
    out.extend_from_slice(&checksum.to_le_bytes());
    out
}

/// Whole milliseconds that have passed, so that nothing looks younger than it is.
fn whole_ms(length: Duration) -> u64 {
    u64::try_from(length.as_millis()).unwrap_or(u64::MAX)
}

fn put(out: &mut Vec<u8>, bytes: &[u8]) {
    out.extend_from_slice(&(bytes.len() as u64).to_le_bytes());
    out.extend_from_slice(bytes);
}

/// The call that these bytes are.
pub(super) fn decode(bytes: Vec<u8>) -> Result<Entry, Damage> {
    let bytes = Bytes::from(bytes);
    let fields = bytes.len().checked_sub(4).ok_or(Damage::Checksum)?;
    let body = bytes.slice(..fields);
    let checksum = bytes.slice(fields..);
    if crc32c::crc32c(&body).to_le_bytes() != *checksum {
        return Err(Damage::Checksum);
    }
    let body = body.strip_prefix(MAGIC).map(|rest| body.slice_ref(rest));
    let mut from = Reader(body.ok_or(Damage::Malformed)?);
    match from.take(1).as_deref() {
        Some([VERSION]) => {}
        Some([version]) => return Err(Damage::UnknownVersion(*version)),
        Some(_) | None => return Err(Damage::Malformed),
    }
    from.entry().filter(|_| from.0.is_empty()).ok_or(Damage::Malformed)
}

struct Reader(Bytes);

impl Reader {
    fn take(&mut self, len: usize) -> Option<Bytes> {
        (len <= self.0.len()).then(|| self.0.split_to(len))
    }

    fn number(&mut self) -> Option<u64> {
        Some(u64::from_le_bytes(self.take(8)?.as_ref().try_into().ok()?))
    }

    fn bytes(&mut self) -> Option<Bytes> {
        let len = usize::try_from(self.number()?).ok()?;
        self.take(len)
    }

    fn entry(&mut self) -> Option<Entry> {
        let first_sent = self.first_sent()?;
        let key = Key::new(std::str::from_utf8(&self.bytes()?).ok()?).ok()?;
        let method = Method::from_bytes(&self.bytes()?).ok()?;
        let uri = Uri::from_maybe_shared(self.bytes()?).ok()?;
        let mut headers = HeaderMap::new();
        while let Some(name) = self.name()? {
            headers.append(name, HeaderValue::from_maybe_shared(self.bytes()?).ok()?);
        }
        let mut withheld = Vec::new();
        while let Some(name) = self.name()? {
            withheld.push(name);
        }
        let mut request = Request::new(self.bytes()?);
        *request.method_mut() = method;
        *request.uri_mut() = uri;
        *request.headers_mut() = headers;
        Some(Entry { first_sent, key, request, withheld })
    }

    fn first_sent(&mut self) -> Option<FirstSent> {
        let wall = UNIX_EPOCH.checked_add(Duration::from_millis(self.number()?))?;
        let boot_id = u128::from_le_bytes(self.take(16)?.as_ref().try_into().ok()?);
        let uptime = Duration::from_millis(self.number()?);
        let boot = (boot_id != 0).then_some(BootReading { boot_id, uptime });
        Some(FirstSent { wall, boot, here: None })
    }

    /// The next name of a list, or its end.
    fn name(&mut self) -> Option<Option<HeaderName>> {
        let bytes = self.bytes()?;
        if bytes.is_empty() { Some(None) } else { HeaderName::from_bytes(&bytes).ok().map(Some) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes() -> Vec<u8> {
        let request = Request::patch("http://shop.test/orders/7?x=1")
            .header("Idempotency-Key", "k-1")
            .header("Authorization", "Bearer secret")
            .header("X-Tag", "a")
            .header("X-Tag", HeaderValue::from_bytes(b"\xff").unwrap())
            .body(Bytes::from_static(b"\0\x01body"))
            .unwrap();
        let withheld = [http::header::AUTHORIZATION, http::header::COOKIE];
        let boot = Some(BootReading { boot_id: 3, uptime: Duration::from_micros(9_900) });
        let wall = UNIX_EPOCH + Duration::from_millis(7);
        let first_sent = FirstSent { wall, boot, here: None };
        encode(&request, &Key::new("k-1").unwrap(), &withheld, &first_sent)
    }

    #[test]
    fn what_was_written_is_read_without_the_withheld_headers() {
        let entry = decode(bytes()).unwrap();
        let FirstSent { wall, boot, here: None } = entry.first_sent else { panic!() };
        assert_eq!(wall, UNIX_EPOCH + Duration::from_millis(7));
        assert_eq!(boot, Some(BootReading { boot_id: 3, uptime: Duration::from_millis(9) }));
        assert_eq!(entry.key.as_str(), "k-1");
        assert_eq!(entry.request.method(), Method::PATCH);
        assert_eq!(entry.request.uri(), "http://shop.test/orders/7?x=1");
        assert_eq!(entry.request.headers().len(), 3);
        let tags: Vec<_> = entry.request.headers().get_all("x-tag").iter().collect();
        assert_eq!(tags, [&b"a"[..], b"\xff"]);
        assert_eq!(entry.request.body().as_ref(), b"\0\x01body");
        // Only what the request really had must be supplied again.
        assert_eq!(entry.withheld, [http::header::AUTHORIZATION]);
        assert!(!bytes().windows(6).any(|window| window == b"secret"));
    }

    #[test]
    fn every_cut_and_every_changed_byte_is_damage() {
        let whole = bytes();
        for len in 0..whole.len() {
            assert!(decode(whole[..len].to_vec()).is_err(), "cut at {len}");
        }
        for at in 0..whole.len() {
            let mut changed = whole.clone();
            changed[at] ^= 0x20;
            assert!(decode(changed).is_err(), "changed at {at}");
        }
    }

    #[test]
    fn another_format_is_named() {
        let mut newer = bytes();
        newer.truncate(newer.len() - 4);
        newer[MAGIC.len()] = VERSION + 1;
        let checksum = crc32c::crc32c(&newer);
        newer.extend_from_slice(&checksum.to_le_bytes());
        assert!(
            matches!(decode(newer), Err(Damage::UnknownVersion(version)) if version == VERSION + 1)
        );
    }
}
