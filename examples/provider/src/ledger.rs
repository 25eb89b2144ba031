//! What was charged, and which keys are remembered?

use std::collections::{BTreeMap, HashMap};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

/// What the provider takes and remembers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Settings {
    /// Whether a key counts at all.
    pub takes_keys: bool,
    /// For how long a key is remembered; none is for ever.
    pub remembers_ms: Option<u64>,
}

impl Default for Settings {
    fn default() -> Self {
        Self { takes_keys: true, remembers_ms: None }
    }
}

/// What is asked of the provider.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub(crate) struct ChargeRequest {
    pub(crate) ride: String,
    pub(crate) cents: u64,
}

/// A receipt that is to be mailed.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub(crate) struct ReceiptRequest {
    pub(crate) ride: String,
    pub(crate) text: String,
}

/// What is known of one ride.
#[derive(Clone, Debug, PartialEq, Eq, Default, Serialize)]
pub struct ChargedRide {
    /// How many requests came, whatever became of them.
    pub requests: u64,
    /// How many times the card was charged.
    pub charges: u64,
    /// How many times it was declined.
    pub declined: u64,
    /// The keys that came with the requests, and how often each.
    pub keys: BTreeMap<String, u64>,
    /// How many receipts were mailed: one for each key.
    pub receipts: u64,
}

/// What is known of all rides.
#[derive(Clone, Debug, PartialEq, Eq, Default, Serialize)]
pub struct Totals {
    /// How many requests came.
    pub requests: u64,
    /// How many charges were made.
    pub charges: u64,
    /// For how many rides.
    pub rides: u64,
    /// The rides with more than one charge.
    pub charged_twice: Vec<String>,
    /// The rides whose requests came with more than one key.
    pub with_two_keys: Vec<String>,
    /// How many receipts were mailed.
    pub receipts: u64,
    /// The rides with more than one receipt.
    pub receipted_twice: Vec<String>,
}

/// How a request ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ChargeEnd {
    Charged(String),
    Declined,
    /// The key was used for something else.
    OtherContent,
}

#[derive(Debug, Default)]
pub(crate) struct Ledger {
    pub(crate) settings: Settings,
    rides: HashMap<String, ChargedRide>,
    remembered: HashMap<String, RememberedKey>,
    /// The keys of receipts that were mailed, with their texts.
    receipts: HashMap<String, String>,
    charges: u64,
}

#[derive(Debug)]
struct RememberedKey {
    request: ChargeRequest,
    end: ChargeEnd,
    since: Instant,
}

impl Ledger {
    /// A request has come.
    pub(crate) fn note(&mut self, request: &ChargeRequest, key: Option<&str>) {
        let ride = self.rides.entry(request.ride.clone()).or_default();
        ride.requests += 1;
        if let Some(key) = key {
            *ride.keys.entry(key.to_owned()).or_default() += 1;
        }
    }

    /// Charges, unless this key is remembered.
    pub(crate) fn charge(
        &mut self,
        request: &ChargeRequest,
        key: Option<&str>,
        declines: bool,
    ) -> ChargeEnd {
        let key = key.filter(|_| self.settings.takes_keys);
        let memory = self.settings.remembers_ms.map(Duration::from_millis);
        if let Some(known) = key.and_then(|key| self.remembered.get(key))
            && memory.is_none_or(|memory| known.since.elapsed() < memory)
        {
            let is_same = known.request == *request;
            return if is_same { known.end.clone() } else { ChargeEnd::OtherContent };
        }
        let ride = self.rides.entry(request.ride.clone()).or_default();
        let end = if declines {
            ride.declined += 1;
            ChargeEnd::Declined
        } else {
            ride.charges += 1;
            self.charges += 1;
            ChargeEnd::Charged(format!("ch_{}", self.charges))
        };
        if let Some(key) = key {
            let request = request.clone();
            let known = RememberedKey { request, end: end.clone(), since: Instant::now() };
            self.remembered.insert(key.to_owned(), known);
        }
        end
    }

    /// Mails a receipt, unless this key is remembered. False if the key was used for another receipt.
    pub(crate) fn mail(&mut self, request: &ReceiptRequest, key: Option<&str>) -> bool {
        let key = key.filter(|_| self.settings.takes_keys);
        if let Some(known) = key.and_then(|key| self.receipts.get(key)) {
            return *known == request.text;
        }
        self.rides.entry(request.ride.clone()).or_default().receipts += 1;
        if let Some(key) = key {
            self.receipts.insert(key.to_owned(), request.text.clone());
        }
        true
    }

    pub(crate) fn forget_keys(&mut self) {
        self.remembered.clear();
        self.receipts.clear();
    }

    pub(crate) fn ride(&self, ride: &str) -> ChargedRide {
        self.rides.get(ride).cloned().unwrap_or_default()
    }

    pub(crate) fn totals(&self) -> Totals {
        let named = |wanted: fn(&ChargedRide) -> bool| {
            let mut names: Vec<String> = self
                .rides
                .iter()
                .filter(|(_, ride)| wanted(ride))
                .map(|(name, _)| name.clone())
                .collect();
            names.sort();
            names
        };
        Totals {
            requests: self.rides.values().map(|ride| ride.requests).sum(),
            charges: self.charges,
            rides: self.rides.values().filter(|ride| ride.charges > 0).count() as u64,
            charged_twice: named(|ride| ride.charges > 1),
            with_two_keys: named(|ride| ride.keys.len() > 1),
            receipts: self.rides.values().map(|ride| ride.receipts).sum(),
            receipted_twice: named(|ride| ride.receipts > 1),
        }
    }
}
