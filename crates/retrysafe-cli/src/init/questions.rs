//! What is asked on a terminal before the first configuration is written?

use std::io::{BufRead, Write};

use super::draft::{Callers, Draft};

/// How often one question is asked: whoever types, or pastes, something else that often is not helped by once more.
const TRIES_MAX: u32 = 10;

const UPSTREAM: &str = "Which API shall be protected? Its base URL";

/// What most applications listen to in their own tutorials.
const USUAL_UPSTREAM: &str = "http://127.0.0.1:3000";

const CALLERS: &str = "How are its callers told apart?
  1  each has a credential: Authorization, or an API key in a header
  2  each has a token (JWT) of an identity provider, which is refreshed now and then
  3  a header names them, which a proxy of yours sets
  4  each has a session cookie
  5  they are not: everybody is one caller (for trials)";

const ROUTES: &str = "Which paths must never be called without a key? Separate them by commas, such as\n\
                      /payments, /orders/{*rest}. Nothing means: none, keys are optional everywhere.";

/// Asks for everything that no flag has said.
///
/// # Errors
///
/// If there is no answer.
pub(super) fn ask(
    callers: Option<Callers>,
    jwks_url: Option<String>,
    routes: Vec<String>,
) -> Result<Draft, String> {
    let mut asking = Asking { answers: std::io::stdin().lock(), questions: std::io::stderr() };
    asking.all(callers, jwks_url, routes)
}

/// Somebody who answers.
struct Asking<R, W> {
    answers: R,
    questions: W,
}

impl<R: BufRead, W: Write> Asking<R, W> {
    fn all(
        &mut self,
        callers: Option<Callers>,
        jwks_url: Option<String>,
        routes: Vec<String>,
    ) -> Result<Draft, String> {
        let mut draft = Draft::sample();
        let prompt = format!("upstream [{USUAL_UPSTREAM}]");
        draft.upstream = self.until_right(UPSTREAM, &prompt, |text| {
            let upstream = if text.is_empty() { USUAL_UPSTREAM } else { text }.to_owned();
            checked(Draft { upstream, ..Draft::sample() }).map(|draft| draft.upstream)
        })?;
        (draft.callers, draft.jwks_url) = match (callers, jwks_url) {
            (Some(callers), jwks_url) => (callers, jwks_url),
            (None, Some(jwks_url)) => (Callers::Claim("sub".into()), Some(jwks_url)),
            (None, None) => self.callers()?,
        };
        draft.routes = if routes.is_empty() {
            self.until_right(ROUTES, "paths", |text| {
                let paths = text.split(',').map(str::trim).filter(|path| !path.is_empty());
                let routes = paths.map(str::to_owned).collect();
                checked(Draft { routes, ..Draft::sample() }).map(|draft| draft.routes)
            })?
        } else {
            routes
        };
        Ok(draft)
    }

    fn callers(&mut self) -> Result<(Callers, Option<String>), String> {
        let kind = self.until_right(CALLERS, "1 to 5 [1]", |text| match text {
            "" | "1" => Ok(1),
            "2" => Ok(2),
            "3" => Ok(3),
            "4" => Ok(4),
            "5" => Ok(5),
            other => Err(format!("{other:?} is not a number from 1 to 5")),
        })?;
        let with = |callers: Callers, jwks_url: Option<&str>| {
            let jwks_url = jwks_url.map(str::to_owned);
            let draft = checked(Draft { callers, jwks_url, ..Draft::sample() })?;
            Ok((draft.callers, draft.jwks_url))
        };
        match kind {
            2 => self.until_right(
                "Where does the identity provider publish its keys (JWKS)?",
                "URL",
                |text| with(Callers::Claim("sub".into()), Some(text)),
            ),
            3 => self.until_right("Which header?", "name", |text| {
                with(format!("header:{text}").parse()?, None)
            }),
            4 => self.until_right("Which cookie?", "name", |text| {
                with(format!("cookie:{text}").parse()?, None)
            }),
            5 => Ok((Callers::Anyone, None)),
            _ => Ok((Callers::Credential, None)),
        }
    }

    /// Asks until the answer is right.
    fn until_right<T>(
        &mut self,
        question: &str,
        prompt: &str,
        read: impl Fn(&str) -> Result<T, String>,
    ) -> Result<T, String> {
        // If a question cannot be written, its answer is awaited all the same.
        let _ = writeln!(self.questions, "{question}");
        for _ in 0..TRIES_MAX {
            let _ = write!(self.questions, "{prompt}: ").and_then(|()| self.questions.flush());
            let mut answer = String::new();
            let count = self.answers.read_line(&mut answer).map_err(|error| error.to_string())?;
            if count == 0 {
                return Err("there was no answer; nothing was written".into());
            }
            match read(answer.trim()) {
                Ok(right) => {
                    let _ = writeln!(self.questions);
                    return Ok(right);
                }
                Err(what) => drop(writeln!(self.questions, "  {what}")),
            }
        }
        Err(format!("{prompt}: no answer in {TRIES_MAX} tries was right; nothing was written"))
    }
}

/// A draft with nothing wrong.
fn checked(draft: Draft) -> Result<Draft, String> {
    let wrong = draft.complaints();
    // On a terminal nobody has said a flag.
    let told = |told: &String| told.split_once(": ").map_or(told.clone(), |(_, what)| what.into());
    if wrong.is_empty() {
        Ok(draft)
    } else {
        Err(wrong.iter().map(told).collect::<Vec<_>>().join("\n  "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answered(text: &str) -> (Result<Draft, String>, String) {
        let mut asking = Asking { answers: text.as_bytes(), questions: Vec::new() };
        let draft = asking.all(None, None, Vec::new());
        (draft, String::from_utf8(asking.questions).unwrap())
    }

    #[test]
    fn a_wrong_answer_is_asked_again_with_its_cure() {
        let (draft, asked) = answered(
            "localhost:3000\nhttp://localhost:3000\n9\n3\nbad name\nX-Tenant\npayments\n/payments, /o/{id}\n",
        );
        let draft = draft.unwrap();
        assert_eq!(draft.upstream, "http://localhost:3000");
        assert_eq!(draft.callers, Callers::Header("X-Tenant".into()));
        assert_eq!(draft.routes, ["/payments", "/o/{id}"]);
        assert!(asked.contains("write http://localhost:3000") && !asked.contains("--"), "{asked}");
        assert!(asked.contains("1 to 5") && asked.contains("slash"), "{asked}");
    }

    #[test]
    fn silence_is_no_answer_and_patience_ends() {
        for text in ["", "http://a\n", "http://a\n2\n"] {
            assert!(answered(text).0.unwrap_err().contains("nothing was written"), "{text:?}");
        }
        assert!(answered(&"x y\n".repeat(20)).0.unwrap_err().contains("10 tries"));
    }

    #[test]
    fn the_shortest_answers_are_enough() {
        let (draft, asked) = answered("\n\n\n");
        let draft = draft.unwrap();
        assert!(asked.contains("upstream [http://127.0.0.1:3000]: "), "{asked}");
        assert_eq!(draft.upstream, "http://127.0.0.1:3000");
        assert_eq!((draft.callers, draft.routes.len()), (Callers::Credential, 0));
        let draft = answered("http://a\n2\nhttps://id.example/jwks\n\n").0.unwrap();
        assert_eq!(draft.callers, Callers::Claim("sub".into()));
        assert_eq!(answered("http://a\n5\n\n").0.unwrap().callers, Callers::Anyone);
    }
}
