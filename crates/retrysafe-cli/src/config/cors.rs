//! Which pages may read answers, where the operator decides it?

use http::{HeaderValue, Uri};

use super::file::RouteSettings;

/// The origins whose pages may read answers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Cors {
    /// All of them, without cookies.
    AnyOrigin,
    /// These.
    Origins {
        /// As browsers send them.
        origins: Vec<HeaderValue>,
        /// Whether their pages may send cookies along.
        credentials: bool,
    },
}

impl Cors {
    /// What a route's settings say; none where the upstream decides.
    ///
    /// # Errors
    ///
    /// What is wrong with them.
    pub(super) fn read(settings: &RouteSettings) -> Result<Option<Self>, String> {
        let listed = settings.cors.as_deref().unwrap_or_default();
        let credentials = settings.cors_credentials.unwrap_or_default();
        if listed.is_empty() {
            return Ok(None);
        }
        if listed.iter().any(|origin| origin == "*") {
            return match (listed.len(), credentials) {
                (1, false) => Ok(Some(Self::AnyOrigin)),
                (1, true) => {
                    Err("\"*\" with `cors_credentials` lets every site act for your users; list the origins".into())
                }
                (_, _) => Err("\"*\" stands alone, because it holds every origin".into()),
            };
        }
        let origins = listed.iter().map(|text| origin(text)).collect::<Result<_, _>>()?;
        Ok(Some(Self::Origins { origins, credentials }))
    }
}

/// An origin as browsers send it: scheme, host, and the port unless it is the scheme's own.
fn origin(text: &str) -> Result<HeaderValue, String> {
    let parsed = text.parse::<Uri>().ok();
    let scheme = parsed.as_ref().and_then(Uri::scheme_str);
    let authority = parsed.as_ref().and_then(Uri::authority);
    if let (Some(scheme), Some(authority)) = (scheme, authority) {
        let own_port = match scheme {
            "http" => Some(80),
            "https" => Some(443),
            _ => None,
        };
        let is_plain = text == format!("{scheme}://{authority}").to_ascii_lowercase()
            && !authority.as_str().contains('@')
            && (authority.port_u16().is_none() || authority.port_u16() != own_port);
        if is_plain && let Ok(value) = HeaderValue::from_str(text) {
            return Ok(value);
        }
    }
    Err(format!(
        "{text:?} is not an origin as browsers send it, such as \"https://shop.example\": scheme and host in lower case, no path"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn origins_are_written_as_browsers_send_them() {
        for good in
            ["https://shop.example", "http://localhost:3000", "https://[::1]:8443", "app://x"]
        {
            assert!(origin(good).is_ok(), "{good}");
        }
        for bad in [
            "null",
            "",
            "shop.example",
            "https://Shop.example",
            "https://shop.example/",
            "https://shop.example/x",
            "https://shop.example:443",
            "http://shop.example:80",
            "https://u@shop.example",
            "https://a.test https://b.test",
            "https://*.shop.example/",
        ] {
            assert!(origin(bad).is_err(), "{bad}");
        }
    }
}
