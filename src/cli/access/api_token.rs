//! `meshd api-token`: creates, lists and revokes API tokens.

use crate::cli::{
    Context, Failure,
    output::list::ListOutput,
    output::print::{self, ago, confirm, now, table},
    wait,
};
use clap::Subcommand;
use meshd_api::{ApiTokenView, CreateApiToken, routes as api};
use meshd_config::reader::parse_duration;
use meshd_trust::Role;
use meshd_types::{ApiTokenName, Timestamp};
use std::time::Duration;

/// Manage tokens for `--server`, scripts and dashboards
#[derive(Debug, Subcommand)]
pub(crate) enum ApiToken {
    /// Create a token; the secret is printed once
    Create {
        /// Name of the token, for lists and the audit log
        name: ApiTokenName,
        /// Role: viewer, auditor, operator or admin
        #[arg(long)]
        role: Role,
        /// Lifetime, such as 12h or 90d [default: until revoked]
        #[arg(long, value_name = "SPAN", value_parser = span)]
        expires: Option<Duration>,
    },
    /// List tokens, without their secrets
    List {
        #[command(flatten)]
        output: ListOutput,
    },
    /// Revoke a token
    Revoke {
        /// Name of the token
        name: ApiTokenName,
        /// Skip the confirmation
        #[arg(long)]
        yes: bool,
    },
}

fn span(text: &str) -> Result<Duration, String> {
    parse_duration(text)
        .ok_or_else(|| "write a number and one of s, m, h, d, such as 90d".to_owned())
}

impl ApiToken {
    pub(crate) fn run(self, context: &Context) -> Result<(), Failure> {
        let client = context.client()?;
        match self {
            ApiToken::Create { name, role, expires } => {
                let order =
                    CreateApiToken { name, role, expires_in: expires.map(|span| span.as_secs()) };
                let created = wait(client.post(api::CREATE_API_TOKEN.path([]), &order))?;
                let end = created
                    .token
                    .expires_at
                    .map_or("until revoked".to_owned(), |end| format!("until {end}"));
                message!(
                    "token {} ({role}) is valid {end}; it is not shown again",
                    created.token.name
                );
                print::write(&format!("{}\n", created.secret))
            }
            ApiToken::List { output } => {
                let all = wait(client.get(api::LIST_API_TOKENS.path([])))?;
                output.print(&all, |all| tokens(all, now()))
            }
            ApiToken::Revoke { name, yes } => {
                if !yes {
                    confirm(&format!(
                        "Token {name} becomes invalid now; its streams and sessions end. Revoke?"
                    ))?;
                }
                let left = wait(client.post(api::REVOKE_API_TOKEN.path([&name]), &()))?;
                message!("token {name} is revoked; valid tokens left: {}", left.len());
                Ok(())
            }
        }
    }
}

fn tokens(all: &[ApiTokenView], now: Timestamp) -> String {
    let rows = all.iter().map(|token| {
        let end = token.expires_at.map(|end| end.to_string()).unwrap_or_default();
        let state = if token.expired { "expired" } else { "valid" };
        [
            token.name.to_string(),
            token.role.to_string(),
            ago(token.created_at, now),
            end,
            state.to_owned(),
        ]
    });
    table(["name", "role", "made", "expires", "state"], rows)
}
