//! Can the files be used that the tables of effects name?
//!
//! They are read when the configuration is, and secrets again for each delivery.

use super::connect::TlsClient;
use super::sign::read_signing_secret;
use crate::config::effect_file::ReceiverTlsFile;
use crate::config::{Complaint, File};

/// What is wrong with the files, all of it.
pub(crate) fn complaints(file: &File) -> Vec<Complaint> {
    let mut wrong = Vec::new();
    for (kind, table) in &file.effects {
        let signing = table.signing.iter().flat_map(|signing| &signing.secret_files);
        for what in signing.filter_map(|path| read_signing_secret(path).err()) {
            wrong.push(Complaint::new(format!("effects.{kind}.signing.secret_files"), what));
        }
        if table.tls != ReceiverTlsFile::default()
            && let Err(error) = TlsClient::new(table.tls.clone()).read_again()
        {
            wrong.push(Complaint::new(format!("effects.{kind}.tls"), error.to_string()));
        }
    }
    wrong
}
