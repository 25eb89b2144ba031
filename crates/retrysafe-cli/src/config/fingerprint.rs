//! How is a request's meaning taken?

use http::uri::Authority;
use retrysafe_core::fingerprint::{Pointer, Rules};

use super::file::FingerprintFile;
use super::names;
use super::source::Complaint;

/// The rules that a file sets.
pub(super) fn rules(file: &FingerprintFile, wrong: &mut Vec<Complaint>) -> Rules {
    let mut rules = Rules::default();
    for name in file.headers.iter().flatten() {
        match names::read(name) {
            Ok(name) => {
                let what = names::unfit_as_meaning(&name);
                wrong.extend(what.map(|what| Complaint::new("fingerprint.headers", what)));
                rules = rules.header(name);
            }
            Err(what) => wrong.push(Complaint::new("fingerprint.headers", what)),
        }
    }
    type Add = fn(Rules, Pointer) -> Rules;
    let selections: [(&str, &Option<Vec<String>>, Add); 2] = [
        ("fingerprint.include", &file.include, Rules::include),
        ("fingerprint.exclude", &file.exclude, Rules::exclude),
    ];
    for (setting, pointers, add) in selections {
        for text in pointers.iter().flatten() {
            match Pointer::parse(text) {
                Ok(pointer) => rules = add(rules, pointer),
                Err(error) => wrong.push(Complaint::new(setting, error.to_string())),
            }
        }
    }
    for group in file.host_aliases.iter().flatten() {
        match group.iter().find(|name| !is_host_name(name)) {
            Some(name) => {
                let what =
                    format!("{name:?} is not a host name without port, such as \"api.test\"");
                wrong.push(Complaint::new("fingerprint.host_aliases", what));
            }
            None => rules = rules.host_aliases(group.iter().map(String::as_str)),
        }
    }
    if file.host == Some(false) {
        if file.host_aliases.is_some() {
            let what = "has no effect beside `host = false`; leave one of the two out";
            wrong.push(Complaint::new("fingerprint.host_aliases", what));
        }
        rules = rules.without_host();
    }
    if file.raw_bodies == Some(true) {
        for (name, pointers) in [("include", &file.include), ("exclude", &file.exclude)] {
            if pointers.is_some() {
                let what = "has no effect beside `raw_bodies = true`; leave one of the two out";
                wrong.push(Complaint::new(format!("fingerprint.{name}"), what));
            }
        }
        rules = rules.raw_bodies();
    }
    rules
}

fn is_host_name(name: &str) -> bool {
    Authority::try_from(name).is_ok_and(|authority| authority.host() == name)
}
