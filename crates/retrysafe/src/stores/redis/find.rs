//! Which node has which bucket?
//!
//! One server has all of them. Sentinels are asked for the master's address, a cluster's nodes for
//! their slots. Whoever answers first is believed: a wrong answer is corrected by the node itself,
//! which redirects, or says that it is a replica.

use std::sync::Arc;

use redis::Value;

use super::error::ConnectError;
use super::link::{Link, Routes};
use super::names::{BUCKETS, slot_of};
use super::script::{number, text};
use super::settings::{Address, Settings, Topology};
use super::wire::Wire;

/// The node of each bucket. Nodes that are known keep their connections.
pub(super) async fn routes(settings: &Settings, known: &Routes) -> Result<Routes, ConnectError> {
    let nodes: Vec<Arc<Link>> = known.nodes().into_iter().map(|(_, link)| link).collect();
    let mut links: Vec<Arc<Link>> = nodes.clone();
    let mut link_of = |address: Address| {
        if let Some(link) = links.iter().find(|link| link.address == address) {
            return Arc::clone(link);
        }
        let link = Arc::new(Link::new(address, settings));
        links.push(Arc::clone(&link));
        link
    };
    match &settings.topology {
        Topology::Single(address) => {
            let link = link_of(address.clone());
            Ok(Routes(vec![Some(link); BUCKETS]))
        }
        Topology::Sentinel { sentinels, name } => {
            let link = link_of(master_of(settings, sentinels, name).await?);
            Ok(Routes(vec![Some(link); BUCKETS]))
        }
        Topology::Cluster(seeds) => {
            let slots = slots(settings, &nodes, seeds).await?;
            let link_of_bucket = |bucket: usize| {
                let slot = slot_of(bucket);
                let range = slots.iter().find(|range| (range.first..=range.last).contains(&slot));
                range.map(|range| link_of(range.master.clone()))
            };
            Ok(Routes((0..BUCKETS).map(link_of_bucket).collect()))
        }
    }
}

/// Asks sentinels for a master's address, one after the other.
async fn master_of(
    settings: &Settings,
    sentinels: &[Address],
    name: &str,
) -> Result<Address, ConnectError> {
    let mut told = ConnectError::passing("no sentinel answers");
    for sentinel in sentinels {
        match ask_sentinel(settings, sentinel, name).await {
            Ok(Some(address)) => return Ok(address),
            Ok(None) => told = ConnectError::passing(format!("no sentinel knows a master {name}")),
            Err(error) => told = error,
        }
    }
    Err(told)
}

async fn ask_sentinel(
    settings: &Settings,
    sentinel: &Address,
    name: &str,
) -> Result<Option<Address>, ConnectError> {
    let wire = Wire::open(settings, sentinel, &settings.sentinel_login, 0).await?;
    let mut command = redis::cmd("SENTINEL");
    command.arg("GET-MASTER-ADDR-BY-NAME").arg(name);
    let Value::Array(parts) = ask(&wire, &command, settings).await? else { return Ok(None) };
    let mut parts = parts.into_iter().filter_map(text);
    let host = parts.next().and_then(|host| String::from_utf8(host).ok());
    let port = parts.next().and_then(|port| String::from_utf8(port).ok()?.parse().ok());
    Ok(host.zip(port).map(|(host, port)| Address::Tcp(host, port)))
}

struct SlotRange {
    first: u16,
    last: u16,
    master: Address,
}

/// Asks a cluster's nodes for their slots: those that are connected first, then those of the URL.
async fn slots(
    settings: &Settings,
    nodes: &[Arc<Link>],
    seeds: &[Address],
) -> Result<Vec<SlotRange>, ConnectError> {
    let mut told = ConnectError::passing("no node of the cluster answers");
    let connected = nodes.iter().filter_map(|link| link.any().map(|wire| (link, wire)));
    for (link, wire) in connected {
        match ask_slots(&wire, &link.address, settings).await {
            Ok(slots) if !slots.is_empty() => return Ok(slots),
            Ok(_) => {}
            Err(error) => {
                link.give_up(&wire);
                told = error;
            }
        }
    }
    for seed in seeds {
        let asked = async {
            let wire = Wire::open(settings, seed, &settings.login, 0).await?;
            ask_slots(&wire, seed, settings).await
        };
        match asked.await {
            Ok(slots) if !slots.is_empty() => return Ok(slots),
            Ok(_) => {
                told = ConnectError::passing(format!("{seed} is in no cluster that has slots"))
            }
            Err(error) => told = error,
        }
    }
    Err(told)
}

async fn ask_slots(
    wire: &Wire,
    asked: &Address,
    settings: &Settings,
) -> Result<Vec<SlotRange>, ConnectError> {
    let answer = ask(wire, redis::cmd("CLUSTER").arg("SLOTS"), settings).await?;
    let Value::Array(ranges) = answer else {
        return Err(ConnectError::new(format!("{asked} is not a node of a cluster")));
    };
    Ok(ranges.into_iter().filter_map(|range| slot_range(range, asked)).collect())
}

fn slot_range(range: Value, asked: &Address) -> Option<SlotRange> {
    let Value::Array(parts) = range else { return None };
    let mut parts = parts.into_iter();
    let (first, last) = (number(&parts.next()?)?, number(&parts.next()?)?);
    let Value::Array(master) = parts.next()? else { return None };
    let mut master = master.into_iter();
    let host = master.next().and_then(text).and_then(|host| String::from_utf8(host).ok());
    let port = number(&master.next()?)?.try_into().ok()?;
    // A node that does not know its own name is where we have asked it.
    let host = match (host, asked) {
        (Some(host), _) if !host.is_empty() && host != "?" => host,
        (_, Address::Tcp(host, _)) => host.clone(),
        (_, Address::Unix(_)) => return None,
    };
    let master = Address::Tcp(host, port);
    Some(SlotRange { first: first.try_into().ok()?, last: last.try_into().ok()?, master })
}

async fn ask(
    wire: &Wire,
    command: &redis::Cmd,
    settings: &Settings,
) -> Result<Value, ConnectError> {
    let silence = |_| ConnectError::passing("a server does not answer in time");
    let answer = tokio::time::timeout(settings.deadline, wire.send(command)).await;
    match answer.map_err(silence)? {
        Ok(Value::ServerError(error)) => {
            Err(ConnectError::new(format!("the server refuses to say who it is: {error}")))
        }
        Ok(value) => Ok(value),
        Err(error) => Err(ConnectError::passing("the connection broke").because(error)),
    }
}
