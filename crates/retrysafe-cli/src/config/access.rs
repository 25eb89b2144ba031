//! How do the commands reach the admin listener, if nobody says it?
//!
//! From the same file and environment as the gateway. Only what is needed is read, and nothing else
//! of it is checked: an operator need not be able to read the gateway's certificates.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;

use retrysafe::stores::any::StoreUrl;

use super::{ADMIN, File, read_secret, state_folder, token};

/// Where the admin listener is, and by which token it lets in.
#[derive(Debug)]
pub(crate) struct AdminAccess {
    pub url: String,
    /// None if there is no token where this configuration says.
    pub token: Option<String>,
    /// Where the token was looked for.
    pub token_file: Option<PathBuf>,
}

impl AdminAccess {
    /// What a configuration says about it. The gateway keeps its records in this store.
    pub(super) fn of(file: &File, store: &StoreUrl) -> Self {
        let token_file = match (&file.admin.token, &file.admin.token_file) {
            (Some(_), _) => None,
            (None, Some(path)) => Some(path.into()),
            (None, None) => Some(token::path(&state_folder(file, store))),
        };
        let read = || token_file.as_deref().and_then(|path| read_secret(path).ok());
        let token = file.admin.token.clone().or_else(read);
        let url = url(file.admin.listen.as_deref().unwrap_or(ADMIN));
        Self { url, token, token_file }
    }
}

/// The URL of a listener. One that listens on all addresses is asked on this machine.
fn url(listen: &str) -> String {
    match listen.parse::<SocketAddr>() {
        Ok(address) if address.ip().is_unspecified() => {
            let here = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), address.port());
            format!("http://{here}")
        }
        Ok(_) | Err(_) => format!("http://{listen}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn access(pairs: &[(&str, &str)]) -> AdminAccess {
        let variables =
            pairs.iter().map(|(name, value)| ((*name).into(), (*value).into())).collect();
        crate::config::admin_access(&crate::config::Flags::default(), &variables).unwrap()
    }

    #[test]
    fn the_token_is_looked_for_where_the_gateway_keeps_it() {
        let folder = tempfile::tempdir().unwrap();
        let shown = folder.path().display().to_string();
        let token = token::read_or_make(folder.path()).unwrap();
        for pairs in [
            &[("RETRYSAFE_STORE", format!("disk:{shown}"))][..],
            &[("RETRYSAFE_STORE", "memory:".into()), ("RETRYSAFE_STATE_FOLDER", shown.clone())],
        ] {
            let pairs: Vec<_> = pairs.iter().map(|(name, value)| (*name, value.as_str())).collect();
            let found = access(&pairs);
            assert_eq!(found.token.as_deref(), Some(&*token.0));
            assert_eq!(found.token_file, Some(token::path(folder.path())));
        }
        let set = access(&[("RETRYSAFE_ADMIN_TOKEN", "chosen")]);
        assert_eq!((set.token.as_deref(), set.token_file), (Some("chosen"), None));
        let absent = access(&[("RETRYSAFE_STORE", "disk:/nonexistent/x")]);
        assert_eq!(absent.token, None);
    }

    #[test]
    fn a_listener_on_all_addresses_is_asked_here() {
        for (listen, asked) in [
            ("0.0.0.0:9", "http://127.0.0.1:9"),
            ("[::]:9", "http://127.0.0.1:9"),
            ("10.0.0.1:9", "http://10.0.0.1:9"),
            ("admin.internal:9", "http://admin.internal:9"),
        ] {
            assert_eq!(access(&[("RETRYSAFE_ADMIN_LISTEN", listen)]).url, asked);
        }
    }
}
