//! `[groups.*]`: nodes that share overlays and variables.

use super::vars;
use crate::{
    Group,
    edit::Edit,
    reader::{Document, Located, NamedTable, Table},
};
use meshd_types::{GroupName, Hostlist, NodeId, OverlayName, ParseError};
use std::{collections::BTreeMap, str::FromStr};

const MAX_GROUPS: usize = 1024;
const MAX_MEMBERS: usize = 16_384;
const MAX_OVERLAYS: usize = 64;

/// An entry of `nodes`. No name of a node looks like an ID.
enum Member {
    Id(NodeId),
    Names(Hostlist),
}

impl FromStr for Member {
    type Err = ParseError;

    fn from_str(text: &str) -> Result<Self, ParseError> {
        text.parse().map(Member::Id).or_else(|_| text.parse().map(Member::Names))
    }
}

/// Reads all groups in the order of the file.
pub(crate) fn read(document: &Document, root: &Table<'_>) -> Option<Vec<Group>> {
    let Some(table) = root.table("groups") else { return (!root.has("groups")).then(Vec::new) };
    let entries = table.entries();
    root.is_within("groups", MAX_GROUPS, entries.len(), "groups");
    entries
        .into_iter()
        .map(|entry| group(document, entry))
        .collect::<Vec<_>>()
        .into_iter()
        .collect()
}

fn group(document: &Document, NamedTable { name, table }: NamedTable<'_>) -> Option<Group> {
    let parsed = name.parse::<GroupName>().map_err(|error| document.error(&name, &error));
    if table.has("profile") {
        // Read it, so that it is not reported as unknown too.
        drop(table.string("profile"));
        let hint = "give its nodes a profile with `meshd node assign-profile NODE PROFILE`";
        table.fault("profile", "a group has no profile", hint);
    }
    if table.has("kernel_args") {
        drop(table.strings("kernel_args"));
        table.fault(
            "kernel_args",
            "a group has no kernel arguments",
            "write them into a profile of its nodes",
        );
    }
    let hint = "write nodes = [\"0123abcd\", \"gpu[01-40]\"]: IDs, names or hostlists";
    let listed: Vec<Located<Member>> = table.list("nodes");
    table.required("nodes", table.has("nodes").then_some(()), hint);
    table.is_within("nodes", MAX_MEMBERS, listed.len(), "nodes");
    let mut nodes = BTreeMap::new();
    let mut hostlists = Vec::new();
    for member in &listed {
        match &member.value {
            Member::Names(names) => hostlists.push(names.clone()),
            Member::Id(id) => {
                if let Some(line) = nodes.insert(*id, member.line) {
                    let message = format!("`{id}` is listed on line {line} already");
                    document.fault(member, message, "remove one of the two");
                }
            }
        }
    }
    let mut overlays: Vec<OverlayName> = Vec::new();
    for overlay in table.list::<Edit<OverlayName>>("overlays") {
        match &overlay.value {
            Edit::Add(name) => {
                overlays.retain(|earlier| earlier != name);
                overlays.push(name.clone());
            }
            Edit::Remove(name) => {
                let message = format!("removes `{name}`, but a group inherits nothing");
                document.fault(&overlay, message, "remove it from the profile of its nodes");
            }
        }
    }
    table.is_within("overlays", MAX_OVERLAYS, overlays.len(), "overlays");
    let vars =
        vars::read(document, &table).into_iter().map(|(name, value)| (name, value.value)).collect();
    let nodes = nodes.into_keys().collect();
    Some(Group { name: parsed.ok()?, nodes, hostlists, overlays, vars })
}
