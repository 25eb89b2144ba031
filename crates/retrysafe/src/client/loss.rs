//! What does an error prove about its request: was it sent?

use std::error::Error;
use std::io;

/// What an error proves about its request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Loss {
    /// Nothing was sent: there was no connection.
    NotSent,
    /// Something may have been sent.
    Lost,
    /// Nothing was sent, and nothing ever will be: the request itself cannot be written.
    Unsendable,
}

/// What hyper-util's and reqwest's errors prove: a connection that could not be made sent nothing.
///
/// Everything else counts as sent. So does a timeout while connecting, unless the connector itself
/// reports it: set a connect timeout there to be told apart.
pub fn loss(error: &(dyn Error + 'static)) -> Loss {
    let mut next = Some(error);
    while let Some(error) = next {
        if let Some(error) = error.downcast_ref::<hyper_util::client::legacy::Error>()
            && error.is_connect()
        {
            return Loss::NotSent;
        }
        #[cfg(feature = "reqwest")]
        if let Some(error) = error.downcast_ref::<reqwest::Error>()
            && error.is_builder()
        {
            return Loss::Unsendable;
        }
        if let Some(error) = error.downcast_ref::<io::Error>()
            && is_of_connecting(error.kind())
        {
            return Loss::NotSent;
        }
        next = error.source();
    }
    Loss::Lost
}

/// The errors that a connected stream does not have.
fn is_of_connecting(kind: io::ErrorKind) -> bool {
    kind == io::ErrorKind::ConnectionRefused || kind == io::ErrorKind::AddrNotAvailable
}
