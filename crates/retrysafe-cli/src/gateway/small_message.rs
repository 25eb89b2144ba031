//! How is a message of several pieces written?
//!
//! The kernel takes longer for a list of pieces than for one piece, and nearly every message is small: a head of a few hundred bytes, and
//! a body that is not much longer. So a small message is copied into one piece first. A large one is written as the pieces that it has.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll};

use hyper::rt::Write;

/// The largest message that is copied. To copy so much takes less time than the list of pieces would.
const SMALL_BYTES_MAX: usize = 2 << 10;

/// Writes the pieces of a message, or the first of them.
pub(super) fn poll_write_pieces<T: Write + Unpin>(
    io: &mut T,
    context: &mut Context<'_>,
    pieces: &[IoSlice<'_>],
) -> Poll<io::Result<usize>> {
    if let [only] = pieces {
        return Pin::new(io).poll_write(context, only);
    }
    let length: usize = pieces.iter().map(|piece| piece.len()).sum();
    let mut copy = [0; SMALL_BYTES_MAX];
    let Some(message) = copy.get_mut(..length) else {
        return Pin::new(io).poll_write_vectored(context, pieces);
    };
    let mut rest = &mut *message;
    for piece in pieces {
        let Some((room, after)) = rest.split_at_mut_checked(piece.len()) else { break };
        room.copy_from_slice(piece);
        rest = after;
    }
    Pin::new(io).poll_write(context, message)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::task::Waker;

    /// Takes so many bytes at once, and keeps them and how they came.
    struct Taking {
        at_once: usize,
        taken: Vec<u8>,
        is_in_pieces: bool,
    }

    impl Write for Taking {
        fn poll_write(
            mut self: Pin<&mut Self>,
            _: &mut Context<'_>,
            bytes: &[u8],
        ) -> Poll<io::Result<usize>> {
            let length = bytes.len().min(self.at_once);
            self.taken.extend_from_slice(&bytes[..length]);
            Poll::Ready(Ok(length))
        }

        fn poll_write_vectored(
            mut self: Pin<&mut Self>,
            context: &mut Context<'_>,
            pieces: &[IoSlice<'_>],
        ) -> Poll<io::Result<usize>> {
            self.is_in_pieces = true;
            let all: Vec<u8> = pieces.iter().flat_map(|piece| piece.iter().copied()).collect();
            self.poll_write(context, &all)
        }

        fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
            Poll::Ready(Ok(()))
        }

        fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
            Poll::Ready(Ok(()))
        }
    }

    /// Writes a message of pieces with these lengths until it is written.
    fn write(lengths: &[usize], at_once: usize) -> Taking {
        let pieces: Vec<Vec<u8>> =
            lengths.iter().enumerate().map(|(n, length)| vec![n as u8 + 1; *length]).collect();
        let mut io = Taking { at_once, taken: Vec::new(), is_in_pieces: false };
        let mut slices: Vec<IoSlice<'_>> = pieces.iter().map(|piece| IoSlice::new(piece)).collect();
        let mut left = &mut slices[..];
        while !left.is_empty() {
            let mut context = Context::from_waker(Waker::noop());
            let Poll::Ready(Ok(written)) = poll_write_pieces(&mut io, &mut context, left) else {
                panic!("it takes bytes at any time");
            };
            IoSlice::advance_slices(&mut left, written);
        }
        assert_eq!(io.taken, pieces.concat(), "{lengths:?}, {at_once} at once");
        io
    }

    #[test]
    fn every_message_arrives_whole_however_little_is_taken_at_once() {
        for lengths in [&[5][..], &[0, 7], &[200, 1_024], &[3, 0, 4, 1], &[2_000, 2_000, 2_000]] {
            for at_once in [1, 3, 1_000, usize::MAX] {
                write(lengths, at_once);
            }
        }
    }

    #[test]
    fn a_small_message_is_one_piece_and_a_large_one_stays_as_it_is() {
        assert!(!write(&[200, SMALL_BYTES_MAX - 200], usize::MAX).is_in_pieces);
        assert!(write(&[200, SMALL_BYTES_MAX - 199], usize::MAX).is_in_pieces);
        assert!(!write(&[10 * SMALL_BYTES_MAX], usize::MAX).is_in_pieces, "there is one piece");
    }
}
