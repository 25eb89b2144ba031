//! Who may ask the admin listener, and for what? (`[admin.tokens.NAME]`)
//!
//! A token has a name and a role. The name stands beside every decision, in the log and on the record's timeline, so it is one that
//! does nothing to a terminal. A role includes those before it.

use std::collections::BTreeMap;

use super::admin_token_file::{AdminTokenFile, Role};
use super::{Complaint, Secret, read_secret, weak_token};

/// The name of the token that `[admin]` itself sets, or that the gateway has made. It has every role.
pub(crate) const ADMIN_NAME: &str = "admin";

/// The longest name of a token, in bytes: it is kept with every decision.
pub(crate) const NAME_BYTES_MAX: usize = 64;

/// A token, whose it is and what it is good for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct OperatorToken {
    pub name: String,
    pub role: Role,
    pub token: Secret,
}

/// The tokens that have names. The token of `[admin]` itself, if one is set, is none of theirs.
pub(super) fn named_tokens(
    tables: &BTreeMap<String, AdminTokenFile>,
    admin: Option<&str>,
    wrong: &mut Vec<Complaint>,
) -> Vec<OperatorToken> {
    let mut tokens: Vec<OperatorToken> = Vec::new();
    for (name, table) in tables {
        let mut complain = |setting: &str, what: String| {
            wrong.push(Complaint::new(format!("admin.tokens.{name}{setting}"), what));
        };
        if let Err(what) = check_name(name) {
            complain("", what);
            continue;
        }
        let Some(role) = table.role else {
            complain(".role", "is not set: read, decide or administer".into());
            continue;
        };
        let (setting, read) = match (&table.token, &table.token_file) {
            (Some(token), None) => (".token", Ok(token.clone())),
            (None, Some(path)) => (".token_file", read_secret(path)),
            (Some(_), Some(_)) => (".token_file", Err("`token` is set as well".into())),
            (None, None) => (
                ".token",
                Err("is not set; set it, or `token_file` to a file that holds it".into()),
            ),
        };
        let checked = read.and_then(|token| match weak_token(&token) {
            Some(what) => Err(what),
            None => Ok(token),
        });
        let token = match checked {
            Ok(token) => token,
            Err(what) => {
                complain(setting, what);
                continue;
            }
        };
        let twin = tokens.iter().find(|other| other.token.0 == token);
        let twin = twin.map(|other| other.name.as_str());
        match twin.or_else(|| (admin == Some(&*token)).then_some(ADMIN_NAME)) {
            Some(other) => {
                complain(setting, format!("is the token of {other} too; a token has one name"));
            }
            None => tokens.push(OperatorToken { name: name.clone(), role, token: Secret(token) }),
        }
    }
    tokens
}

fn check_name(name: &str) -> Result<(), String> {
    if name == ADMIN_NAME {
        return Err("is the name of the token in [admin] itself; choose another one".into());
    }
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.@".contains(&byte);
    let is_good = (1..=NAME_BYTES_MAX).contains(&name.len()) && name.bytes().all(is_plain);
    if is_good {
        Ok(())
    } else {
        Err(format!("a name has 1 to {NAME_BYTES_MAX} letters, digits, `-`, `_`, `.` and `@`"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table(role: Option<Role>, token: Option<&str>) -> AdminTokenFile {
        AdminTokenFile { role, token: token.map(Into::into), token_file: None }
    }

    #[test]
    fn every_token_has_a_name_a_role_and_a_secret_of_its_own() {
        let long = "x".repeat(NAME_BYTES_MAX + 1);
        let tables = [
            ("alice", table(Some(Role::Decide), Some("0123456789abcdef-a"))),
            ("bob", table(Some(Role::Read), Some("0123456789abcdef-a"))),
            ("carol", table(Some(Role::Read), Some("0123456789abcdef-admin"))),
            ("admin", table(Some(Role::Read), Some("0123456789abcdef-b"))),
            ("dave", table(None, Some("0123456789abcdef-c"))),
            ("erin", table(Some(Role::Read), None)),
            ("frank", table(Some(Role::Read), Some("short"))),
            ("\u{1b}[2J", table(Some(Role::Read), Some("0123456789abcdef-d"))),
            (&long, table(Some(Role::Read), Some("0123456789abcdef-e"))),
        ];
        let tables = tables.map(|(name, table)| (name.to_owned(), table)).into();
        let mut wrong = Vec::new();
        let tokens = named_tokens(&tables, Some("0123456789abcdef-admin"), &mut wrong);
        let names: Vec<&str> = tokens.iter().map(|token| token.name.as_str()).collect();
        assert_eq!(names, ["alice"]);
        let told: Vec<String> = wrong.iter().map(ToString::to_string).collect();
        assert_eq!(told.len(), 8, "{told:?}");
        let told = told.join("\n");
        for part in [
            "`admin.tokens.bob.token`: is the token of alice too",
            "`admin.tokens.carol.token`: is the token of admin too",
            "`admin.tokens.admin`: is the name of the token in [admin]",
            "`admin.tokens.dave.role`: is not set",
            "`admin.tokens.erin.token`: is not set",
            "`admin.tokens.frank.token`: is shorter",
            "a name has 1 to 64",
        ] {
            assert!(told.contains(part), "{part}: {told}");
        }
        assert!(!told.contains("0123456789abcdef"), "{told}");
    }

    #[test]
    fn a_role_includes_those_before_it() {
        assert!(Role::Read < Role::Decide && Role::Decide < Role::Administer);
    }
}
