//! `meshd dhcp`: segments and leases.

use crate::cli::{
    Context, Failure,
    output::list::ListOutput,
    output::print::{Output, ago, now, table},
    wait,
};
use clap::Subcommand;
use meshd_api::{LeaseView, OtherServerView, SegmentView, routes as api};

/// Show the DHCP state of the site
#[derive(Debug, Subcommand)]
pub(crate) enum Dhcp {
    /// Show segments, their pools and other DHCP servers
    Show {
        #[command(flatten)]
        output: Output,
    },
    /// List leases
    Leases {
        /// Part of an address, a MAC address, an ID or a name
        text: Option<String>,
        /// Also list expired leases
        #[arg(long)]
        all: bool,
        #[command(flatten)]
        output: ListOutput,
    },
}

impl Dhcp {
    pub(crate) fn run(self, context: &Context) -> Result<(), Failure> {
        let client = context.client()?;
        match self {
            Dhcp::Show { output } => {
                let segments = wait(client.get(api::LIST_SEGMENTS.path([])))?;
                output.print(&segments, |segments| render(segments))
            }
            Dhcp::Leases { text, all, output } => {
                let state = if all { "active,expired" } else { "active" };
                let path = api::LIST_LEASES.path([]).with("state", state).with_optional("q", text);
                let leases = wait(client.get(path))?;
                output.print(&leases, |leases| rows(leases))
            }
        }
    }
}

fn render(segments: &[SegmentView]) -> String {
    let other = |other: &OtherServerView| {
        let kind = if other.proxy { "PXE" } else { "DHCP" };
        format!("{} ({kind}, {})", other.address, ago(other.last, now()))
    };
    let rows = segments.iter().map(|segment| {
        let range =
            segment.range.map(|[first, last]| format!("{first}-{last}")).unwrap_or_default();
        let others = segment.other_servers.iter().map(other).collect::<Vec<_>>().join(", ");
        let numbers = [segment.size, segment.leased, segment.offered, segment.declined]
            .map(|count| count.to_string());
        let [size, leased, offered, declined] = numbers;
        [segment.name.clone(), segment.mode.clone(), range, size, leased, offered, declined, others]
    });
    table(
        ["segment", "mode", "range", "size", "leased", "offered", "declined", "other servers"],
        rows,
    )
}

fn rows(leases: &[LeaseView]) -> String {
    let rows = leases.iter().map(|lease| {
        let holder = match (&lease.name, lease.node, lease.vm) {
            (Some(name), Some(node), _) => format!("{name} ({node})"),
            (_, _, Some(vm)) => format!("VM {vm}"),
            _ if lease.bmc.is_some() => lease.bmc.clone().unwrap_or_default(),
            _ => String::new(),
        };
        [
            lease.address.to_string(),
            lease.mac.to_string(),
            lease.state.clone(),
            lease.expires_at.to_string(),
            holder,
        ]
    });
    table(["address", "mac", "state", "expires", "node or VM"], rows)
}
