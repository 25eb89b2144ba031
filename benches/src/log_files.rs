//! How does a new server become like one that has run for an hour?
//!
//! A server uses old files of its write-ahead log again. A new one has none: it stops everybody for some fifty milliseconds at every
//! sixteenth megabyte while it fills a file with zeros, and so it stops most often whoever writes most.

use super::cluster::Cluster;

/// Settings under which the files stay.
pub const SETTINGS: [(&str, &str); 2] = [("max_wal_size", "8GB"), ("min_wal_size", "4GB")];

/// How many files there are before a measurement, of 16 MiB each: more than its rounds write.
const FILES: usize = 160;

/// Makes the files. To be called before each measurement that writes much.
pub fn make(cluster: &Cluster) {
    for _ in 0..FILES {
        cluster.sql("postgres", "CREATE TEMPORARY TABLE filler (); SELECT pg_switch_wal()");
    }
    cluster.sql("postgres", "CHECKPOINT");
}
