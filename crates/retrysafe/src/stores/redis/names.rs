//! Under which keys is a record kept?
//!
//! The first byte of a record's id is its bucket, and the bucket's two digits are the hash tag of all
//! its keys. So a record, its places in the indexes and what its bucket knows of the server lie in one
//! slot of a cluster and change in one script; there is no stale index entry to be mended. 256 buckets
//! spread evenly over up to a few dozen masters, and few enough are asked in one round trip.

use std::fmt::Write as _;

use retrysafe_core::scope::Id;

/// How many buckets there are.
pub(super) const BUCKETS: usize = 256;

/// How many slots a cluster has.
pub(super) const SLOTS: u16 = 16_384;

/// The keys of one bucket.
#[derive(Debug)]
pub(super) struct BucketKeys {
    /// Identity of the server, highest version, and until when grants are held.
    pub(super) meta: String,
    /// Every record, by name.
    pub(super) all: String,
    /// Records in progress, by the end of their lease.
    pub(super) leases: String,
    /// Unknown records, by since when they are.
    pub(super) unknown: String,
    /// Settled records, by their expiry.
    pub(super) expiries: String,
    /// How a record's key begins.
    pub(super) record_prefix: String,
    /// How the key of an answer's copy begins.
    #[cfg(feature = "postgres")]
    copy_prefix: String,
}

/// The keys of all buckets.
#[derive(Debug)]
pub(super) struct Names(Vec<BucketKeys>);

impl Names {
    pub(super) fn new(prefix: &str) -> Self {
        let keys = |bucket: usize| {
            let key = |what: &str| format!("{prefix}:{{{bucket:02x}}}:{what}");
            BucketKeys {
                meta: key("meta"),
                all: key("all"),
                leases: key("leases"),
                unknown: key("unknown"),
                expiries: key("expiries"),
                record_prefix: key("r:"),
                #[cfg(feature = "postgres")]
                copy_prefix: key("a:"),
            }
        };
        Self((0..BUCKETS).map(keys).collect())
    }

    /// The keys of a bucket, if there is such a bucket.
    pub(super) fn bucket(&self, bucket: usize) -> Option<&BucketKeys> {
        self.0.get(bucket)
    }
}

impl BucketKeys {
    /// The key of a record.
    pub(super) fn record(&self, id: &Id) -> String {
        key_of(&self.record_prefix, id)
    }

    /// The key of the copy of a record's answer.
    #[cfg(feature = "postgres")]
    pub(super) fn copy(&self, id: &Id) -> String {
        key_of(&self.copy_prefix, id)
    }
}

fn key_of(prefix: &str, id: &Id) -> String {
    let mut key = String::with_capacity(prefix.len() + 64);
    key.push_str(prefix);
    for byte in id.as_bytes() {
        // Writing to a string does not fail.
        let _ = write!(key, "{byte:02x}");
    }
    key
}

/// The bucket of a record.
pub(super) fn bucket_of(id: &Id) -> usize {
    id.as_bytes().first().copied().map_or(0, usize::from)
}

/// The slot of a bucket: CRC-16 (XMODEM) of its tag, as Redis Cluster counts it.
pub(super) fn slot_of(bucket: usize) -> u16 {
    let tag = format!("{bucket:02x}");
    let crc = tag.bytes().fold(0u16, |crc, byte| {
        (0..8).fold(crc ^ u16::from(byte) << 8, |crc, _| {
            if crc & 0x8000 == 0 { crc << 1 } else { (crc << 1) ^ 0x1021 }
        })
    });
    crc % SLOTS
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_are_those_of_redis_and_buckets_spread_over_masters() {
        // CLUSTER KEYSLOT of "{00}", "{3f}" and "{ff}".
        assert_eq!([0x00, 0x3f, 0xff].map(slot_of), [13_254, 7_334, 11_756]);
        let mut share = [0; 3];
        for bucket in 0..BUCKETS {
            share[usize::from(slot_of(bucket)) * 3 / usize::from(SLOTS)] += 1;
        }
        assert!(share.iter().all(|count| (80..=92).contains(count)), "{share:?}");
    }

    #[test]
    fn a_record_is_found_by_its_id() {
        let names = Names::new("p");
        let id = Id::from_bytes([0x3f; 32]);
        let keys = names.bucket(bucket_of(&id)).unwrap();
        assert_eq!(keys.meta, "p:{3f}:meta");
        assert_eq!(keys.record(&id), format!("p:{{3f}}:r:{id}"));
    }
}
