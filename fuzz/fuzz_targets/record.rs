//! Is a damaged record refused, and an undamaged one read as it was written?

#![no_main]

use libfuzzer_sys::fuzz_target;
use retrysafe_core::record::Record;

fuzz_target!(|bytes: &[u8]| {
    if let Ok(record) = Record::decode(bytes.to_vec()) {
        let encoded = record.encode();
        assert_eq!(encoded, bytes, "there is one way to write a record");
    }
});
