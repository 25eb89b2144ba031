//! How does a caller retry without doing it twice?
//!
//! [`Client`] wraps anything that sends requests (a tower service such as hyper-util's client);
//! with the feature `reqwest` there is an adapter for reqwest. Both do the same:
//!
//! * A call that changes something gets **one key before its first attempt**, a random UUID or the
//!   caller's own, and carries it on every attempt. GET and HEAD are retried without one.
//! * What may still change is tried again: a lost connection, an answer that breaks off, "still
//!   running", 408, 425, 429 and 5xx. What will not change is an answer: 400, 401, 404, 422, an
//!   application's own 409. After an attempt that was lost a refusal counts only if the server
//!   marks it as kept under the key: else a proxy may have said it.
//! * Pauses have full jitter and a cap, `Retry-After` is honoured, and the whole call has a
//!   deadline.
//! * **"Nobody knows" is an error of its own**, [`Error::OutcomeUnknown`], apart from
//!   [`Error::GaveUp`]: nothing was sent, or every attempt was refused.
//! * With a [`Journal`] the call is on disk before its first byte is sent, so that after a crash it
//!   is finished, not repeated.
//!
//! ```no_run
//! use http::Request;
//! use http_body_util::Full;
//! use hyper_util::client::legacy::Client as Hyper;
//! use hyper_util::rt::TokioExecutor;
//! use retrysafe::client::{Client, Error, Retries};
//!
//! # async fn pay() -> Result<(), Box<dyn std::error::Error>> {
//! let client = Client::new(Hyper::builder(TokioExecutor::new()).build_http(), Retries::default());
//! let body = Full::<bytes::Bytes>::from("{}");
//! let request = Request::post("http://localhost:8080/payments").body(body)?;
//! match client.send(request).await {
//!     Ok(answer) => println!("{}", answer.status()),
//!     Err(Error::OutcomeUnknown(ended)) => println!("it may have happened: {ended}"),
//!     Err(error) => println!("{error}"),
//! }
//! # Ok(())
//! # }
//! ```
//!
//! # Caveats
//!
//! The server has to know keys: towards one that does not, every retry of a POST may be executed.
//! Request bodies are held in memory, up to [`Retries::body_bytes_max`]. An attempt that runs out
//! of time counts as sent even if it never connected; a connector with a timeout of its own tells
//! the two apart. Runs on tokio.

mod age;
mod answer;
mod call;
mod error;
pub mod journal;
mod layer;
mod loss;
mod receipt;
#[cfg(feature = "reqwest")]
pub mod reqwest;
mod settings;
mod transport;

pub use answer::Answer;
pub use error::{BoxError, Ended, Error, Last, Refused};
pub use journal::{Damage, Damaged, Found, Journal, Pending};
pub use layer::{Client, RetryLayer};
pub use loss::{Loss, loss};
pub use receipt::Receipt;
pub use retrysafe_core::retry::{AnswerHead, Heard, Next, Patience};
pub use settings::{IDEMPOTENCY_KEY, IDEMPOTENT_REPLAYED, Notice, Retries};
