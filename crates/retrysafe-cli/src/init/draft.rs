//! What does the first configuration say?
//!
//! The text is the same file that anybody could write, with a comment for each line. Whoever reads it has never seen another one.

use std::fmt::Write as _;
use std::str::FromStr;

use http::Uri;

use crate::config;

/// What was answered.
#[derive(Clone, Debug)]
pub(super) struct Draft {
    pub upstream: String,
    pub callers: Callers,
    pub jwks_url: Option<String>,
    pub routes: Vec<String>,
}

/// How callers are told apart.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Callers {
    Credential,
    Header(String),
    Cookie(String),
    Claim(String),
    /// They are not.
    Anyone,
}

impl FromStr for Callers {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (kind, name) = text.split_once(':').unwrap_or((text, ""));
        match (kind, name) {
            ("credential", "") => Ok(Self::Credential),
            ("anyone", "") => Ok(Self::Anyone),
            ("header" | "cookie" | "jwt", "") => {
                Err(format!("{text:?} lacks a name: write {kind}:NAME"))
            }
            ("header", name) => Ok(Self::Header(name.into())),
            ("cookie", name) => Ok(Self::Cookie(name.into())),
            ("jwt", name) => Ok(Self::Claim(name.into())),
            (_, _) => Err(format!(
                "{text:?} is none of credential, header:NAME, cookie:NAME, jwt:CLAIM and anyone"
            )),
        }
    }
}

impl Draft {
    /// An answer to one question, among answers to the others that are right.
    pub(super) fn sample() -> Self {
        let upstream = "http://127.0.0.1:3000".into();
        Self { upstream, callers: Callers::Credential, jwks_url: None, routes: Vec::new() }
    }

    /// Everything that is wrong with it, each with the flag that says it.
    pub(super) fn complaints(&self) -> Vec<String> {
        let mut wrong = Vec::new();
        let upstream = config::upstream::read(&self.upstream).err();
        wrong.extend(upstream.map(|what| format!("--upstream: {what}")));
        match (&self.callers, &self.jwks_url) {
            (Callers::Claim(claim), None) => wrong.push(format!(
                "--jwks-url is not set: where does the issuer of the tokens publish its keys? Without them nobody \
                 can tell a true `{claim}` from a forged one"
            )),
            (Callers::Claim(_), Some(url)) if !is_key_server(url) => wrong.push(
                "--jwks-url: is not a URL such as https://id.example/jwks.json, without a name and a password".into(),
            ),
            (Callers::Claim(_), Some(_)) | (_, None) => {}
            (_, Some(_)) => wrong.push("--jwks-url: is only for --callers jwt:CLAIM".into()),
        }
        if !wrong.is_empty() {
            return wrong;
        }
        let flag = |setting: &str| match setting {
            "upstream" => "--upstream".into(),
            "defaults.scope" => "--callers".into(),
            "jwt.jwks_url" => "--jwks-url".into(),
            path if path.starts_with("route") => "--route".into(),
            other => format!("`{other}`"),
        };
        let found = config::complaints_of(&self.text()).into_iter();
        found.map(|complaint| format!("{}: {}", flag(&complaint.setting), complaint.what)).collect()
    }

    /// The file.
    pub(super) fn text(&self) -> String {
        let Self { upstream, callers, jwks_url, routes } = self;
        let mut text = format!(
            "# Written by `retrysafe init`. Every line may be changed; after a change say `retrysafe config check`.\n\
             # All settings: docs/config.md, or `retrysafe config schema`.\n\
             \n\
             # Your API. The gateway sends each request on to it, once.\n\
             upstream = {upstream}\n\
             \n\
             # Where callers connect from now on. 127.0.0.1 lets in this machine alone, 0.0.0.0 everybody.\n\
             listen = \"127.0.0.1:8080\"\n\
             \n\
             # Where the gateway remembers requests and their answers. A folder survives crashes and is right for one\n\
             # machine. Several machines share a server: \"postgres://USER:PASSWORD@HOST/DATABASE\".\n\
             store = \"disk:./retrysafe-data\"\n\
             \n\
             [admin]\n\
             # Where operators connect: health, metrics, and the keys. Callers must not reach this address.\n\
             listen = \"127.0.0.1:8081\"\n\
             \n\
             # The rules for every path that has no [[route]] of its own.\n\
             [defaults]\n\
             # Requests of these methods are protected. All others are passed on as they come.\n\
             methods = [\"POST\", \"PATCH\"]\n\
             \n\
             # \"optional\": a request without Idempotency-Key is passed on, and a retry of it runs again.\n\
             # \"required\": a request without Idempotency-Key is refused with 400.\n\
             key = \"optional\"\n\
             \n",
            upstream = quoted(upstream),
        );
        text.push_str(&callers.lines());
        text.push_str(
            "\n# How long an answer is remembered. A retry that comes later runs again.\n\
             ttl = \"24h\"\n\
             \n\
             # What a 5xx of your API means. \"release\": it has done nothing, and a retry runs again. \"store\": it is the\n\
             # answer, and every retry gets it. \"unknown\": it may have done something; a retry is told so and never runs\n\
             # again before somebody has looked.\n\
             on_server_error = \"release\"\n",
        );
        if let Some(url) = jwks_url {
            let _ = write!(
                text,
                "\n# How tokens are verified: with the keys that their issuer publishes here.\n\
                 [jwt]\n\
                 jwks_url = {}\n",
                quoted(url)
            );
        }
        text.push_str(&routes_text(routes));
        text
    }
}

impl Callers {
    /// Their lines in the table of defaults.
    fn lines(&self) -> String {
        let scope = |comment: &str, part: &str| {
            format!(
                "# Whose key is it? Two callers may choose the same key and never see each other's answers.\n\
                 {comment}scope = [{}]\n",
                quoted(part)
            )
        };
        match self {
            Self::Credential => scope(
                "# A caller is known by its credential: `Authorization`, or an API key in a header. Who shows none is refused.\n",
                "credential",
            ),
            Self::Header(name) => scope(
                "# A caller is known by this header. Whoever can send any value in it can read the answers of others, so it\n\
                 # must be set by a proxy of your own, or be a secret.\n",
                &format!("header:{name}"),
            ),
            Self::Cookie(name) => scope(
                "# A caller is known by this cookie: the one that holds the session.\n",
                &format!("cookie:{name}"),
            ),
            Self::Claim(name) => scope(
                "# A caller is known by this claim of its token, which [jwt] verifies. A refreshed token is the same caller.\n",
                &format!("jwt:{name}"),
            ),
            Self::Anyone => {
                scope("# A caller is known by its credential, if it shows one.\n", "credential")
                    + "# All who show none are one caller: whoever guesses a key gets its answer. For trials and private networks.\n\
                     anonymous = \"shared\"\n"
            }
        }
    }
}

fn routes_text(routes: &[String]) -> String {
    if routes.is_empty() {
        return "\n# Rules for one path. Take the # away, and write a path of yours; {*rest} stands for everything below it.\n\
                # [[route]]\n\
                # path = \"/payments/{*rest}\"\n\
                # key = \"required\"\n"
            .into();
    }
    let mut text = String::from(
        "\n# Rules for one path each. What is not said here holds as in [defaults].\n",
    );
    for path in routes {
        let _ = write!(
            text,
            "[[route]]\n\
             path = {}\n\
             # A request without Idempotency-Key is refused here.\n\
             key = \"required\"\n\
             # Take the # away where a second execution would cost money: then a 5xx of your API is \"unknown\", too.\n\
             # strict = true\n\
             \n",
            quoted(path)
        );
    }
    text.truncate(text.trim_end().len());
    text + "\n"
}

/// A text as TOML writes it, whatever is in it.
fn quoted(text: &str) -> String {
    toml::Value::String(text.into()).to_string()
}

/// Whether keys can be read from a URL: a server's, and a path of it.
fn is_key_server(text: &str) -> bool {
    let Ok(uri) = text.parse::<Uri>() else { return false };
    let path = uri.path_and_query().map_or("/", |path| path.as_str());
    config::server(text.strip_suffix(path).unwrap_or(text)).is_some()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn callers() -> Vec<(Callers, Option<String>)> {
        vec![
            (Callers::Credential, None),
            (Callers::Header("X-Tenant".into()), None),
            (Callers::Cookie("session".into()), None),
            (Callers::Claim("sub".into()), Some("https://id.example/keys".into())),
            (Callers::Anyone, None),
        ]
    }

    #[test]
    fn every_combination_of_answers_is_a_valid_file() {
        let routes: [&[&str]; 3] = [&[], &["/payments"], &["/orders/{*rest}", "/a \"b\"/{id}"]];
        for (callers, jwks_url) in callers() {
            for routes in routes {
                let routes = routes.iter().map(|path| (*path).to_owned()).collect();
                let upstream = "https://api.example".into();
                let callers = callers.clone();
                let draft = Draft { upstream, callers, jwks_url: jwks_url.clone(), routes };
                // A quotation mark does not stand in a path; it must not end the text either.
                let wrong: Vec<String> =
                    draft.complaints().into_iter().filter(|told| !told.contains("'\"'")).collect();
                assert_eq!(wrong, Vec::<String>::new(), "{}", draft.text());
            }
        }
    }

    #[test]
    fn each_setting_has_a_comment_before_it() {
        for (callers, jwks_url) in callers() {
            let routes = vec!["/payments".into()];
            let text = Draft { callers, jwks_url, routes, ..Draft::sample() }.text();
            let mut before = "";
            for line in text.lines() {
                let is_setting = line.contains(" = ") && !line.starts_with('#');
                let is_explained = before.starts_with('#') || before.starts_with('[');
                assert!(!is_setting || is_explained, "{line:?} in\n{text}");
                assert!(line.len() <= 130, "{line}");
                before = line;
            }
        }
    }

    #[test]
    fn an_upstream_that_does_not_fit_is_answered_with_its_cure() {
        for (text, cure) in [
            ("http://127.0.0.1:3000/api", "write http://127.0.0.1:3000"),
            ("https://api.example/?x=1", "write https://api.example"),
            ("localhost:3000", "write http://localhost:3000"),
            ("http://me:hunter2@api.example", "leave it out"),
            ("ftp://x", "http://127.0.0.1:3000"),
            ("C:\\api", "http://127.0.0.1:3000"),
            ("", "http://127.0.0.1:3000"),
        ] {
            let told = Draft { upstream: text.into(), ..Draft::sample() }.complaints().join("\n");
            assert!(told.starts_with("--upstream: ") && told.contains(cure), "{text}: {told}");
            assert!(!told.contains("hunter2"), "{told}");
        }
    }

    #[test]
    fn wrong_answers_name_their_flag() {
        let route = Draft { routes: vec!["/ok".into(), "payments".into()], ..Draft::sample() };
        let told = route.complaints();
        assert!(told.len() == 1 && told[0].starts_with("--route: \"payments\""), "{told:?}");
        let claim = Draft { callers: Callers::Claim("sub".into()), ..Draft::sample() };
        assert!(claim.complaints()[0].starts_with("--jwks-url is not set"));
        let header =
            Draft { callers: Callers::Header("Idempotency-Key".into()), ..Draft::sample() };
        assert!(header.complaints()[0].starts_with("--callers: "), "{:?}", header.complaints());
        let spaced = Draft { callers: Callers::Header("X Bad".into()), ..Draft::sample() };
        assert_eq!(spaced.complaints().len(), 1, "{:?}", spaced.complaints());
        let needless = Draft { jwks_url: Some("https://id.example".into()), ..Draft::sample() };
        assert!(needless.complaints()[0].starts_with("--jwks-url: is only for"));
        for text in ["tenant", "header", "header:", "credential:x"] {
            assert!(text.parse::<Callers>().is_err(), "{text}");
        }
    }
}
