//! How does a start learn that an address is taken before it has made anything?
//!
//! It binds its addresses first, and listens to them last. Meanwhile nobody can be served: the system refuses connections to a socket that is
//! bound and does not listen, as if nobody was there. A crash in between leaves nothing behind.

use std::io;
use std::net::SocketAddr;

use tokio::net::{TcpListener, TcpSocket};

use crate::config::Config;

/// How many connections may wait until they are taken: what `TcpListener::bind` asks for.
const BACKLOG: u32 = 128;

/// Where the gateway is going to listen.
pub(super) struct ReservedAddresses {
    pub callers: ReservedAddress,
    pub operators: Option<ReservedAddress>,
}

/// An address that nobody else can listen to.
pub(super) struct ReservedAddress {
    socket: TcpSocket,
    address: SocketAddr,
    flag: &'static str,
}

impl ReservedAddresses {
    /// Takes both addresses.
    ///
    /// # Errors
    ///
    /// Why one of them cannot be had.
    pub(super) fn take(config: &Config) -> Result<Self, String> {
        let operators = config.admin.as_ref();
        Ok(Self {
            callers: ReservedAddress::take(config.listen, "--listen")?,
            operators: operators
                .map(|admin| ReservedAddress::take(admin.listen, "--admin"))
                .transpose()?,
        })
    }
}

impl ReservedAddress {
    fn take(address: SocketAddr, flag: &'static str) -> Result<Self, String> {
        let bound = || {
            let socket = if address.is_ipv4() { TcpSocket::new_v4() } else { TcpSocket::new_v6() }?;
            // Connections of a former process that are still closing do not count.
            socket.set_reuseaddr(true)?;
            socket.bind(address)?;
            Ok(socket)
        };
        match bound() {
            Ok(socket) => Ok(Self { socket, address, flag }),
            Err(error) => Err(refused(address, &error, flag)),
        }
    }

    /// Lets connections in.
    ///
    /// # Errors
    ///
    /// If another program was first: two may reserve an address at once, and one may listen.
    pub(super) fn listen(self) -> Result<TcpListener, String> {
        let Self { socket, address, flag } = self;
        socket.listen(BACKLOG).map_err(|error| refused(address, &error, flag))
    }
}

fn refused(address: SocketAddr, error: &io::Error, flag: &str) -> String {
    let is_taken = error.kind() == io::ErrorKind::AddrInUse;
    let cure =
        if is_taken { format!(". Choose another address with {flag}") } else { String::new() };
    format!("{address}: {error}{cure}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_reserved_address_refuses_connections_until_it_is_listened_to() {
        let reserved = ReservedAddress::take("127.0.0.1:0".parse().unwrap(), "--listen").unwrap();
        let address = reserved.socket.local_addr().unwrap();
        let refused = std::net::TcpStream::connect(address).unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::ConnectionRefused);
        let listener = reserved.listen().unwrap();
        assert!(std::net::TcpStream::connect(address).is_ok());
        let taken = ReservedAddress::take(address, "--listen").err().unwrap();
        assert!(taken.contains("--listen") && taken.contains(&address.to_string()), "{taken}");
        drop(listener);
    }

    #[tokio::test]
    async fn of_two_that_reserve_one_address_the_second_cannot_listen() {
        let first = ReservedAddress::take("127.0.0.1:0".parse().unwrap(), "--admin").unwrap();
        let address = first.socket.local_addr().unwrap();
        let second = ReservedAddress::take(address, "--admin").unwrap();
        let _listener = first.listen().unwrap();
        assert!(second.listen().unwrap_err().contains("--admin"));
    }
}
