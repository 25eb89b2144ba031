//! Is a damaged record refused, and an undamaged one read as it was written?

#![no_main]

use libfuzzer_sys::fuzz_target;
use retrysafe_core::record::Record;

fuzz_target!(|bytes: &[u8]| {
    check(bytes.to_vec());
    // Random bytes hardly ever carry the right checksum; with it they get past it, to the fields.
    let mut sealed = bytes.to_vec();
    sealed.extend_from_slice(&crc32c::crc32c(bytes).to_le_bytes());
    check(sealed);
});

fn check(bytes: Vec<u8>) {
    if let Ok(record) = Record::decode(bytes) {
        // Not compared with the bytes themselves: a number may be written longer than need be.
        assert_eq!(Record::decode(record.encode()).ok().as_ref(), Some(&record));
    }
}
