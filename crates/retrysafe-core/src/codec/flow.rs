//! How does a flow's progress look as bytes?
//!
//! The name of the flow, its version, its input, the outputs with their number in front, and the
//! first-sent mark or a zero. A plain record has none of it.

use bytes::Bytes;

use super::{DecodeError, Reader, put, put_bytes};
use crate::flow::{
    FLOW_BYTES_MAX, FirstSentMark, FlowMove, FlowProgress, FlowVersion, PHASES_MAX, RecoveryPoint,
    RequestDigest,
};
use crate::record::Fence;
use crate::time::Time;

impl FlowProgress {
    /// The progress as bytes by itself, for stores that keep fields apart.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(self.bytes() + 128);
        put_progress(&mut out, self);
        out
    }

    /// The progress that these bytes are. Input and outputs are slices of them.
    ///
    /// # Errors
    ///
    /// [`DecodeError::Malformed`]. Bytes of any content are safe to pass.
    pub fn decode(bytes: impl Into<Bytes>) -> Result<Self, DecodeError> {
        let mut from = Reader { bytes: bytes.into(), at: 0 };
        let progress = from.progress().ok_or(DecodeError::Malformed)?;
        if from.at != from.bytes.len() { Err(DecodeError::Malformed) } else { Ok(progress) }
    }
}

pub(super) fn put_progress(out: &mut Vec<u8>, progress: &FlowProgress) {
    put_flow(out, &progress.flow);
    put_bytes(out, &progress.input);
    put(out, progress.outputs.len() as u64);
    for output in &progress.outputs {
        put_bytes(out, output);
    }
    match &progress.mark {
        None => out.push(0),
        Some(mark) => {
            out.push(1);
            put_first_sent(out, mark);
        }
    }
}

pub(super) fn put_move(out: &mut Vec<u8>, moved: &FlowMove) {
    match moved {
        FlowMove::Started { flow, input } => {
            out.push(0);
            put_flow(out, flow);
            put_bytes(out, input);
        }
        FlowMove::CallMarked(mark) => {
            out.push(1);
            put_first_sent(out, mark);
        }
        FlowMove::PhaseDone(output) => {
            out.push(2);
            put_bytes(out, output);
        }
    }
}

pub(super) fn put_point(out: &mut Vec<u8>, point: RecoveryPoint) {
    let is_call = match point {
        RecoveryPoint::Before(_) => 0,
        RecoveryPoint::Calling(_) => 1,
    };
    out.push(is_call);
    put(out, u64::from(point.phase()));
}

fn put_flow(out: &mut Vec<u8>, flow: &FlowVersion) {
    put_bytes(out, flow.name.as_bytes());
    put(out, u64::from(flow.version));
}

fn put_first_sent(out: &mut Vec<u8>, mark: &FirstSentMark) {
    out.extend_from_slice(mark.digest.as_bytes());
    put(out, mark.set_by.0);
    match mark.resume_until {
        None => out.push(0),
        Some(until) => {
            out.push(1);
            put(out, until.as_ms());
        }
    }
}

impl Reader {
    pub(super) fn progress(&mut self) -> Option<FlowProgress> {
        let (flow, input) = (self.flow()?, self.byte_string()?);
        let count = self.count(usize::from(PHASES_MAX))?;
        let outputs = (0..count).map(|_| self.byte_string()).collect::<Option<_>>()?;
        let mark = match self.byte()? {
            0 => None,
            1 => Some(self.first_sent()?),
            _ => return None,
        };
        let progress = FlowProgress { flow, input, outputs, mark };
        (progress.bytes() <= FLOW_BYTES_MAX).then_some(progress)
    }

    pub(super) fn flow_move(&mut self) -> Option<FlowMove> {
        Some(match self.byte()? {
            0 => FlowMove::Started { flow: self.flow()?, input: self.byte_string()? },
            1 => FlowMove::CallMarked(self.first_sent()?),
            2 => FlowMove::PhaseDone(self.byte_string()?),
            _ => return None,
        })
    }

    pub(super) fn point(&mut self) -> Option<RecoveryPoint> {
        let place = match self.byte()? {
            0 => RecoveryPoint::Before,
            1 => RecoveryPoint::Calling,
            _ => return None,
        };
        u16::try_from(self.number()?).ok().map(place)
    }

    fn flow(&mut self) -> Option<FlowVersion> {
        let (name, version) = (self.text()?, self.number()?);
        let flow = FlowVersion { name, version: u32::try_from(version).ok()? };
        flow.is_valid().then_some(flow)
    }

    fn first_sent(&mut self) -> Option<FirstSentMark> {
        Some(FirstSentMark {
            digest: RequestDigest::from_bytes(self.array()?),
            set_by: Fence(self.number()?),
            resume_until: match self.byte()? {
                0 => None,
                1 => Some(Time::from_ms(self.number()?)),
                _ => return None,
            },
        })
    }
}
