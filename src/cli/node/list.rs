//! `meshd node list`: nodes as a table, once or at each change.

use super::{generations, machines, machines::csv_text, stage, targets::joined, text};
use crate::cli::{
    Failure,
    client::AdminClient,
    output::{
        print::{ago, json, now, table_of, write, yaml},
        writer::write_raw,
    },
};
use clap::{Args, ValueEnum};
use meshd_api::{MachineView, NodeView, routes as api};
use meshd_model::fleet::{ConditionKind, Phase, Selector, label_words};
use meshd_types::{Hostlist, ProfileName, Timestamp};
use std::{io::IsTerminal as _, time::Duration};

/// Interval between two requests of `--watch`.
const WATCH_INTERVAL: Duration = Duration::from_secs(2);
/// Escape sequence that clears the terminal and moves the cursor to the first line.
const CLEAR: &str = "\u{1b}[H\u{1b}[2J";

#[derive(Debug, Args)]
pub(crate) struct List {
    /// Only these nodes: IDs, names or hostlists: gpu[01-40],n*
    #[arg(value_name = "NODE")]
    nodes: Vec<Hostlist>,
    /// Include removed nodes
    #[arg(long)]
    removed: bool,
    /// List machines that have not appeared instead
    #[arg(long, conflicts_with_all = [
        "removed", "labels", "selector", "phase", "condition", "attention", "profile", "find",
        "sort", "watch",
    ])]
    expected: bool,
    /// Add a column with the labels
    #[arg(long)]
    labels: bool,
    /// Select nodes by labels, such as rack=a,feed!=2
    #[arg(short = 'l', long, value_name = "SELECTOR")]
    selector: Option<Selector>,
    /// Show nodes in these phases only, separated by commas
    #[arg(long, value_name = "PHASE", value_delimiter = ',')]
    phase: Vec<Phase>,
    /// Show nodes with these conditions only, separated by commas
    #[arg(long, value_name = "CONDITION", value_delimiter = ',')]
    condition: Vec<ConditionKind>,
    /// Show nodes that need an operator only
    #[arg(long)]
    attention: bool,
    /// Show nodes with these profiles only, separated by commas
    #[arg(long, value_name = "PROFILE", value_delimiter = ',')]
    profile: Vec<ProfileName>,
    /// Show nodes that contain this text in name, ID or address
    #[arg(long, value_name = "TEXT")]
    find: Option<String>,
    /// Sort by id, name, phase, address, ...; -name reverses
    #[arg(long, value_name = "KEY", allow_hyphen_values = true)]
    sort: Option<String>,
    /// Print the list again at each change, until interrupted
    #[arg(long)]
    watch: bool,
    /// Output format
    #[arg(short, long, value_enum, default_value_t, value_name = "FORMAT")]
    output: NodeListFormat,
    /// Print JSON, as -o json does
    #[arg(long, conflicts_with = "output")]
    json: bool,
    /// Omit the names of the columns
    #[arg(long)]
    no_headers: bool,
}

/// Output formats of `-o`
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
enum NodeListFormat {
    /// For people; may change in any release
    #[default]
    Table,
    /// As table, with labels, serial, model and segment
    Wide,
    /// One name a line
    Name,
    /// All columns, for spreadsheets
    Csv,
    /// Inventory of Ansible, as `node export` prints it
    Ansible,
    /// For programs
    Json,
    /// For programs and people
    Yaml,
}

impl List {
    pub(crate) async fn run(self, client: &AdminClient) -> Result<(), Failure> {
        let mut last: Option<Vec<NodeView>> = None;
        let named = if self.nodes.is_empty() { None } else { Some(joined(&self.nodes)?) };
        if self.expected {
            return self.print_expected(&machines::expected(client, named.as_ref()).await?);
        }
        loop {
            let nodes = client.get(self.path(named.as_ref())).await?;
            if last.as_ref() != Some(&nodes) {
                self.print(&nodes)?;
            }
            if !self.watch {
                return self.mention_expected(client).await;
            }
            last = Some(nodes);
            tokio::time::sleep(WATCH_INTERVAL).await;
        }
    }

    fn print(&self, nodes: &Vec<NodeView>) -> Result<(), Failure> {
        if self.watch && self.is_for_people() && std::io::stdout().is_terminal() {
            write_raw(CLEAR.as_bytes())?;
        }
        match &self.selector {
            Some(selector) if nodes.is_empty() => {
                message!("no node matches the selector `{selector}`")
            }
            None if nodes.is_empty() && self.is_filtered() => message!("no node matches"),
            None if nodes.is_empty() => message!("no machines were seen; power one on"),
            _ => {}
        }
        let headers = !self.no_headers;
        let columns = if self.labels { WITH_LABELS } else { NARROW };
        match self.format() {
            NodeListFormat::Table => write(&list(nodes, now(), columns, headers)),
            NodeListFormat::Wide => write(&list(nodes, now(), HEAD.len(), headers)),
            NodeListFormat::Name => write(&lines_of(nodes.iter().map(|node| node.name.as_str()))),
            NodeListFormat::Csv => write(&csv(nodes, headers)?),
            NodeListFormat::Ansible => write(&json(&machines::ansible(nodes))?),
            NodeListFormat::Json => write(&json(nodes)?),
            NodeListFormat::Yaml => write(&yaml(nodes)?),
        }
    }

    fn format(&self) -> NodeListFormat {
        if self.json { NodeListFormat::Json } else { self.output }
    }

    fn is_for_people(&self) -> bool {
        matches!(self.format(), NodeListFormat::Table | NodeListFormat::Wide)
    }

    /// Prints machines that have not appeared.
    fn print_expected(&self, machines: &Vec<MachineView>) -> Result<(), Failure> {
        if machines.is_empty() && self.is_for_people() {
            message!("no machine is expected");
        }
        let headers = !self.no_headers;
        match self.format() {
            NodeListFormat::Table => write(&machines::rows(machines, headers, false)),
            NodeListFormat::Wide => write(&machines::rows(machines, headers, true)),
            NodeListFormat::Name => {
                let titles: Vec<String> = machines.iter().map(|it| it.machine.title()).collect();
                write(&lines_of(titles.iter().map(String::as_str)))
            }
            NodeListFormat::Csv => write(&machines::expected_csv(machines, headers)?),
            NodeListFormat::Json => write(&json(machines)?),
            NodeListFormat::Yaml => write(&yaml(machines)?),
            NodeListFormat::Ansible => Err(Failure::new(
                "Ansible reaches nodes only, no machine that has not appeared",
                "use -o name or -o csv",
            )),
        }
    }

    /// Mentions machines that have not appeared, for people.
    async fn mention_expected(&self, client: &AdminClient) -> Result<(), Failure> {
        if self.is_for_people() && !self.is_filtered() && self.selector.is_none() {
            let all = client.get(api::LIST_MACHINES.path([])).await?;
            let count = all.iter().filter(|view| view.machine.node.is_none()).count();
            match count {
                0 => {}
                1 => message!("1 more machine is expected: meshd node list --expected"),
                _ => message!("{count} more machines are expected: meshd node list --expected"),
            }
        }
        Ok(())
    }

    fn is_filtered(&self) -> bool {
        !self.nodes.is_empty()
            || !self.phase.is_empty()
            || !self.condition.is_empty()
            || self.attention
            || !self.profile.is_empty()
            || self.find.is_some()
    }

    /// Returns the path of the request. The server filters and sorts, so that a large site sends
    /// only the displayed nodes.
    fn path(&self, named: Option<&Hostlist>) -> api::GetPath<api::Array<NodeView>> {
        let phases: Vec<&str> = self.phase.iter().map(|phase| phase.as_str()).collect();
        let conditions: Vec<&str> = self.condition.iter().map(|kind| kind.as_str()).collect();
        let profiles: Vec<&str> = self.profile.iter().map(ProfileName::as_str).collect();
        let list = |names: Vec<&str>| (!names.is_empty()).then(|| names.join(","));
        api::LIST_NODES
            .path([])
            .with("removed", self.removed)
            .with_optional("nodes", named)
            .with_optional("label", self.selector.as_ref())
            .with_optional("phase", list(phases))
            .with_optional("condition", list(conditions))
            .with_optional("attention", self.attention.then_some(true))
            .with_optional("profile", list(profiles))
            .with_optional("q", self.find.as_ref())
            .with_optional("sort", self.sort.as_ref())
    }
}

fn lines_of<'n>(names: impl Iterator<Item = &'n str>) -> String {
    names.map(|name| format!("{name}\n")).collect()
}

fn conditions(node: &NodeView) -> String {
    node.conditions.iter().map(|condition| condition.kind.as_str()).collect::<Vec<_>>().join(" ")
}

/// Names of the columns of a table. The last ones are those of `-o wide` alone.
const HEAD: [&str; 15] = [
    "id",
    "name",
    "profile",
    "phase",
    "conditions",
    "address",
    "mac",
    "generation",
    "override",
    "stage",
    "seen",
    "labels",
    "serial",
    "model",
    "segment",
];
const NARROW: usize = 11;
const WITH_LABELS: usize = 12;

/// Returns the cells of a node below [`HEAD`]. `seen` is the text of the time of its last message.
fn cells(node: &NodeView, seen: String) -> [String; HEAD.len()] {
    [
        node.id.to_string(),
        node.name.clone(),
        node.profile.to_string(),
        node.phase.to_string(),
        conditions(node),
        text(node.address),
        node.mac.to_string(),
        text(node.generation.map(|generation| generation.0.short())),
        generations::override_reason(node.pinned, node.rolled_back).unwrap_or_default(),
        stage(node),
        seen,
        label_words(&node.labels),
        node.serial.clone(),
        node.model.clone(),
        node.segment.clone().unwrap_or_default(),
    ]
}

/// Formats nodes as a table with the first columns of [`HEAD`].
pub(crate) fn list(nodes: &[NodeView], now: Timestamp, columns: usize, headers: bool) -> String {
    let head = if headers { &HEAD[..columns] } else { &[] };
    let row = |node| cells(node, ago(node.last_seen, now)).into_iter().take(columns);
    table_of(head, nodes.iter().map(row))
}

/// Formats nodes with all columns as CSV (RFC 4180).
pub(crate) fn csv(nodes: &[NodeView], headers: bool) -> Result<String, Failure> {
    let rows = nodes.iter().map(|node| cells(node, node.last_seen.to_string()));
    let head = headers.then(|| HEAD.map(str::to_owned));
    csv_text(head.into_iter().chain(rows))
}
