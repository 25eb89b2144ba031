//! A caller that retries safely, and survives its own crash.
//!
//! ```text
//! cargo run -p client-retries
//! ```
//!
//! A shop takes payments, but its first answer gets lost: the payment is made, and the caller
//! hears nothing. A naive caller would either give up (and leave the customer charged) or try again
//! (and charge twice). This one
//!
//! 1. gives the call a key before the first attempt and writes both to a journal, so that nothing
//!    is ever sent that is not on disk;
//! 2. tries again with the same key when the answer is lost, and gets the answer of the payment
//!    that was made;
//! 3. acknowledges an answer when it has used it. Where the program dies before that, the call is
//!    still in the journal, and the next start finishes it: same key, same answer, one payment.
//!
//! The shop stands in for any server that knows keys, such as one behind `retrysafe`; see
//! `shop.rs`. Everything a caller needs is in this file.

mod shop;

use std::io::Write;
use std::path::Path;

use bytes::Bytes;
use http::{HeaderMap, Request, Response, header};
use http_body_util::{BodyExt as _, Full};
use hyper_util::client::legacy::Client as Hyper;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use retrysafe::client::{Answer, Client, Error, Heard, Journal, Next, Notice, Receipt, Retries};

type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;
type Payments = Client<Hyper<HttpConnector, Full<Bytes>>>;

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<()> {
    let folder = tempfile::tempdir()?;
    run(folder.path(), &mut std::io::stdout()).await
}

async fn run(folder: &Path, out: &mut impl Write) -> Result<()> {
    let shop = shop::open().await?;

    // The credential stays out of the journal, and is supplied again when a call is resumed.
    let journal = Journal::open(folder)?.without_headers([header::AUTHORIZATION]);
    let retries = Retries::default().journal(journal.clone()).observe(narrate);
    let payments = Client::new(Hyper::builder(TokioExecutor::new()).build_http(), retries);

    writeln!(out, "paying; the first answer will be lost")?;
    let request = Request::post(shop.url()).header(header::AUTHORIZATION, "Bearer a");
    let answer = match payments.send(request.body(Full::<Bytes>::from("{\"amount\":5}"))?).await {
        Ok(answer) => answer,
        // Not a failure: it must not be shown as one, and not be paid again under a new key.
        // The call is in the journal, and the next start asks again.
        Err(Error::OutcomeUnknown(ended)) => {
            writeln!(out, "it may have happened: {ended}")?;
            return Ok(());
        }
        Err(error) => return Err(error.into()),
    };
    use_and_acknowledge(answer, out).await?;

    writeln!(out, "paying again; this program dies before it has used the answer")?;
    let request = Request::post(shop.url()).header(header::AUTHORIZATION, "Bearer a");
    drop(payments.send(request.body(Full::<Bytes>::from("{\"amount\":7}"))?).await?);

    writeln!(out, "starting again")?;
    finish_what_was_left(&journal, &payments, out).await?;
    writeln!(out, "payments made: {}", shop.payments_made())?;
    Ok(())
}

/// The first thing a program does when it starts.
async fn finish_what_was_left(
    journal: &Journal,
    payments: &Payments,
    out: &mut impl Write,
) -> Result<()> {
    let found = journal.pending().await?;
    for damaged in found.damaged {
        // Somebody has to look at these; they are never sent.
        writeln!(out, "{}: {}", damaged.path.display(), damaged.why)?;
    }
    for call in found.calls {
        writeln!(out, "unfinished: {} {}", call.request().method(), call.request().uri().path())?;
        let mut supplied = HeaderMap::new();
        supplied.insert(header::AUTHORIZATION, "Bearer a".parse()?);
        use_and_acknowledge(payments.resume(call, supplied).await?, out).await?;
    }
    Ok(())
}

/// Uses an answer (here: shows it), and only then lets its call leave the journal.
async fn use_and_acknowledge(
    answer: Response<Answer<hyper::body::Incoming>>,
    out: &mut impl Write,
) -> Result<()> {
    let receipt = Receipt::of(&answer).cloned();
    let status = answer.status();
    let body = answer.into_body().collect().await?.to_bytes();
    writeln!(out, "answer: {status} {}", String::from_utf8_lossy(&body))?;
    if let Some(receipt) = receipt {
        receipt.acknowledge().await?;
    }
    Ok(())
}

/// What a person would want to see of the attempts, on standard error.
fn narrate(notice: &Notice<'_>) {
    if let Notice::Heard { attempt, heard, next, .. } = notice {
        let heard = match heard {
            Heard::Answer(head) => format!("{}", head.status),
            Heard::NotSent => "no connection".to_owned(),
            Heard::Lost => "the answer was lost".to_owned(),
        };
        let next = match next {
            Next::Retry(pause) => format!("next attempt in {} ms", pause.as_millis()),
            Next::Done => "done".to_owned(),
            Next::OutcomeUnknown => "it may have happened".to_owned(),
            Next::GiveUp => "given up".to_owned(),
        };
        // Nobody to tell if standard error is closed.
        let _ = writeln!(std::io::stderr(), "  attempt {attempt}: {heard}; {next}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn two_payments_are_made_whatever_gets_lost() {
        let folder = tempfile::tempdir().unwrap();
        let mut out = Vec::new();
        run(folder.path(), &mut out).await.unwrap();
        assert_eq!(
            String::from_utf8(out).unwrap(),
            "paying; the first answer will be lost\n\
             answer: 201 Created payment 1\n\
             paying again; this program dies before it has used the answer\n\
             starting again\n\
             unfinished: POST /payments\n\
             answer: 201 Created payment 2\n\
             payments made: 2\n"
        );
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
    }
}
