//! Who is asking, and may they?
//!
//! By a bearer token. Each has a name, which stands beside what it decides, and a role. Whoever has no token, or a wrong one, is
//! told 401; whoever has too small a role is told 403 and which role it takes.

use std::sync::Arc;

use axum::extract::{Request, State};
use axum::middleware::Next;
use axum::response::Response;
use axum::{Extension, Json};
use http::{HeaderMap, header};
use retrysafe_core::store::Store;
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};

use super::Admin;
use super::error::Refused;
use crate::config::{ADMIN_NAME, OperatorToken, Role, Secret};

/// Whoever has shown a token. It travels with the request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Operator {
    pub name: Arc<str>,
    pub role: Role,
}

/// Everybody who may ask.
#[derive(Debug)]
pub(crate) struct Operators(Vec<([u8; 32], Operator)>);

impl Operators {
    /// The token that has every role, and those that have names.
    pub(crate) fn new(admin: &Secret, named: &[OperatorToken]) -> Self {
        let whole = (digest(&admin.0), Operator::new(ADMIN_NAME, Role::Administer));
        let named = named
            .iter()
            .map(|token| (digest(&token.token.0), Operator::new(&token.name, token.role)));
        Self(std::iter::once(whole).chain(named).collect())
    }

    /// Whose token this is. Digests are compared, and always all of them, so that the time it takes says nothing about any token.
    fn owner(&self, token: &str) -> Option<Operator> {
        let shown = digest(token);
        let mut found = None;
        for (known, operator) in &self.0 {
            let differing =
                known.iter().zip(&shown).fold(0, |bits, (one, other)| bits | (one ^ other));
            if differing == 0 {
                found = Some(operator.clone());
            }
        }
        found
    }
}

impl Operator {
    fn new(name: &str, role: Role) -> Self {
        Self { name: name.into(), role }
    }
}

fn digest(token: &str) -> [u8; 32] {
    Sha256::digest(token.as_bytes()).into()
}

/// What a page asks of whoever wants it.
pub(super) struct Gatekeeper<S> {
    pub admin: Arc<Admin<S>>,
    pub needed: Role,
}

impl<S> Clone for Gatekeeper<S> {
    fn clone(&self) -> Self {
        Self { admin: Arc::clone(&self.admin), needed: self.needed }
    }
}

/// Lets those through who have the role that is needed.
pub(super) async fn authorize<S: Store>(
    State(Gatekeeper { admin, needed }): State<Gatekeeper<S>>,
    mut request: Request,
    next: Next,
) -> Result<Response, Refused> {
    let operators = admin.operators.load_full();
    let owner = shown_token(request.headers()).and_then(|token| operators.owner(token));
    let operator = owner.ok_or(Refused::Unauthorized)?;
    if operator.role < needed {
        return Err(Refused::RoleNeeded { name: operator.name, role: operator.role, needed });
    }
    request.extensions_mut().insert(operator);
    Ok(next.run(request).await)
}

/// Whose token was shown.
pub(super) async fn whoami(Extension(operator): Extension<Operator>) -> Json<Value> {
    Json(json!({"name": &*operator.name, "role": operator.role.name()}))
}

fn shown_token(headers: &HeaderMap) -> Option<&str> {
    let shown = headers.get(header::AUTHORIZATION)?.to_str().ok()?;
    let (kind, token) = shown.split_once(' ')?;
    kind.eq_ignore_ascii_case("bearer").then(|| token.trim())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_its_owners_whole_and_no_other() {
        let named = OperatorToken {
            name: "alice".into(),
            role: Role::Read,
            token: Secret("0123456789abcdef".into()),
        };
        let operators = Operators::new(&Secret("fedcba9876543210".into()), &[named]);
        let name = |token: &str| operators.owner(token).map(|operator| operator.name.to_string());
        assert_eq!(name("0123456789abcdef").as_deref(), Some("alice"));
        assert_eq!(name("fedcba9876543210").as_deref(), Some("admin"));
        for wrong in ["", "0", "0123456789abcde", "0123456789abcdef0", "0123456789ABCDEF"] {
            assert_eq!(name(wrong), None, "{wrong}");
        }
    }
}
