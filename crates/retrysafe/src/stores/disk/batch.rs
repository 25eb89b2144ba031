//! How is a batch found and verified again?

use std::io;

use super::files::StoreFile;
use super::format::{BATCH_BYTES, BatchHeader, PAGE, StoreDescription};

/// How much of a segment is looked through at a time.
const WINDOW: usize = 1 << 20;

/// A segment as it is read: whose it is and how long.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SegmentPlace<'a> {
    pub(crate) file: &'a dyn StoreFile,
    pub(crate) store: u64,
    pub(crate) generation: u64,
    pub(crate) bytes: u32,
}

/// How a segment goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NextBatch {
    /// With this batch, which verifies.
    Batch(BatchHeader),
    /// Not at all: nothing that was flushed follows.
    End,
    /// Something that was flushed follows, and what stands here does not verify.
    Broken,
}

impl SegmentPlace<'_> {
    /// How the segment goes on at an offset, with the entries of the next batch in `body`.
    ///
    /// A batch that does not verify is passed over if a later one holds it anew. If a later one was
    /// begun when this place was durable, what stands here is damaged. The header of that later one
    /// is proof enough, whatever became of its entries.
    pub(crate) fn next(&self, at: u32, body: &mut Vec<u8>) -> io::Result<NextBatch> {
        if let Some(batch) = self.batch(at, body)? {
            return Ok(NextBatch::Batch(batch));
        }
        let mut from = at.saturating_add(PAGE as u32);
        while let Some(later) = self.next_header(from)? {
            if later.after > at {
                return Ok(NextBatch::Broken);
            }
            if let Some(batch) = self.batch(later.offset, body)? {
                return Ok(NextBatch::Batch(batch));
            }
            from = later.offset.saturating_add(PAGE as u32);
        }
        Ok(NextBatch::End)
    }

    /// Reads the batch at an offset, with its entries into `body`. `None` if there is no intact one.
    pub(crate) fn batch(&self, offset: u32, body: &mut Vec<u8>) -> io::Result<Option<BatchHeader>> {
        let Some(header) = self.header(offset)? else { return Ok(None) };
        *body = vec![0; header.bytes_on_disk() - BATCH_BYTES];
        self.file.read(body, u64::from(offset) + BATCH_BYTES as u64)?;
        let is_intact = header.verifies(body);
        body.truncate(header.length as usize);
        Ok(is_intact.then_some(header))
    }

    /// The header of the batch at an offset, if it is intact, whatever its entries are.
    pub(crate) fn header(&self, offset: u32) -> io::Result<Option<BatchHeader>> {
        if u64::from(offset) + PAGE as u64 > u64::from(self.bytes) {
            return Ok(None);
        }
        let mut bytes = [0; BATCH_BYTES];
        self.file.read(&mut bytes, u64::from(offset))?;
        Ok(BatchHeader::decode(&bytes).filter(|header| self.is_here(header, offset)))
    }

    /// Looks for the header of a batch at or after an offset, whatever its entries are.
    pub(crate) fn next_header(&self, from: u32) -> io::Result<Option<BatchHeader>> {
        let mut window = vec![0; WINDOW.min(self.bytes as usize)];
        let mut start = from;
        while start < self.bytes {
            let length = window.len().min((self.bytes - start) as usize);
            let Some(part) = window.get_mut(..length) else { break };
            self.file.read(part, u64::from(start))?;
            for (n, page) in part.chunks(PAGE).enumerate() {
                let offset = start + (n * PAGE) as u32;
                let header = BatchHeader::decode(page).filter(|found| self.is_here(found, offset));
                if header.is_some() {
                    return Ok(header);
                }
            }
            start += length as u32;
        }
        Ok(None)
    }

    fn is_here(&self, header: &BatchHeader, offset: u32) -> bool {
        header.store == self.store
            && header.generation == self.generation
            && header.offset == offset
            && header.after <= offset
            && u64::from(offset) + header.bytes_on_disk() as u64 <= u64::from(self.bytes)
    }
}

/// The latest generation of which a segment holds a batch before an offset, whatever became of the
/// segment's own header; and whether that batch was begun after the header was durable. One that was
/// durable before the header counts if it is whole.
pub(crate) fn latest_generation(
    file: &dyn StoreFile,
    store: &StoreDescription,
    until: u32,
) -> io::Result<Option<(u64, bool)>> {
    let StoreDescription { store, segment_bytes } = *store;
    let mut window = vec![0; WINDOW.min(until as usize)];
    let mut latest = None;
    let mut body = Vec::new();
    let mut start = PAGE as u32;
    while start < until {
        let length = window.len().min((until - start) as usize);
        let Some(part) = window.get_mut(..length) else { break };
        file.read(part, u64::from(start))?;
        for (n, page) in part.chunks(PAGE).enumerate() {
            let offset = start + (n * PAGE) as u32;
            let Some(batch) = BatchHeader::decode(page) else { continue };
            let place =
                SegmentPlace { file, store, generation: batch.generation, bytes: segment_bytes };
            let is_after_header = batch.after >= PAGE as u32;
            let is_here = place.is_here(&batch, offset)
                && (is_after_header || place.batch(offset, &mut body)?.is_some());
            if is_here {
                latest = latest.max(Some((batch.generation, is_after_header)));
            }
        }
        start += length as u32;
    }
    Ok(latest)
}
