//! Where may an effect go, and what is kept of the answer?
//!
//! An effect's destination comes from the application's rows, so perhaps from its customers. It counts only if the operator has
//! said so, and only below the URLs that are listed. Which addresses a host has is asked when it is connected to.

use std::fmt;

use http::uri::Scheme;
use http::{HeaderName, Uri};

/// Where the effects of one kind may go.
#[derive(Clone, Debug)]
pub(crate) struct Destinations {
    /// Where those go that name no destination.
    otherwise: Option<Destination>,
    /// What an effect may name.
    permitted: Vec<PermittedUrl>,
}

/// A URL that something can be sent to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Destination {
    pub uri: Uri,
    pub is_secure: bool,
    /// Without the brackets of an IPv6 address.
    pub host: String,
    pub port: u16,
}

/// How the destinations begin that are permitted.
#[derive(Clone, Debug, PartialEq, Eq)]
enum PermittedUrl {
    /// Every host, by this scheme.
    EveryHost(Scheme),
    Below(Destination),
}

/// What the receiver's own name for an effect is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Reference {
    /// A member of the answer's JSON.
    Pointer(String),
    Header(HeaderName),
}

impl Destinations {
    /// Reads `url` and `destinations`.
    ///
    /// # Errors
    ///
    /// Which of them is wrong, and how it is mended.
    pub(super) fn read(
        url: Option<&str>,
        destinations: Option<&[String]>,
    ) -> Result<Self, (&'static str, String)> {
        if url.is_none() && destinations.is_none_or(<[String]>::is_empty) {
            let what = "is not set: where do effects of this kind go? Set `url`, or `destinations` if each effect says so itself";
            return Err(("url", what.into()));
        }
        let otherwise = url.map(Destination::read).transpose().map_err(|what| ("url", what))?;
        // An entry is named by its number: it may hold a credential.
        let permitted = (1..).zip(destinations.unwrap_or_default()).map(|(number, text)| {
            PermittedUrl::read(text).map_err(|what| format!("entry {number} {what}"))
        });
        let permitted =
            permitted.collect::<Result<_, _>>().map_err(|what| ("destinations", what))?;
        Ok(Self { otherwise, permitted })
    }

    /// Those of a kind whose effects may go anywhere.
    #[cfg(test)]
    pub(crate) fn of_any_host() -> Self {
        Self { otherwise: None, permitted: vec![PermittedUrl::EveryHost(Scheme::HTTPS)] }
    }

    /// Where effects go that name no destination.
    pub(super) fn otherwise(&self) -> Option<&Destination> {
        self.otherwise.as_ref()
    }

    /// Where an effect goes.
    ///
    /// # Errors
    ///
    /// Why it goes nowhere.
    pub(crate) fn choose(&self, staged: Option<&str>) -> Result<Destination, String> {
        let Some(staged) = staged else {
            return self.otherwise.clone().ok_or_else(|| {
                "the effect names no destination, and there is no `url` for its kind".to_owned()
            });
        };
        let destination =
            Destination::read(staged).map_err(|what| format!("the effect's destination {what}"))?;
        if self.permitted.iter().any(|permitted| permitted.covers(&destination)) {
            return Ok(destination);
        }
        Err("the effect's destination is below none of the `destinations` of its kind".into())
    }
}

impl Destination {
    fn read(url: &str) -> Result<Self, String> {
        let plain = "is not a URL such as https://hooks.example/receipts";
        let uri = url.parse::<Uri>().map_err(|_| plain)?;
        let scheme = uri.scheme().ok_or(plain)?;
        let is_secure = *scheme == Scheme::HTTPS;
        if !is_secure && *scheme != Scheme::HTTP {
            return Err("is neither http:// nor https://".into());
        }
        let authority = uri.authority().ok_or(plain)?;
        if authority.as_str().contains('@') {
            return Err("has a user or a password in it; put the credential into `headers`".into());
        }
        let host = authority.host().trim_matches(['[', ']']).to_ascii_lowercase();
        // A port that is no number is not the default one.
        let has_port = authority.as_str().len() > authority.host().len();
        let port = match (authority.port_u16(), has_port) {
            (Some(port), _) if port > 0 => port,
            (None, false) => {
                if is_secure {
                    443
                } else {
                    80
                }
            }
            (_, _) => return Err("has a port that is none".into()),
        };
        if host.is_empty() || uri.path().split('/').any(is_dot_segment) {
            return Err("has no host, or a `.` or `..` in its path".into());
        }
        let path = uri.path().to_ascii_lowercase();
        if ["\\", "%5c", "%2f"].iter().any(|separator| path.contains(separator)) {
            return Err(
                "has a `\\`, `%5c` or `%2f` in its path, which some servers read as `/`".into()
            );
        }
        Ok(Self { is_secure, host, port, uri })
    }
}

/// Whether a segment of a path means another place than it says.
fn is_dot_segment(segment: &str) -> bool {
    let plain = segment.to_ascii_lowercase().replace("%2e", ".");
    // Some servers take what follows a `;` for a parameter.
    let name = plain.split(';').next().unwrap_or_default();
    name == "." || name == ".."
}

impl PermittedUrl {
    fn read(text: &str) -> Result<Self, String> {
        match text {
            "https:" => Ok(Self::EveryHost(Scheme::HTTPS)),
            "http:" => Ok(Self::EveryHost(Scheme::HTTP)),
            _ => {
                let below =
                    Destination::read(text).map_err(|what| format!("{what}, nor `https:`"))?;
                if below.uri.query().is_some() {
                    return Err("has a query; leave it out".into());
                }
                Ok(Self::Below(below))
            }
        }
    }

    fn covers(&self, destination: &Destination) -> bool {
        match self {
            Self::EveryHost(scheme) => destination.uri.scheme() == Some(scheme),
            Self::Below(below) => {
                let is_same_server = below.is_secure == destination.is_secure
                    && below.host == destination.host
                    && below.port == destination.port;
                let root = below.uri.path().trim_end_matches('/');
                let rest = destination.uri.path().strip_prefix(root);
                is_same_server && rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
            }
        }
    }
}

impl fmt::Display for Destination {
    /// Without path and query, which may hold a credential of the receiver's.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let scheme = if self.is_secure { "https" } else { "http" };
        write!(f, "{scheme}://{}", self.uri.authority().map_or("", |authority| authority.as_str()))
    }
}

impl fmt::Display for Destinations {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let otherwise = self.otherwise.iter().map(ToString::to_string);
        let permitted = self.permitted.iter().map(|permitted| match permitted {
            PermittedUrl::EveryHost(scheme) => format!("{scheme}: (staged)"),
            PermittedUrl::Below(below) => format!("{below} (staged)"),
        });
        f.write_str(&otherwise.chain(permitted).collect::<Vec<_>>().join(", "))
    }
}

impl Reference {
    pub(super) fn read(text: &str) -> Result<Self, String> {
        if let Some(name) = text.strip_prefix("header:") {
            let name = HeaderName::from_bytes(name.as_bytes());
            return name.map(Self::Header).map_err(|_| format!("{text:?} names no header"));
        }
        if text.starts_with('/') {
            return Ok(Self::Pointer(text.to_owned()));
        }
        Err(format!("{text:?} is neither a JSON pointer such as /id nor header:NAME"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn destinations(url: Option<&str>, permitted: &[&str]) -> Destinations {
        let permitted: Vec<String> = permitted.iter().map(|text| (*text).to_owned()).collect();
        Destinations::read(url, Some(&permitted)).unwrap()
    }

    #[test]
    fn an_effect_goes_where_the_operator_has_permitted() {
        let below = destinations(None, &["https://hooks.example/in/"]);
        for (staged, is_permitted) in [
            ("https://hooks.example/in", true),
            ("https://HOOKS.example:443/in/a?b", true),
            ("https://hooks.example/inner", false),
            ("https://hooks.example/", false),
            ("https://hooks.example/in/../out", false),
            ("https://hooks.example/in/%2E%2e/out", false),
            ("http://hooks.example/in", false),
            ("https://hooks.example:444/in", false),
            ("https://hooks.example.evil/in", false),
            ("https://u:p@hooks.example/in", false),
            ("https://hooks.example@evil.example/in", false),
        ] {
            assert_eq!(below.choose(Some(staged)).is_ok(), is_permitted, "{staged}");
        }
        assert!(below.choose(None).unwrap_err().contains("no `url`"));
        let any = destinations(None, &["https:"]);
        assert!(any.choose(Some("https://anybody.example/x")).is_ok());
        assert!(any.choose(Some("http://anybody.example/x")).is_err());
    }

    #[test]
    fn a_staged_destination_counts_for_nothing_unless_it_is_permitted() {
        let fixed = destinations(Some("https://mail.example/send"), &[]);
        assert_eq!(fixed.choose(None).unwrap().host, "mail.example");
        let told = fixed.choose(Some("https://mail.example/send")).unwrap_err();
        assert!(told.contains("`destinations`"), "{told}");
    }

    #[test]
    fn what_is_no_destination_is_refused_and_no_password_is_shown() {
        for (url, why) in [
            ("mail.example", "is not a URL"),
            ("/send", "is not a URL"),
            ("ftp://mail.example/", "neither http"),
            ("file:///etc/passwd", "is not a URL"),
            ("https://ann:sk_live@mail.example/", "password"),
            ("https://mail.example:0/", "port"),
            ("https://mail.example:99999/", "port"),
            ("https://mail.example/a/../b", "`..`"),
        ] {
            let told = Destination::read(url).unwrap_err();
            assert!(told.contains(why) && !told.contains("sk_live"), "{url}: {told}");
        }
        assert_eq!(Destinations::read(None, None).unwrap_err().0, "url");
    }
}
