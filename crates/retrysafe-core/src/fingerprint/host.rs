//! Which API is asked, by the name of its host?
//!
//! Two shops behind one gateway must not share an order, so the host's name counts. Its spelling does not: case, port,
//! userinfo and the dot at its end say nothing about the API. All names of the machine itself are one, because a developer's
//! retry goes to `localhost` as well as to `127.0.0.1`. Names below `localhost`, such as `shop.localhost`, stay apart:
//! developers make them to tell sites apart.

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// What every name of the machine itself is read as.
const LOOPBACK: &str = "localhost";

/// How the host's name counts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Hosts {
    /// It does not.
    Ignored,
    /// It does. The names of one group are names of one API; no two groups share a name.
    Counted(BTreeSet<BTreeSet<String>>),
}

impl Default for Hosts {
    fn default() -> Self {
        Self::Counted(BTreeSet::new())
    }
}

impl Hosts {
    /// Makes these names one. Groups that share a name with them become one group.
    pub(super) fn join<'a>(&mut self, names: impl IntoIterator<Item = &'a str>) {
        let Self::Counted(groups) = self else { return };
        let mut joined: BTreeSet<String> =
            names.into_iter().map(|name| host_name(name).into_owned()).collect();
        groups.retain(|group| {
            let is_apart = group.is_disjoint(&joined);
            if !is_apart {
                joined.extend(group.iter().cloned());
            }
            is_apart
        });
        if joined.len() > 1 {
            groups.insert(joined);
        }
    }

    /// What counts of an authority.
    pub(super) fn counted<'a>(&'a self, authority: &'a str) -> Cow<'a, str> {
        let Self::Counted(groups) = self else { return Cow::Borrowed("") };
        let name = host_name(authority);
        let group = groups.iter().find(|group| group.contains(name.as_ref()));
        match group.and_then(BTreeSet::first) {
            Some(first) => Cow::Borrowed(first),
            None => name,
        }
    }
}

/// The host's name in an authority such as `API.example:8080`, in the spelling that counts.
fn host_name(authority: &str) -> Cow<'_, str> {
    let authority = authority.rsplit_once('@').map_or(authority, |(_, host)| host);
    let is_port = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
    if let Some((address, port)) = authority.strip_prefix('[').and_then(|rest| rest.split_once(']'))
        && port.strip_prefix(':').map_or(port.is_empty(), is_port)
        && let Ok(address) = address.parse::<Ipv6Addr>()
    {
        let is_loopback = address.to_canonical().is_loopback();
        return if is_loopback { LOOPBACK.into() } else { format!("[{address}]").into() };
    }
    let host = match authority.rsplit_once(':') {
        Some((host, port)) if is_port(port) => host,
        Some(_) | None => authority,
    };
    let host = host.strip_suffix('.').unwrap_or(host);
    let is_loopback = host.eq_ignore_ascii_case(LOOPBACK)
        || host.parse::<Ipv4Addr>().is_ok_and(|address| IpAddr::V4(address).is_loopback());
    if is_loopback {
        LOOPBACK.into()
    } else if host.bytes().any(|byte| byte.is_ascii_uppercase()) {
        host.to_ascii_lowercase().into()
    } else {
        host.into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spelling_and_port_do_not_count() {
        for same in
            ["api.test", "API.Test", "api.test:8080", "api.test:", "api.test.", "u:p@api.test"]
        {
            assert_eq!(host_name(same), "api.test", "{same}");
        }
        for (one, other) in [
            ("api.test", "api.test.eu"),
            ("api.test", "apitest"),
            ("10.0.0.1", "10.0.0.2"),
            ("[fe80::1]", "[fe80::2]"),
            ("a:b", "a"),
            ("[::1]x", "[::1]"),
            ("", "localhost"),
        ] {
            assert_ne!(host_name(one), host_name(other), "{one} {other}");
        }
        assert_eq!(host_name("[FE80:0::1]:80"), "[fe80::1]");
    }

    #[test]
    fn all_names_of_the_machine_itself_are_one() {
        for name in [
            "localhost",
            "LOCALHOST:3000",
            "localhost.",
            "127.0.0.1:8080",
            "127.8.9.10",
            "[::1]",
            "[0:0:0:0:0:0:0:1]:8080",
            "[::ffff:127.0.0.1]",
        ] {
            assert_eq!(host_name(name), LOOPBACK, "{name}");
        }
        for name in
            ["shop.localhost", "localhost.test", "127.0.0.1.test", "0.0.0.0", "128.0.0.1", "[::2]"]
        {
            assert_ne!(host_name(name), LOOPBACK, "{name}");
        }
    }

    #[test]
    fn aliases_are_one_and_groups_that_touch_become_one() {
        let mut hosts = Hosts::default();
        hosts.join(["a.test", "A.eu.test:443"]);
        hosts.join(["x.test", "y.test"]);
        assert_eq!(hosts.counted("a.eu.test"), hosts.counted("A.test:80"));
        assert_ne!(hosts.counted("a.test"), hosts.counted("b.test"));
        assert_ne!(hosts.counted("a.test"), hosts.counted("x.test"));
        let mut backwards = hosts.clone();
        hosts.join(["a.test", "x.test"]);
        assert_eq!(hosts.counted("a.eu.test"), hosts.counted("y.test"));
        backwards.join(["x.test", "a.eu.test"]);
        assert_eq!(hosts, backwards, "the order of the groups says nothing");
        hosts.join(["127.0.0.1", "dev.test"]);
        assert_eq!(hosts.counted("localhost:3000"), hosts.counted("dev.test"));
        assert_eq!(Hosts::Ignored.counted("a.test"), Hosts::Ignored.counted("b.test"));
    }
}
