//! `meshd token`: enrolment tickets for machines that do not netboot.

use super::ca::duration;
use crate::cli::{
    Context, Failure,
    client::NodeNames,
    local::id::Machine,
    output::list::ListOutput,
    output::print::{self, ago, now, table},
    path_text, wait,
};
use clap::Subcommand;
use meshd_api::{CreateToken, TokenView, routes as api};
use meshd_types::DenyList;
use std::{
    fs::OpenOptions,
    io::Write as _,
    os::unix::fs::OpenOptionsExt as _,
    path::{Path, PathBuf},
    time::Duration,
};

#[derive(Debug, Subcommand)]
pub(crate) enum Token {
    /// Create a ticket for `mesh-agent run --token-file`
    Create {
        /// Known node, by ID or name
        #[arg(conflicts_with_all = ["uuid", "serial", "macs"], required_unless_present_any = ["uuid", "serial", "macs"])]
        node: Option<String>,
        #[command(flatten)]
        machine: Machine,
        /// Lifetime, at most 7d [default: 1h]
        #[arg(long, value_name = "TIME", value_parser = duration)]
        ttl: Option<Duration>,
        /// File to write, mode 0600 [default: standard output]
        #[arg(long, value_name = "FILE")]
        out: Option<PathBuf>,
    },
    /// List tickets, without their secrets
    List {
        #[command(flatten)]
        output: ListOutput,
    },
    /// Revoke a ticket
    Revoke {
        /// Prefix of the ticket ID, as in `token list`
        token: String,
    },
}

impl Token {
    pub(crate) fn run(self, context: &Context) -> Result<(), Failure> {
        let client = context.client()?;
        match self {
            Token::Create { node, machine, ttl, out } => {
                // Without a site file, the central node checks its list.
                let deny = if context.has_no_site() {
                    DenyList::default()
                } else {
                    context.site()?.identity.deny
                };
                let basis = if node.is_none() { Some(machine.basis(&deny)?) } else { None };
                let order = CreateToken { node, basis, life_s: ttl.map(|ttl| ttl.as_secs()) };
                // The file is created first, because a ticket that cannot be written is lost.
                let file = out.as_deref().map(create).transpose()?;
                let made = wait(client.post(api::CREATE_TOKEN.path([]), &order))?;
                let text = print::json(&made.ticket)?;
                match (file, &out) {
                    (Some(mut file), Some(path)) => {
                        file.write_all(text.as_bytes()).map_err(|error| {
                            Failure::new(
                                format!("cannot write {}: {error}", path_text(path)),
                                "make another token",
                            )
                        })?
                    }
                    _ => print::write(&text)?,
                }
                let TokenView { hash, node, expires_at, .. } = made.token;
                let node = wait(async { Ok(client.node_names().await) })?.label(node);
                message!(
                    "token {} enrols {node} once, until {expires_at}; it is not shown again",
                    hash.short()
                );
                Ok(())
            }
            Token::List { output } => {
                let all = wait(client.get(api::LIST_TOKENS.path([])))?;
                let names = wait(async { Ok(client.node_names_for(*output).await) })?;
                output.print(&all, |all| list(all, &names))
            }
            Token::Revoke { token } => {
                let gone = wait(client.post(api::REVOKE_TOKEN.path([&token]), &()))?;
                let node = wait(async { Ok(client.node_names().await) })?.label(gone.node);
                message!("revoked token {} of {node}", gone.hash.short());
                Ok(())
            }
        }
    }
}

fn create(path: &Path) -> Result<std::fs::File, Failure> {
    let made = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path);
    made.map_err(|error| {
        Failure::new(
            format!("cannot make {}: {error}", path_text(path)),
            "name a file that is not there yet",
        )
    })
}

fn list(all: &[TokenView], names: &NodeNames) -> String {
    let rows = all.iter().map(|view| {
        let used = match (view.used_at, view.used_from) {
            (Some(at), Some(from)) => format!("{} by {from}", ago(at, now())),
            (Some(at), None) => ago(at, now()),
            (None, _) if view.expires_at < now() => "expired".to_owned(),
            (None, _) => String::new(),
        };
        [view.hash.short(), names.label(view.node), view.expires_at.to_string(), used]
    });
    table(["token", "node", "until", "used"], rows)
}
