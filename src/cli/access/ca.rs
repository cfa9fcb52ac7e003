//! `meshd ca`: shows, rotates and revokes certificates.

use crate::cli::{
    Context, Failure,
    output::print::{Output, confirm, table},
    wait,
};
use clap::Subcommand;
use meshd_api::{RootView, RotateCa, routes as api};
use meshd_config::parse_duration;
use std::time::Duration;

#[derive(Debug, Subcommand)]
pub(crate) enum Ca {
    /// List trusted roots with their number of nodes
    Show {
        #[command(flatten)]
        output: Output,
    },
    /// Replace the root; trust the old one for a grace time
    Rotate {
        /// Grace time; 0s cuts all nodes off now [default: 14d]
        #[arg(long, value_name = "TIME", value_parser = duration)]
        grace: Option<Duration>,
        /// With --grace 0s: enrol linked nodes again, without a boot
        #[arg(long)]
        enrol_again: bool,
        /// Skip the confirmation
        #[arg(long)]
        yes: bool,
        #[command(flatten)]
        output: Output,
    },
    /// Revoke a node's credentials until the next boot
    Revoke {
        /// Node ID or name
        node: String,
        /// Skip the confirmation
        #[arg(long)]
        yes: bool,
    },
}

/// Parses a lifetime or a grace time, such as `15m` or `14d`.
pub(crate) fn duration(text: &str) -> Result<Duration, String> {
    parse_duration(text).ok_or_else(|| "write a whole number and one of s, m, h, d: 14d".to_owned())
}

impl Ca {
    pub(crate) fn run(self, context: &Context) -> Result<(), Failure> {
        let client = context.client()?;
        match self {
            Ca::Show { output } => {
                let roots = wait(client.get(api::LIST_ROOTS.path([])))?;
                output.print(&roots, |roots| render(roots))
            }
            Ca::Rotate { grace, enrol_again, yes, output } => {
                let none = grace.is_some_and(|grace| grace.is_zero());
                if none && !yes {
                    confirm(match enrol_again {
                        true => {
                            "Every link ends now. Linked nodes enrol again; all others have to boot."
                        }
                        false => "Every link ends now, and every node has to boot again.",
                    })?;
                }
                let order = RotateCa { grace_s: grace.map(|grace| grace.as_secs()), enrol_again };
                let roots = wait(client.post(api::ROTATE_ROOT.path([]), &order))?;
                if !none || enrol_again {
                    message!(
                        "linked nodes change to the new root without a boot: `meshd ca show` counts them"
                    );
                }
                output.print(&roots, |roots| render(roots))
            }
            Ca::Revoke { node, yes } => {
                if !yes {
                    confirm(&format!(
                        "{node} loses its link and its certificate now, until it boots again. Revoke?"
                    ))?;
                }
                let detail = wait(client.post(api::REVOKE_NODE_CERTIFICATE.path([&node]), &()))?;
                message!(
                    "{} ({}) has no valid certificate; cut its power (`meshd node power cycle`), or give it a ticket",
                    detail.node.name,
                    detail.node.id
                );
                Ok(())
            }
        }
    }
}

fn render(roots: &[RootView]) -> String {
    let rows = roots.iter().map(|view| {
        let until = view.until.map_or_else(|| "replaced".to_owned(), |until| until.to_string());
        let is = if view.active { "active" } else { "trusted" };
        [
            view.root.clone(),
            is.to_owned(),
            until,
            view.nodes.to_string(),
            if view.has_key { "present" } else { "absent" }.into(),
        ]
    });
    table(["root", "state", "until", "nodes", "key"], rows)
}
