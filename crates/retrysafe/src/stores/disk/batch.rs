//! How is a batch found and verified again?

use std::io;

use super::files::File;
use super::format::{BATCH_BYTES, BatchHeader, SECTOR, sector_up};

/// How much of a segment is looked through at a time.
const WINDOW: usize = 1 << 20;

/// A segment as it is read: whose it is and how long.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Place<'a> {
    pub(crate) file: &'a dyn File,
    pub(crate) store: u64,
    pub(crate) generation: u64,
    pub(crate) bytes: u32,
}

impl Place<'_> {
    /// Reads the batch at an offset, with its entries into `body`. `None` if there is no intact one.
    pub(crate) fn batch(&self, offset: u32, body: &mut Vec<u8>) -> io::Result<Option<BatchHeader>> {
        let Some(header) = self.header(offset)? else { return Ok(None) };
        body.resize(header.length as usize, 0);
        self.file.read(body, u64::from(offset) + BATCH_BYTES as u64)?;
        Ok((crc32c::crc32c(body) == header.checksum).then_some(header))
    }

    /// The header of the batch at an offset, if it is intact, whatever its entries are.
    pub(crate) fn header(&self, offset: u32) -> io::Result<Option<BatchHeader>> {
        if u64::from(offset) + SECTOR as u64 > u64::from(self.bytes) {
            return Ok(None);
        }
        let mut bytes = [0; BATCH_BYTES];
        self.file.read(&mut bytes, u64::from(offset))?;
        Ok(BatchHeader::decode(&bytes).filter(|header| self.is_here(header, offset)))
    }

    /// Looks for the header of a batch at or after an offset.
    ///
    /// The header alone counts: a batch is written only after everything before it was flushed, so
    /// where one was begun, nothing before it can be a write that a crash has torn.
    pub(crate) fn next_header(&self, from: u32) -> io::Result<Option<u32>> {
        let mut window = vec![0; WINDOW.min(self.bytes as usize)];
        let mut start = from;
        while start < self.bytes {
            let length = window.len().min((self.bytes - start) as usize);
            let Some(part) = window.get_mut(..length) else { break };
            self.file.read(part, u64::from(start))?;
            for (n, sector) in part.chunks(SECTOR).enumerate() {
                let offset = start + (n * SECTOR) as u32;
                if BatchHeader::decode(sector).is_some_and(|header| self.is_here(&header, offset)) {
                    return Ok(Some(offset));
                }
            }
            start += length as u32;
        }
        Ok(None)
    }

    fn is_here(&self, header: &BatchHeader, offset: u32) -> bool {
        let room = u64::from(self.bytes).saturating_sub(u64::from(offset) + BATCH_BYTES as u64);
        header.store == self.store
            && header.generation == self.generation
            && header.offset == offset
            && u64::from(header.length) <= room
    }
}

impl BatchHeader {
    /// Where the next batch begins.
    pub(crate) fn end(&self) -> u32 {
        sector_up(self.offset as usize + BATCH_BYTES + self.length as usize) as u32
    }
}
