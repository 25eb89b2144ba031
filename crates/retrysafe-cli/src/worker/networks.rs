//! Which addresses may a delivery go to?
//!
//! A staged destination may come from a customer, and a name resolves to whatever its owner says. So what counts is the address that is
//! connected to: it must be one that the public internet has, or stand in a network that the operator has allowed. IPv6 addresses that
//! carry an IPv4 address inside (6to4, NAT64, Teredo) are not looked into: they are refused as they are.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::{IpNet, Ipv4Net, Ipv6Net};

/// IPv4 networks that are not public, and what they are.
const REFUSED_V4: [(Ipv4Addr, u8, &str); 15] = [
    (Ipv4Addr::new(0, 0, 0, 0), 8, "of this network"),
    (Ipv4Addr::new(10, 0, 0, 0), 8, "private"),
    (Ipv4Addr::new(100, 64, 0, 0), 10, "shared by a carrier"),
    (Ipv4Addr::new(127, 0, 0, 0), 8, "loopback"),
    (Ipv4Addr::new(169, 254, 0, 0), 16, "link-local, as metadata services are"),
    (Ipv4Addr::new(172, 16, 0, 0), 12, "private"),
    (Ipv4Addr::new(192, 0, 0, 0), 24, "reserved"),
    (Ipv4Addr::new(192, 0, 2, 0), 24, "for documents"),
    (Ipv4Addr::new(192, 88, 99, 0), 24, "a 6to4 relay"),
    (Ipv4Addr::new(192, 168, 0, 0), 16, "private"),
    (Ipv4Addr::new(198, 18, 0, 0), 15, "for measurements"),
    (Ipv4Addr::new(198, 51, 100, 0), 24, "for documents"),
    (Ipv4Addr::new(203, 0, 113, 0), 24, "for documents"),
    (Ipv4Addr::new(224, 0, 0, 0), 4, "multicast"),
    (Ipv4Addr::new(240, 0, 0, 0), 4, "reserved"),
];

/// The public part of IPv6.
const PUBLIC_V6: (Ipv6Addr, u8) = (Ipv6Addr::new(0x2000, 0, 0, 0, 0, 0, 0, 0), 3);

/// Networks in it that are not public, and what they are.
const REFUSED_V6: [(Ipv6Addr, u8, &str); 4] = [
    (Ipv6Addr::new(0x2001, 0, 0, 0, 0, 0, 0, 0), 23, "a tunnel, or reserved"),
    (Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 0), 32, "for documents"),
    (Ipv6Addr::new(0x2002, 0, 0, 0, 0, 0, 0, 0), 16, "6to4"),
    (Ipv6Addr::new(0x3fff, 0, 0, 0, 0, 0, 0, 0), 20, "for documents"),
];

/// Why nothing is sent to an address; none if something may be.
pub(super) fn why_refused(address: IpAddr, allowed: &[IpNet]) -> Option<&'static str> {
    // `::ffff:127.0.0.1` is 127.0.0.1 written differently.
    let address = address.to_canonical();
    let why = match address {
        IpAddr::V4(address) => refused_v4(address),
        IpAddr::V6(address) => refused_v6(address),
    };
    why.filter(|_| !allowed.iter().any(|network| network.contains(&address)))
}

fn refused_v4(address: Ipv4Addr) -> Option<&'static str> {
    let holds = |(network, length, _): &&(Ipv4Addr, u8, _)| {
        Ipv4Net::new(*network, *length).is_ok_and(|network| network.contains(&address))
    };
    REFUSED_V4.iter().find(holds).map(|(_, _, what)| *what)
}

fn refused_v6(address: Ipv6Addr) -> Option<&'static str> {
    let is_in = |network: Ipv6Addr, length: u8| {
        Ipv6Net::new(network, length).is_ok_and(|network| network.contains(&address))
    };
    if !is_in(PUBLIC_V6.0, PUBLIC_V6.1) {
        return Some("loopback, link-local, private, multicast or reserved");
    }
    REFUSED_V6.iter().find(|(network, length, _)| is_in(*network, *length)).map(|found| found.2)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn is_refused(address: &str, allowed: &[&str]) -> bool {
        let allowed: Vec<IpNet> = allowed.iter().map(|network| network.parse().unwrap()).collect();
        why_refused(address.parse().unwrap(), &allowed).is_some()
    }

    #[test]
    fn only_public_addresses_are_connected_to() {
        for refused in [
            "0.0.0.0",
            "0.1.2.3",
            "10.0.0.1",
            "100.64.0.1",
            "100.100.100.200",
            "127.0.0.1",
            "127.255.255.254",
            "169.254.169.254",
            "172.16.0.1",
            "172.31.255.255",
            "192.0.0.1",
            "192.0.2.1",
            "192.88.99.1",
            "192.168.1.1",
            "198.18.0.1",
            "198.51.100.1",
            "203.0.113.1",
            "224.0.0.1",
            "239.255.255.255",
            "240.0.0.1",
            "255.255.255.255",
            "::",
            "::1",
            "::7f00:1",
            "::ffff:127.0.0.1",
            "::ffff:10.0.0.1",
            "64:ff9b::7f00:1",
            "64:ff9b::808:808",
            "64:ff9b:1::1",
            "100::1",
            "2001::1",
            "2001:db8::1",
            "2002:7f00:1::",
            "2002:808:808::1",
            "3fff::1",
            "5f00::1",
            "fc00::1",
            "fd00:ec2::254",
            "fe80::1",
            "fec0::1",
            "ff02::1",
        ] {
            assert!(is_refused(refused, &[]), "{refused}");
        }
        for public in [
            "1.1.1.1",
            "8.8.8.8",
            "9.255.255.255",
            "11.0.0.0",
            "100.63.255.255",
            "100.128.0.0",
            "128.0.0.1",
            "172.15.255.255",
            "172.32.0.0",
            "192.167.255.255",
            "223.255.255.255",
            "::ffff:8.8.8.8",
            "2001:4860:4860::8888",
            "2606:4700::1111",
            "3ffe::1",
        ] {
            assert!(!is_refused(public, &[]), "{public}");
        }
    }

    #[test]
    fn a_network_that_is_allowed_is_connected_to_and_no_other() {
        assert!(!is_refused("127.0.0.1", &["127.0.0.0/8"]));
        assert!(!is_refused("::ffff:127.0.0.1", &["127.0.0.0/8"]), "the same address");
        assert!(is_refused("10.0.0.1", &["127.0.0.0/8"]));
        assert!(is_refused("::1", &["127.0.0.0/8"]));
        assert!(!is_refused("64:ff9b::808:808", &["64:ff9b::/96"]));
    }
}
