//! How is a flow written down?
//!
//! As a name, a version and a list of phases, whose last one answers. The types of the list say what each phase
//! may do: a `.tx` phase is given a transaction, a `.call` phase is given a key and no transaction. What a
//! phase needs it is given by value: the flow's input, and the outputs of the phases before it.
//!
//! Whoever runs a flow knows nothing of these types. So a phase is kept as functions over what a record
//! remembers: bytes in, bytes out.

use std::fmt;
use std::future::Future;
use std::marker::PhantomData;
use std::pin::Pin;
use std::sync::Arc;

use bytes::Bytes;
use http::header::CONTENT_TYPE;
use http::{HeaderMap, HeaderValue, Response};
use retrysafe_core::fingerprint::{Fingerprint, Request, Rules};
use retrysafe_core::flow::{FlowProgress, FlowVersion, PHASES_MAX, RequestDigest};
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::PhaseError;
use super::outputs::{AddOutput, PastOutputs};
use super::provider::{Call, CallEnd, Provider};
use super::transaction::PhaseTx;

/// A flow whose phases are complete: it ends with an answer. Clones are the same flow.
pub struct Flow<I> {
    pub(super) code: Arc<FlowCode>,
    input: PhantomData<fn(I)>,
}

/// A flow that is being written down. `O` is what its phases so far leave for the next one.
pub struct FlowBuilder<I, O> {
    code: FlowCode,
    carries: PhantomData<fn(I) -> O>,
}

/// What comes after a phase that has done its work.
#[derive(Debug)]
pub enum Next<T> {
    /// The next phase, which is given this.
    Done(T),
    /// The end: this is the flow's answer.
    Respond(Response<Bytes>),
}

/// Why a list of phases is no flow.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum InvalidFlow {
    /// The name is empty, or longer than
    /// [`FLOW_NAME_BYTES_MAX`](retrysafe_core::flow::FLOW_NAME_BYTES_MAX) bytes.
    Name(Box<str>),
    /// Two phases have this name.
    SameNameTwice(&'static str),
    /// It has more than [`PHASES_MAX`] phases.
    TooManyPhases(usize),
}

/// A flow without its types.
pub(super) struct FlowCode {
    pub(super) version: FlowVersion,
    pub(super) phases: Vec<Phase>,
}

/// One phase without its types.
pub(super) struct Phase {
    pub(super) name: &'static str,
    pub(super) work: PhaseWork,
}

pub(super) enum PhaseWork {
    Tx(TxWork),
    Call(CallWork),
}

/// A phase at work.
pub(super) type Working<T> = Pin<Box<dyn Future<Output = Result<T, PhaseError>> + Send>>;

pub(super) type TxWork =
    Box<dyn Fn(PhaseTx, &FlowProgress) -> Result<Working<Next<Bytes>>, PhaseError> + Send + Sync>;

type PrepareWork = Box<dyn Fn(&FlowProgress) -> Result<PreparedCall, PhaseError> + Send + Sync>;

pub(super) struct CallWork {
    pub(super) provider: Provider,
    pub(super) prepare: PrepareWork,
}

/// A call whose content is known, and that is not sent yet.
pub(super) struct PreparedCall {
    pub(super) digest: RequestDigest,
    pub(super) send: Box<dyn FnOnce(Call) -> Working<SentEnd> + Send>,
}

/// How a call ended, without its types.
pub(super) enum SentEnd {
    /// As the phase says. A result can be read again.
    Told(CallEnd<Bytes>),
    /// It was made, and its result could not be read again. This much is known of it.
    Unreadable(Bytes, PhaseError),
}

impl<I> Flow<I> {
    /// Begins the list of a flow's phases. Raise the version whenever the phases, their order or their
    /// types change, and register the former one until nothing of it is left.
    pub fn named(name: &str, version: u32) -> FlowBuilder<I, ()> {
        let code = FlowCode { version: FlowVersion::new(name, version), phases: vec![] };
        FlowBuilder { code, carries: PhantomData }
    }

    /// Its name and version.
    pub fn version(&self) -> &FlowVersion {
        &self.code.version
    }
}

impl<I: Serialize> Flow<I> {
    /// What a run of this flow with this input means, for those who have no HTTP request: a digest of the
    /// flow's name and the input. A key is of one fingerprint.
    ///
    /// # Errors
    ///
    /// If the input cannot be written as JSON.
    pub fn fingerprint(&self, input: &I) -> serde_json::Result<Fingerprint> {
        let body = serde_json::to_vec(input)?;
        let json = HeaderValue::from_static("application/json");
        let request = Request {
            method: "FLOW",
            authority: "",
            path_and_query: &self.code.version.name,
            headers: &HeaderMap::from_iter([(CONTENT_TYPE, json)]),
            body: &body,
        };
        Ok(Rules::default().print(&request))
    }
}

impl<I, O> FlowBuilder<I, O>
where
    I: DeserializeOwned + Send + 'static,
    O: PastOutputs,
{
    /// A phase of statements: what it writes, what it leaves for later phases and the recovery point are
    /// one commit. It is given the transaction, the input and the outputs of the phases before it.
    ///
    /// It must have no effect outside of the transaction: a deadlock or a lost connection repeats it, from
    /// its first statement on.
    #[must_use]
    pub fn tx<T, F, Fut>(self, name: &'static str, work: F) -> FlowBuilder<I, O::Added>
    where
        O: AddOutput<T>,
        T: Serialize + DeserializeOwned + Send + 'static,
        F: FnOnce(PhaseTx, I, O) -> Fut + Clone + Send + Sync + 'static,
        Fut: Future<Output = Result<Next<T>, PhaseError>> + Send + 'static,
    {
        let work: TxWork = Box::new(move |tx, progress| {
            let (input, outputs) = past::<I, O>(progress)?;
            Ok(Box::pin(next_as_bytes(work.clone()(tx, input, outputs))))
        });
        self.with(name, PhaseWork::Tx(work))
    }

    /// A phase that is one call to this provider.
    ///
    /// `prepare` says what is sent, from the input and the outputs of the phases before. It must say the same
    /// on every attempt, so it reads no clock and draws no random numbers: if a second attempt would send
    /// something else than the first one, nothing is sent and the record is unknown.
    ///
    /// `send` sends that, with the [key](Call::key) that it is given, once. What it sends comes from what was
    /// prepared and from nowhere else.
    #[must_use]
    pub fn call<R, T, Prepare, SendOnce, Fut>(
        self,
        name: &'static str,
        provider: Provider,
        prepare: Prepare,
        send: SendOnce,
    ) -> FlowBuilder<I, O::Added>
    where
        O: AddOutput<T>,
        R: Serialize + Send + 'static,
        T: Serialize + DeserializeOwned + Send + 'static,
        Prepare: Fn(I, O) -> Result<R, PhaseError> + Send + Sync + 'static,
        SendOnce: FnOnce(Call, R) -> Fut + Clone + Send + Sync + 'static,
        Fut: Future<Output = Result<CallEnd<T>, PhaseError>> + Send + 'static,
    {
        let prepare: PrepareWork = Box::new(move |progress| {
            let (input, outputs) = past::<I, O>(progress)?;
            let request = prepare(input, outputs)?;
            let digest = digest_of(name, &request)?;
            let send = send.clone();
            let send =
                move |call| -> Working<SentEnd> { Box::pin(end_as_bytes(send(call, request))) };
            Ok(PreparedCall { digest, send: Box::new(send) })
        });
        self.with(name, PhaseWork::Call(CallWork { provider, prepare }))
    }

    /// The last phase: a transaction like any other, whose commit also makes the answer durable.
    ///
    /// # Errors
    ///
    /// If the list is no flow; see [`InvalidFlow`].
    pub fn respond<F, Fut>(self, name: &'static str, work: F) -> Result<Flow<I>, InvalidFlow>
    where
        F: FnOnce(PhaseTx, I, O) -> Fut + Clone + Send + Sync + 'static,
        Fut: Future<Output = Result<Response<Bytes>, PhaseError>> + Send + 'static,
    {
        let work: TxWork = Box::new(move |tx, progress| {
            let (input, outputs) = past::<I, O>(progress)?;
            let working = work.clone()(tx, input, outputs);
            Ok(Box::pin(async move { Ok(Next::Respond(working.await?)) }))
        });
        let whole: FlowBuilder<I, O> = self.with(name, PhaseWork::Tx(work));
        let code = whole.code;
        code.check()?;
        Ok(Flow { code: Arc::new(code), input: PhantomData })
    }

    fn with<Added>(self, name: &'static str, work: PhaseWork) -> FlowBuilder<I, Added> {
        let mut code = self.code;
        code.phases.push(Phase { name, work });
        FlowBuilder { code, carries: PhantomData }
    }
}

impl FlowCode {
    fn check(&self) -> Result<(), InvalidFlow> {
        if !self.version.is_valid() {
            return Err(InvalidFlow::Name(self.version.name.clone()));
        }
        let count = self.phases.len();
        if count > usize::from(PHASES_MAX) {
            return Err(InvalidFlow::TooManyPhases(count));
        }
        for (at, phase) in self.phases.iter().enumerate() {
            // The key of a call is derived from its phase's name.
            if self.phases.iter().skip(at + 1).any(|other| other.name == phase.name) {
                return Err(InvalidFlow::SameNameTwice(phase.name));
            }
        }
        Ok(())
    }
}

/// The input of a flow, and the outputs of its phases so far.
fn past<I: DeserializeOwned, O: PastOutputs>(
    progress: &FlowProgress,
) -> Result<(I, O), PhaseError> {
    let input = serde_json::from_slice(progress.input())?;
    Ok((input, O::read_outputs(progress.outputs())?))
}

async fn next_as_bytes<T: Serialize + DeserializeOwned>(
    working: impl Future<Output = Result<Next<T>, PhaseError>>,
) -> Result<Next<Bytes>, PhaseError> {
    Ok(match working.await? {
        Next::Done(output) => Next::Done(output_as_bytes(&output).map_err(|(_, error)| error)?),
        Next::Respond(response) => Next::Respond(response),
    })
}

async fn end_as_bytes<T: Serialize + DeserializeOwned>(
    sending: impl Future<Output = Result<CallEnd<T>, PhaseError>>,
) -> Result<SentEnd, PhaseError> {
    Ok(SentEnd::Told(match sending.await? {
        CallEnd::Done(output) => match output_as_bytes(&output) {
            Ok(output) => CallEnd::Done(output),
            Err((seen, error)) => return Ok(SentEnd::Unreadable(seen, error)),
        },
        CallEnd::Respond(response) => CallEnd::Respond(response),
        CallEnd::NotSent(error) => CallEnd::NotSent(error),
        CallEnd::Unknown(error) => CallEnd::Unknown(error),
    }))
}

/// An output as a record keeps it, if later phases can read it again: `f64::NAN` is written as `null`, for instance,
/// and no number can be read from that. Else what there is of it, and why.
fn output_as_bytes<T: Serialize + DeserializeOwned>(
    output: &T,
) -> Result<Bytes, (Bytes, PhaseError)> {
    let written = match serde_json::to_vec(output) {
        Ok(written) => Bytes::from(written),
        Err(error) => return Err((Bytes::new(), error.into())),
    };
    match serde_json::from_slice::<T>(&written) {
        Ok(_) => Ok(written),
        Err(error) => {
            let error = format!("the output of this phase cannot be read again: {error}");
            Err((written, error.into()))
        }
    }
}

/// The digest of a call: its phase, which its key is made of, and the bytes that are sent. A map without an order of its own has
/// other bytes each time, and so cannot be sent again.
fn digest_of(phase: &str, request: &impl Serialize) -> serde_json::Result<RequestDigest> {
    let mut call = phase.as_bytes().to_vec();
    call.push(0);
    serde_json::to_writer(&mut call, request)?;
    Ok(RequestDigest::of(&call))
}

impl<I> Clone for Flow<I> {
    fn clone(&self) -> Self {
        Self { code: Arc::clone(&self.code), input: PhantomData }
    }
}

impl<I> fmt::Debug for Flow<I> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.code.fmt(f)
    }
}

impl<I, O> fmt::Debug for FlowBuilder<I, O> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.code.fmt(f)
    }
}

impl fmt::Debug for FlowCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let phases: Vec<_> = self.phases.iter().map(|phase| phase.name).collect();
        f.debug_struct("Flow").field("version", &self.version).field("phases", &phases).finish()
    }
}

impl fmt::Display for InvalidFlow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Name(name) => write!(f, "the name of a flow has 1 to 128 bytes: {name:?}"),
            Self::SameNameTwice(name) => {
                write!(f, "two phases are called {name:?}: give each a name of its own")
            }
            Self::TooManyPhases(count) => {
                write!(f, "a flow has {PHASES_MAX} phases at the most, and this one has {count}")
            }
        }
    }
}

impl std::error::Error for InvalidFlow {}

#[cfg(test)]
mod tests {
    use super::*;

    async fn answer(_: PhaseTx, (): (), (): ()) -> Result<Response<Bytes>, PhaseError> {
        Ok(Response::default())
    }

    #[test]
    fn a_list_with_a_name_twice_or_without_a_name_is_no_flow() {
        let named = |name: &str| Flow::named(name, 1).respond("end", answer).map(drop);
        assert_eq!(named("ride"), Ok(()));
        assert_eq!(named(""), Err(InvalidFlow::Name("".into())));
        let twice = Flow::named("ride", 1)
            .tx("end", async |_, (): (), ()| Ok(Next::Done(1)))
            .respond("end", async |_, (), _| Ok(Response::default()));
        assert_eq!(twice.map(drop), Err(InvalidFlow::SameNameTwice("end")));
    }

    #[test]
    fn a_digest_is_of_the_phase_and_of_the_bytes() {
        let digest = |phase, request: &[i32]| digest_of(phase, &request).unwrap();
        assert_eq!(digest("charge", &[1, 2]), digest("charge", &[1, 2]));
        assert_ne!(digest("charge", &[1, 2]), digest("charge", &[2, 1]));
        assert_ne!(digest("charge", &[1]), digest("charged", &[1]), "another key is another call");
    }

    #[test]
    fn a_fingerprint_is_of_the_flow_and_its_input() {
        let flow = |name: &str| -> Flow<i32> {
            Flow::named(name, 1).respond("end", async |_, _, ()| Ok(Response::default())).unwrap()
        };
        let print = |name: &str, input: i32| flow(name).fingerprint(&input).unwrap();
        assert_eq!(print("ride", 1), print("ride", 1));
        assert_ne!(print("ride", 1), print("ride", 2));
        assert_ne!(print("ride", 1), print("fare", 1));
    }
}
