//! How does a person or a script make a call that is safe to repeat? curl, with safe retries.
//!
//! The key is made and journalled before the first byte is sent, every attempt is told on standard
//! error, and the body of the answer goes to standard output. A call leaves the journal when its
//! answer has been written out; whatever is killed before that is finished by `--resume`.
//!
//! [`order`] is what to send, [`wire`] sends it, [`tell`] says what happened.

mod order;
mod tell;
mod wire;

use std::process::ExitCode;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use clap::Args;
use http::{HeaderMap, HeaderName, Response};
use http_body_util::Full;
use retrysafe::client::{Answer, Client, Error, Journal, Patience, Pending, Receipt, Retries};
use retrysafe_core::units::parse_duration;

use order::Order;
use tell::Teller;
use wire::Wire;

use crate::check::request::header_name;
use crate::output::complain;

/// Makes a call with safe retries, like curl: one key, journalled before it is sent.
#[derive(Debug, Args)]
#[command(after_help = AFTER_HELP)]
pub(crate) struct Call {
    /// What to call, such as http://127.0.0.1:8080/payments; with --resume, only calls to its origin
    #[arg(required_unless_present = "resume")]
    url: Option<String>,
    /// The method
    #[arg(long, short = 'X', value_name = "METHOD", default_value = "POST")]
    method: String,
    /// A header, such as 'Authorization: Bearer a'; may be repeated
    #[arg(long, short = 'H', value_name = "NAME: VALUE")]
    header: Vec<String>,
    /// The body; @FILE reads it from a file, @- from standard input
    #[arg(long, short = 'd', value_name = "TEXT", default_value = "", hide_default_value = true)]
    data: String,
    /// The key of the call [default: a random one]; with --resume, only the call with this key
    #[arg(long)]
    key: Option<String>,
    /// The header that holds the key
    #[arg(long, value_name = "NAME", value_parser = header_name, default_value = "Idempotency-Key")]
    key_header: HeaderName,
    /// How many attempts are made at the most
    #[arg(long, default_value_t = 8, value_parser = clap::value_parser!(u32).range(1..=1000))]
    attempts: u32,
    /// How long the whole call may take
    #[arg(long, default_value = "120s", value_parser = parse_duration, value_name = "TIME")]
    deadline: Duration,
    /// How long one attempt may take
    #[arg(long, default_value = "30s", value_parser = parse_duration, value_name = "TIME")]
    attempt_timeout: Duration,
    /// Where calls are journalled [default: ~/.local/state/retrysafe/calls]
    #[arg(long, value_name = "FOLDER")]
    journal: Option<std::path::PathBuf>,
    /// Journal nothing: a call that is killed is lost from sight
    #[arg(long, conflicts_with_all = ["journal", "resume"])]
    no_journal: bool,
    /// Finish what killed calls have begun
    #[arg(long, conflicts_with_all = ["data", "method"])]
    resume: bool,
    /// Show the head of the answer too
    #[arg(long, short = 'i')]
    include: bool,
    /// Print one JSON document per call instead, with every attempt in it
    #[arg(long, conflicts_with = "include")]
    json: bool,
}

const AFTER_HELP: &str = "\
Credentials (Authorization, Cookie and the like) are not journalled: give them again with --resume -H.

Exit code: 0 an answer 2xx or 3xx, 1 another answer, 2 nothing was sent (usage), 3 the outcome is
unknown, 4 gave up: nothing was sent, or every attempt was refused.";

/// How a call ended, the least harmful first. Several calls end as the worst of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum End {
    /// 2xx or 3xx.
    Fine,
    /// Another answer.
    Refused,
    /// Nothing was sent, or every attempt was refused.
    GaveUp,
    /// Nothing was sent.
    Unsent,
    /// It may have happened.
    Unknown,
}

type WireClient = Client<Wire>;

impl Call {
    /// Makes the call, or finishes old ones, and says how the program ends.
    pub(crate) async fn run(self) -> ExitCode {
        let interrupted = tokio::signal::ctrl_c();
        tokio::select! {
            made = self.made() => match made {
                Ok(end) => end.code(),
                Err(why) => {
                    complain(&format!("retrysafe call: {why}"));
                    End::Unsent.code()
                }
            },
            // Not a second kind of end: the call is what it would be after a kill.
            _ = interrupted => {
                complain("interrupted; `retrysafe call --resume` finishes a journalled call");
                End::Unknown.code()
            }
        }
    }

    async fn made(&self) -> Result<End, String> {
        let teller = Teller::new(self.json, self.include);
        if self.resume {
            return self.resumed(&teller).await;
        }
        let order = Order::new(self)?;
        let request = order.request.map(Full::new);
        let journal = if self.no_journal {
            None
        } else {
            Some(self.journal()?.without_headers(order.secrets))
        };
        let caller = self.caller(journal, &teller);
        teller.begin(&request);
        Ok(finish(caller.send(request).await, &teller).await)
    }

    /// Finishes the calls that were asked for, oldest first.
    async fn resumed(&self, teller: &Teller) -> Result<End, String> {
        let journal = self.journal()?;
        let found = journal.pending().await.map_err(|error| error.to_string())?;
        let mut end = End::Fine;
        for damaged in &found.damaged {
            complain(&format!("{}: {}", damaged.path.display(), damaged.why));
            if !matches!(damaged.why, retrysafe::client::Damage::HalfWritten) {
                end = end.max(End::Unknown);
            }
        }
        if found.taken > 0 {
            complain(&format!("{} calls are being worked on by others", found.taken));
        }
        let chosen = order::chosen(found.calls, self.url.as_deref(), self.key.as_deref())?;
        let supplied = order::credentials(&chosen, &self.header)?;
        if chosen.is_empty() {
            complain("nothing to resume");
        }
        let caller = self.caller(None, teller);
        for pending in chosen {
            end = end.max(resume_one(&caller, pending, &supplied, teller).await);
        }
        if found.has_more {
            complain("there are more calls to finish: resume again");
        }
        Ok(end)
    }

    fn journal(&self) -> Result<Journal, String> {
        let folder = match &self.journal {
            Some(folder) => folder.clone(),
            None => order::default_journal()?,
        };
        Journal::open(&folder).map_err(|error| format!("{}: {error}", folder.display()))
    }

    fn caller(&self, journal: Option<Journal>, teller: &Teller) -> WireClient {
        let patience = Patience {
            attempts_max: self.attempts,
            deadline: self.deadline,
            ..Patience::default()
        };
        let retries = Retries::default()
            .patience(patience)
            .key_header(self.key_header.clone())
            .attempt_timeout(self.attempt_timeout)
            .body_bytes_max(order::BODY_BYTES_MAX)
            .answer_bytes_max(ANSWER_BYTES_MAX)
            .classify(wire::loss)
            .observe(teller.observer());
        let retries = match journal {
            Some(journal) => retries.journal(journal),
            None => retries,
        };
        Client::new(Wire::new(self.attempt_timeout), retries)
    }
}

/// How much of an answer is read before any of it is shown, so that one that breaks off is tried
/// again. What is longer is shown as it comes.
const ANSWER_BYTES_MAX: usize = 16 << 20;

async fn resume_one(
    caller: &WireClient,
    pending: Pending,
    supplied: &HeaderMap,
    teller: &Teller,
) -> End {
    teller.begin_again(&pending);
    // Only what this call had and did not journal: a header that it never had would make it another
    // request, or another caller's.
    let mut own = HeaderMap::new();
    for name in pending.withheld() {
        for value in supplied.get_all(name) {
            own.append(name.clone(), value.clone());
        }
    }
    finish(caller.resume(pending, own).await, teller).await
}

/// Shows how a call ended, and only then lets an answered one leave the journal.
async fn finish(
    outcome: Result<Response<Answer<hyper::body::Incoming>>, Error>,
    teller: &Teller,
) -> End {
    let answer = match outcome {
        Ok(answer) => answer,
        Err(error) => {
            teller.failed(&error);
            return match error {
                Error::OutcomeUnknown(_) => End::Unknown,
                Error::GaveUp(_) => End::GaveUp,
                Error::Refused(_) => End::Unsent,
            };
        }
    };
    let receipt = Receipt::of(&answer).cloned();
    let status = answer.status();
    if let Err(error) = teller.answered(answer, receipt.as_ref()).await {
        complain(&format!(
            "the answer ({status}) was not delivered whole: {error}; a journalled call can be resumed"
        ));
        return End::Unknown;
    }
    if let Some(receipt) = receipt
        && let Err(error) = receipt.acknowledge().await
    {
        // Harmless: resuming it gets the same answer again.
        complain(&format!("the call could not be removed from the journal: {error}"));
    }
    if status.is_success() || status.is_redirection() { End::Fine } else { End::Refused }
}

impl End {
    fn code(self) -> ExitCode {
        ExitCode::from(match self {
            Self::Fine => 0,
            Self::Refused => 1,
            Self::Unsent => 2,
            Self::Unknown => 3,
            Self::GaveUp => 4,
        })
    }
}

/// What happened on the attempts so far, for the JSON document.
type Attempts = Arc<Mutex<Vec<serde_json::Value>>>;
