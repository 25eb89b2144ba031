//! Can the files be used that the configuration names?
//!
//! They are read and tried when the configuration is: a check that passes must start.

use super::jwt::Verifier;
use super::live;
use crate::config::{Complaint, File, unreadable, webhooks};
use crate::dial;

/// What is wrong with the files, all of it.
pub(crate) fn complaints(file: &File) -> Vec<Complaint> {
    let mut wrong = Vec::new();
    if let Some(tls) = &file.tls {
        wrong.extend(live::acceptor(tls).err().unwrap_or_default());
    }
    if let Some(path) = &file.upstream_tls.authorities
        && let Err(error) = dial::client_config(Some(path.as_ref()))
    {
        wrong.push(Complaint::new("upstream_tls.authorities", unreadable(path, &error)));
    }
    if let Some(jwt) = &file.jwt {
        wrong.extend(Verifier::new(jwt).err().unwrap_or_default());
    }
    wrong.extend(webhooks::secret_complaints(&file.webhooks));
    wrong
}
