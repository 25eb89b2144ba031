//! What does the file say about one token? (`[admin.tokens.NAME]`)

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// What a token is good for.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Deserialize, Serialize, JsonSchema,
)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Role {
    /// Sees keys, effects and statistics.
    Read,
    /// Decides about single keys and effects, too.
    Decide,
    /// Ends retentions, decides about many effects at once, pauses and resumes kinds, too.
    Administer,
}

impl Role {
    /// Its name in the configuration and in answers.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Decide => "decide",
            Self::Administer => "administer",
        }
    }
}

/// A token of one person or program.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct AdminTokenFile {
    /// What it is good for: `read`, `decide` or `administer`. Each includes those before it.
    pub role: Option<Role>,
    /// The token.
    pub token: Option<String>,
    /// A file that holds the token.
    pub token_file: Option<String>,
}
