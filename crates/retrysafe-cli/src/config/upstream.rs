//! Which API stands behind the gateway, and how is it spoken to?
//!
//! `http://` and `https://` speak HTTP/1.1. `h2c://` speaks HTTP/2 without encryption and without asking first; `h2://` speaks TLS and
//! whichever of HTTP/2 and HTTP/1.1 the server chooses. `unix:` names a socket in the file system.

use std::fmt;
use std::net::IpAddr;
use std::path::PathBuf;

use http::Uri;
use http::uri::Authority;

use super::file::File;
use super::source::Complaint;
use crate::paths::patterns::{self, Pattern};

/// The API behind the gateway.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Upstream {
    /// Whether it speaks TLS.
    pub tls: bool,
    /// Whether it may be spoken to in HTTP/2: over TLS if it chooses so, else always.
    pub http2: bool,
    /// Its host and port as written.
    pub authority: Authority,
    /// Its port.
    pub port: u16,
    /// Its socket, if it has one in the file system instead.
    pub socket: Option<PathBuf>,
}

/// Where the requests of one path go, whatever their method.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Target {
    /// The path of its route.
    pub path: String,
    pub upstream: Upstream,
    /// What is taken off the path of a request, such as `/billing`.
    pub prefix: Option<String>,
}

/// As it is written in the file.
impl fmt::Display for Upstream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { tls, http2, authority, socket, .. } = self;
        match (socket, tls, http2) {
            (Some(socket), _, _) => write!(f, "unix:{}", socket.display()),
            (None, false, false) => write!(f, "http://{authority}"),
            (None, true, false) => write!(f, "https://{authority}"),
            (None, false, true) => write!(f, "h2c://{authority}"),
            (None, true, true) => write!(f, "h2://{authority}"),
        }
    }
}

/// What an upstream may look like.
const FORMS: &str = "is not a base URL such as http://127.0.0.1:3000; https://, h2c:// (HTTP/2 without TLS), h2:// (HTTP/2 over TLS) \
                     and unix:/path/to/socket are the other forms";

/// What is wrong with a port that no server can have.
const NO_PORT: &str = "has a port that is not from 1 to 65535";

/// Reads an upstream.
///
/// # Errors
///
/// What is wrong with it, with a cure that fits. The text itself is not repeated: it may hold a password.
pub(crate) fn read(text: &str) -> Result<Upstream, String> {
    if let Some(path) = text.strip_prefix("unix:") {
        return socket(path);
    }
    base(text).ok_or_else(|| unfit(text))
}

/// Why a text is not the base URL of an API, and what to write instead.
fn unfit(text: &str) -> String {
    let is_number = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    if is_number(text) {
        let right = |port| format!("is only a port: write http://127.0.0.1:{port}");
        return read_port(text).map_or_else(|| NO_PORT.into(), right);
    }
    // Looked for in the whole text: a password may hold what ends a host, and would be taken for a host and its path.
    if text.contains('@') {
        return "has a user name or a password in it; callers send their credentials themselves, so leave it out".into();
    }
    let has_scheme = text.contains("://");
    let whole = if has_scheme { text.to_owned() } else { format!("http://{text}") };
    let uri = whole.parse::<Uri>().ok();
    let parts = uri.as_ref().and_then(|uri| Some((uri.scheme_str()?, uri.authority()?)));
    let Some((scheme, authority)) = parts else { return FORMS.into() };
    if !matches!(scheme, "http" | "https" | "h2c" | "h2") {
        return FORMS.into();
    }
    match port_text(authority) {
        Some(port) if !is_number(port) => return FORMS.into(),
        Some(port) if read_port(port).is_none() => return NO_PORT.into(),
        Some(_) | None => {}
    }
    let is_bare = uri.as_ref().is_some_and(is_bare);
    if is_bare && !has_scheme {
        return format!("lacks its beginning: write {scheme}://{authority}");
    }
    format!(
        "has a path or a query; a request's path is passed on as it comes, so write {scheme}://{authority}"
    )
}

/// The server of an `http` or `https` URL without path and password.
pub(crate) fn server(url: &str) -> Option<Upstream> {
    base(url).filter(|upstream| !upstream.http2)
}

fn base(url: &str) -> Option<Upstream> {
    let uri = url.parse::<Uri>().ok()?;
    let (tls, http2) = match uri.scheme_str()? {
        "http" => (false, false),
        "https" => (true, false),
        "h2c" => (false, true),
        "h2" => (true, true),
        _ => return None,
    };
    let authority = uri.authority()?.clone();
    let port = match port_text(&authority) {
        None | Some("") => Some(if tls { 443 } else { 80 }),
        Some(port) => read_port(port),
    }?;
    let has_password = authority.as_str().contains('@');
    let is_base = is_bare(&uri) && !has_password;
    is_base.then_some(Upstream { tls, http2, authority, port, socket: None })
}

/// Whether a URL ends with its server.
fn is_bare(uri: &Uri) -> bool {
    uri.path_and_query().is_none_or(|path| path.as_str() == "/")
}

/// What is written as the port, whatever it is: `Authority::port` is silent about a number that is too large.
fn port_text(authority: &Authority) -> Option<&str> {
    let text = authority.as_str();
    let server = text.rsplit_once('@').map_or(text, |(_, server)| server);
    server.strip_prefix(authority.host())?.strip_prefix(':')
}

/// A port that a server can have.
fn read_port(text: &str) -> Option<u16> {
    text.parse().ok().filter(|port| *port > 0)
}

/// The longest path that the system takes for a socket: 108 bytes with the NUL at the end.
const SOCKET_BYTES_MAX: usize = 107;

fn socket(path: &str) -> Result<Upstream, String> {
    if path.starts_with("//") {
        return Err("has slashes too many: write unix:/path/to/socket".into());
    }
    if !path.starts_with('/') {
        return Err("must be a whole path: write unix:/path/to/socket".into());
    }
    if path.len() > SOCKET_BYTES_MAX {
        return Err(format!(
            "has a path of more than {SOCKET_BYTES_MAX} bytes, which no socket can have"
        ));
    }
    if path.ends_with('/') || path.contains('\0') {
        return Err("names no socket: write unix:/path/to/socket".into());
    }
    Ok(Upstream {
        tls: false,
        http2: false,
        authority: Authority::from_static("localhost"),
        port: 0,
        socket: Some(path.into()),
    })
}

/// Where the requests of routes with an upstream of their own go.
pub(super) fn targets(
    file: &File,
    top: Option<&Upstream>,
    wrong: &mut Vec<Complaint>,
) -> Vec<Target> {
    for (setting, is_set) in [
        ("upstream", file.defaults.upstream.is_some()),
        ("strip_prefix", file.defaults.strip_prefix.is_some()),
    ] {
        if is_set {
            let what = "belongs to a [[route]]; the upstream of all others is `upstream` at the top of the file";
            wrong.push(Complaint::new(format!("defaults.{setting}"), what));
        }
    }
    let mut found: Vec<(usize, Target)> = Vec::new();
    for (at, table) in file.route.iter().enumerate() {
        let strips = table.strip_prefix == Some(true);
        if table.upstream.is_none() && !strips {
            continue;
        }
        let mut complain = |setting: &str, what: String| {
            wrong.push(Complaint::new(format!("route[{at}].{setting}"), what));
        };
        let upstream = match &table.upstream {
            None => top.cloned(),
            Some(text) => read(text).map_err(|what| complain("upstream", what)).ok(),
        };
        // What is wrong with the path, or with the upstream at the top, is said elsewhere.
        let (Some(upstream), Some(path)) = (upstream, table.path.clone()) else { continue };
        let prefix = strips.then(|| prefix(&path)).flatten();
        if strips && prefix.is_none() {
            let what = "needs a path that is a plain prefix and everything below it, such as /billing/{*rest}";
            complain("strip_prefix", what.into());
        }
        let target = Target { path, upstream, prefix };
        let is_same = |(_, other): &(usize, Target)| *other == target;
        if !found.iter().any(is_same) {
            found.push((at, target));
        }
    }
    // Upstreams are found by path alone, so all methods of a path must agree.
    let patterns: Vec<Pattern<'_>> = found.iter().map(|(_, target)| target.pattern()).collect();
    for (place, _) in patterns::check(&patterns) {
        let at = found.get(place).map_or(0, |(at, _)| *at);
        let setting = format!("route[{at}].upstream");
        let is_told = wrong.iter().any(|told| told.setting.starts_with(&format!("route[{at}].")));
        if !is_told {
            let what = "another route has the same path and another upstream, or strips another prefix; a request finds its upstream by \
                        its path, whatever its method";
            wrong.push(Complaint::new(setting, what));
        }
    }
    for (at, target) in &found {
        if let Some(other_way) = target.other_way(top, &found) {
            let what = format!(
                "leads around rules: {} is also reached by {other_way}, so one operation of that server has two paths, and the rules of one \
                 do not hold on the other. Take `strip_prefix` away, or let all requests to that server come by this route",
                target.upstream
            );
            wrong.push(Complaint::new(format!("route[{at}].strip_prefix"), what));
        }
    }
    found.into_iter().map(|(_, target)| target).collect()
}

/// What is wrong with a lookup that names a path, where the upstream speaks HTTP/2.
pub(super) const DEAF_TO_LOOKUPS: &str = "must be a whole URL (http:// or https://) where `upstream` speaks HTTP/2: lookups speak HTTP/1.1";

impl Upstream {
    /// Whether both are one server, however it is spoken to and spelt. Two names of one address are two servers here: nobody is asked for
    /// addresses while a file is read, and they may change.
    pub(super) fn is_same_server(&self, other: &Self) -> bool {
        let machine = |upstream: &Self| machine(upstream.authority.host());
        self.socket == other.socket && self.port == other.port && machine(self) == machine(other)
    }
}

/// The machine that a host names, in one spelling. All names of this machine itself are one, as they are to a fingerprint; a connection to
/// the address that stands for none (`0.0.0.0`) goes to it, too.
fn machine(host: &str) -> String {
    let host = host.trim_matches(['[', ']']);
    let host = host.strip_suffix('.').unwrap_or(host).to_ascii_lowercase();
    let address = host.parse::<IpAddr>().map(|address| address.to_canonical());
    match address {
        Ok(address) if address.is_loopback() || address.is_unspecified() => "localhost".into(),
        Ok(address) => address.to_string(),
        Err(_) => host,
    }
}

impl Target {
    /// How else its server is reached, if it is reached behind a prefix here and in another way elsewhere.
    fn other_way(&self, top: Option<&Upstream>, all: &[(usize, Self)]) -> Option<String> {
        self.prefix.as_ref()?;
        if top.is_some_and(|top| top.is_same_server(&self.upstream)) {
            return Some("`upstream` at the top of the file".into());
        }
        let is_other_way = |(_, other): &&(usize, Self)| {
            other.upstream.is_same_server(&self.upstream) && other.prefix != self.prefix
        };
        all.iter().find(is_other_way).map(|(_, other)| format!("the route of {}", other.path))
    }

    /// Which requests it stands for. One method stands for all.
    pub(crate) fn pattern(&self) -> Pattern<'_> {
        Pattern { path: &self.path, methods: &[http::Method::GET] }
    }
}

/// The plain prefix of a path that takes everything below it.
fn prefix(path: &str) -> Option<String> {
    let (prefix, name) = path.rsplit_once("/{*")?;
    let is_plain = !prefix.is_empty() && !prefix.contains(['{', '%']) && name.ends_with('}');
    is_plain.then(|| prefix.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_form_is_read_and_written_alike() {
        for text in [
            "http://127.0.0.1:3000",
            "https://api.example",
            "h2c://127.0.0.1:50051",
            "h2://[::1]:8443",
            "unix:/run/app/http.sock",
        ] {
            assert_eq!(read(text).unwrap().to_string(), text);
        }
        assert_eq!(read("http://a/").unwrap().to_string(), "http://a");
        for (text, port) in [
            ("http://a", 80),
            ("https://[::1]", 443),
            ("http://a:", 80),
            ("http://[::1]:65535", 65535),
        ] {
            assert_eq!(read(text).unwrap().port, port, "{text}");
        }
        assert!(server("http://a:99999").is_none() && server("http://a:0").is_none());
        assert!(server("h2c://a").is_none() && server("unix:/a").is_none());
    }

    #[test]
    fn what_is_no_upstream_is_refused_without_being_repeated() {
        let long = format!("unix:/{}", "a".repeat(107));
        for (text, part) in [
            ("http://a/path", "so write http://a"),
            ("h2c://a:1/path?x=1", "so write h2c://a:1"),
            ("http://me:hunter2@a", "leave it out"),
            ("me:hunter2@a", "leave it out"),
            ("http://me:hunter2@a:0/b", "leave it out"),
            ("http://me:2024/hunter2@a:3000", "leave it out"),
            ("ws://a", "base URL"),
            ("http:/a", "base URL"),
            ("C:\\api", "base URL"),
            ("", "base URL"),
            ("a.example", "write http://a.example"),
            ("[::1]:3000", "write http://[::1]:3000"),
            ("3000", "write http://127.0.0.1:3000"),
            ("99999", "1 to 65535"),
            ("http://a:0", "1 to 65535"),
            ("http://[::1]:65536", "1 to 65535"),
            ("a:99999", "1 to 65535"),
            ("unix:relative.sock", "whole path"),
            ("unix:///run/a.sock", "slashes too many"),
            ("unix:/run/", "no socket"),
            (&long, "107 bytes"),
        ] {
            let told = read(text).unwrap_err();
            assert!(told.contains(part) && !told.contains("hunter2"), "{text}: {told}");
        }
    }

    #[test]
    fn a_server_is_the_same_one_however_it_is_spelt() {
        let is_same = |one: &str, other: &str| {
            let other = read(other).unwrap();
            read(one).unwrap().is_same_server(&other)
        };
        for here in [
            "http://127.0.0.1:3000",
            "http://LOCALHOST:3000",
            "http://localhost.:3000",
            "h2c://127.0.0.2:3000",
            "http://[::1]:3000",
            "http://[::ffff:127.0.0.1]:3000",
            "http://0.0.0.0:3000",
            "https://localhost:3000",
        ] {
            assert!(is_same("http://localhost:3000", here), "{here}");
        }
        assert!(is_same("http://API.example", "http://api.example:80"));
        assert!(is_same("http://[2001:DB8:0::1]", "http://[2001:db8::1]"));
        for other in ["http://localhost:3001", "http://10.0.0.1:3000", "http://a.localhost:3000"] {
            assert!(!is_same("http://localhost:3000", other), "{other}");
        }
        assert!(!is_same("unix:/a.sock", "unix:/b.sock"));
    }

    #[test]
    fn only_a_plain_prefix_can_be_taken_off() {
        assert_eq!(prefix("/billing/{*rest}").as_deref(), Some("/billing"));
        assert_eq!(prefix("/a/b/{*x}").as_deref(), Some("/a/b"));
        for path in ["/{*rest}", "/billing", "/{tenant}/{*rest}", "/billing/{id}"] {
            assert_eq!(prefix(path), None, "{path}");
        }
    }
}
