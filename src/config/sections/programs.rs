//! `[programs.*]`: programs of the site that meshd runs on the central node.

use crate::{
    SiteProgram,
    reader::{Document, NamedTable, Table, or},
};
use meshd_types::ProgramName;
use std::{collections::BTreeMap, ops::RangeInclusive, time::Duration};

const MAX_PROGRAMS: usize = 64;
const MAX_ARGS: usize = 64;
const TIMEOUT: RangeInclusive<Duration> = Duration::from_secs(1)..=Duration::from_secs(3600);
const DEFAULT_TIMEOUT: Duration = Duration::from_secs(60);

/// Reads `[programs.*]`. The programs are not opened: they may be on a volume that is mounted later.
pub(crate) fn read(
    document: &Document,
    root: &Table<'_>,
) -> Option<BTreeMap<ProgramName, SiteProgram>> {
    let Some(table) = root.table("programs") else {
        return (!root.has("programs")).then(BTreeMap::new);
    };
    let entries = table.entries();
    root.is_within("programs", MAX_PROGRAMS, entries.len(), "programs");
    entries
        .into_iter()
        .map(|entry| program(document, entry))
        .collect::<Vec<_>>()
        .into_iter()
        .collect()
}

fn program(
    document: &Document,
    NamedTable { name, table }: NamedTable<'_>,
) -> Option<(ProgramName, SiteProgram)> {
    let parsed = name.parse::<ProgramName>().map_err(|error| document.error(&name, &error));
    let hint = "write the program's path: program = \"/etc/meshd/gate\"";
    let program = table.required("program", table.path("program"), hint);
    let args: Vec<String> = table.strings("args").into_iter().map(|arg| arg.value).collect();
    table.is_within("args", MAX_ARGS, args.len(), "arguments");
    let timeout = or(&table, "timeout", table.duration("timeout", TIMEOUT), DEFAULT_TIMEOUT);
    Some((parsed.ok()?, SiteProgram { program: program?.value, args, timeout: timeout? }))
}
