//! stub
#![allow(missing_docs)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Fingerprint {
    scheme: u8,
    rules: RulesId,
    digest: [u8; 32],
}
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct RulesId([u8; 8]);
impl RulesId {
    pub const fn from_bytes(b: [u8; 8]) -> Self {
        Self(b)
    }
    pub const fn as_bytes(&self) -> &[u8; 8] {
        &self.0
    }
}
impl Fingerprint {
    pub const fn from_parts(scheme: u8, rules: RulesId, digest: [u8; 32]) -> Self {
        Self { scheme, rules, digest }
    }
    pub const fn scheme(&self) -> u8 {
        self.scheme
    }
    pub const fn rules(&self) -> RulesId {
        self.rules
    }
    pub const fn digest(&self) -> &[u8; 32] {
        &self.digest
    }
}
#[derive(Clone, Debug, PartialEq, Default)]
pub struct Rules;
pub struct Request<'a> {
    pub method: &'a str,
    pub authority: &'a str,
    pub path_and_query: &'a str,
    pub headers: &'a http::HeaderMap,
    pub body: &'a [u8],
}
