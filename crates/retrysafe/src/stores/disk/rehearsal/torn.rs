//! Is half a batch ever taken for a whole one?
//!
//! The checksum of a batch was a CRC-32C over entries that end in their own CRC-32C. Such a checksum
//! depends on nothing but lengths: over a segment's former life, with entries of the same lengths, a
//! torn batch verified, and an acknowledged record was damaged.

use std::sync::Arc;

use retrysafe_core::record::{Becomes, Record, Write};
use tokio::sync::oneshot;

use super::super::format::{
    BATCH_BYTES, BatchHeader, ENTRY_BYTES, EntryHeader, EntryPlace, checksum_of,
};
use super::super::open::open as open_store;
use super::super::ops::{LogWriter, WriterOp};
use super::folder::{Disk, TestFolder};
use super::script::{START, first, settings};
use crate::stores::clock::Clock;

fn open(folder: &TestFolder) -> LogWriter {
    let (clock, _) = Clock::manual(START);
    open_store(Arc::new(folder.clone()), settings(clock)).unwrap_or_else(|e| panic!("{e}"))
}

/// Changes all records in one batch; none grows.
fn change(log: &mut LogWriter, records: &[Record], becomes: &Becomes) {
    let current = records.iter().map(|record| log.reader.find(&record.id).unwrap().unwrap());
    let write = Write { becomes: becomes.clone(), new_fence: false, what: None, ttl: None };
    let swap = |record| WriterOp::Swap(Box::new((record, write.clone())), oneshot::channel().0);
    let swaps: Vec<WriterOp> = current.map(swap).collect();
    log.commit(swaps);
}

#[test]
fn a_torn_batch_over_a_former_life_of_its_segment_is_cut_off_whatever_its_size() {
    let mut torn = 0;
    for path_bytes in 40..100 {
        let folder = TestFolder::default();
        let mut log = open(&folder);
        let mut records = Vec::new();
        for key in 0..5 {
            let mut one = first(100_000 + key, 1_000_000);
            one.about.path = "x".repeat(path_bytes).into();
            records.push(one.record(START, 0));
            log.commit([WriterOp::Insert(Box::new(one), oneshot::channel().0)]);
        }
        change(&mut log, &records, &Becomes::FailedRetryable);
        for _ in 0..20 {
            change(&mut log, &records, &Becomes::Same);
        }
        assert!(
            log.tail().generation > u64::from(log.tail().ring.slots()),
            "segments were recycled"
        );
        let mut disk = Disk::default();
        folder.calls().iter().for_each(|call| disk.step(call));
        let calls = folder.calls_len();
        let acknowledged = log.tail().sequence;
        change(&mut log, &records, &Becomes::Same);
        for call in &folder.calls()[calls..] {
            for kept in 1..disk.pending.len() {
                let log = open(&TestFolder::of(disk.crashed(|n| n < kept)));
                for record in &records {
                    let found = log.reader.find(&record.id).unwrap().unwrap();
                    assert!(found.version <= acknowledged, "half of a batch counts: {found:?}");
                }
                torn += 1;
            }
            disk.step(call);
        }
    }
    println!("{torn} torn batches, 0 taken for whole");
    assert!(torn >= 60);
}

/// A batch of four entries of the same length, and what it is made of.
fn batch() -> (BatchHeader, Vec<u8>, Vec<usize>) {
    let folder = TestFolder::default();
    let mut log = open(&folder);
    let insert =
        |key: u32| WriterOp::Insert(Box::new(first(100_000 + key, 60)), oneshot::channel().0);
    let inserts: Vec<WriterOp> = (0..4).map(insert).collect();
    let offset = log.tail().end as usize;
    log.commit(inserts);
    let image = folder.image();
    let segment = &image.files[image.names["segment-00000"]];
    let header = BatchHeader::decode(&segment[offset..]).unwrap();
    let body = segment[offset + BATCH_BYTES..][..header.length as usize].to_vec();
    let starts = header.entries(&body).map(|found| found.unwrap().1 - ENTRY_BYTES).collect();
    assert_eq!(checksum_of(&body), header.checksum);
    (header, body, starts)
}

#[test]
fn other_content_with_checksums_of_its_own_that_fit_breaks_the_batch() {
    let (batch, body, starts) = batch();
    let mut tried = 0;
    for (at, other) in starts.iter().flat_map(|at| starts.iter().map(move |other| (*at, *other))) {
        for version in 1..50 {
            // An older entry of the same length, from this place or from another: everything that
            // it carries verifies.
            let found = batch.entries(&body[..]).flatten();
            let (header, record) =
                found.into_iter().find(|(_, record)| record - ENTRY_BYTES == other).unwrap();
            let mut old =
                Record::decode(body[record..][..header.length as usize].to_vec()).unwrap();
            old.version = version;
            let bytes = old.encode();
            let is_other = at != other || version != header.version;
            if bytes.len() != header.length as usize || !is_other {
                continue;
            }
            let mut changed = body.clone();
            let offset = batch.offset + (BATCH_BYTES + at) as u32;
            let BatchHeader { store, generation, .. } = batch;
            let place = EntryPlace { store, generation, offset };
            EntryHeader { version, ..header }.encode(&mut changed[at..], place);
            changed[at + ENTRY_BYTES..][..bytes.len()].copy_from_slice(&bytes);
            assert_eq!(
                batch.entries(&changed).flatten().count(),
                starts.len(),
                "all entries verify"
            );
            assert_ne!(checksum_of(&changed), batch.checksum, "another batch verifies");
            tried += 1;
        }
    }
    println!("{tried} batches with other entries, 0 verify");
    assert!(tried > 500);
}

#[test]
fn an_entry_of_another_place_or_of_a_former_life_is_none() {
    let (batch, body, starts) = batch();
    let moved = BatchHeader { offset: batch.offset + 4_096, ..batch };
    let former = BatchHeader { generation: batch.generation + 1, ..batch };
    let foreign = BatchHeader { store: batch.store ^ 1, ..batch };
    assert_eq!(batch.entries(&body).flatten().count(), starts.len());
    for other in [moved, former, foreign] {
        assert_eq!(other.entries(&body).flatten().count(), 0);
    }
}
