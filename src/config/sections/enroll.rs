//! `[enroll]` and `[identity]`: admission rules, and UUIDs to ignore.

use super::segment::Segments;
use crate::{
    Enroll, EnrollCriteria, EnrollPolicy, EnrollRule, Identity, MacPrefix, NamePattern,
    fault::suggest,
    reader::{Document, Table, or},
};
use meshd_types::{
    Hint as _, LabelKey, LabelValue, NodeId, ProfileName, RelayIdPattern, RuleName, SystemUuid,
    is_filler,
};
use std::{
    collections::{BTreeMap, BTreeSet},
    ops::RangeInclusive,
    time::Duration,
};

/// Bounds of `[enroll].token_ttl`; a boot takes minutes.
const TOKEN_TTL: RangeInclusive<Duration> =
    Duration::from_secs(10)..=Duration::from_secs(24 * 3600);
/// Maximum number of labels of one node.
const MAX_LABELS: usize = 32;
/// Each unknown machine is compared with all rules.
const MAX_RULES: usize = 1024;
/// Keys of the criteria.
const KEYS: [&str; 9] = [
    "serials",
    "uuids",
    "nodes",
    "manufacturer",
    "product",
    "mac_prefixes",
    "segments",
    "circuit_ids",
    "remote_ids",
];
/// Criteria that are lists.
const LISTS: [&str; 7] =
    ["serials", "uuids", "nodes", "mac_prefixes", "segments", "circuit_ids", "remote_ids"];

/// Names that rules refer to; `profiles` is `None` if profiles have faults.
#[derive(Clone, Copy)]
pub(crate) struct Known<'a> {
    pub(crate) segments: &'a Segments,
    pub(crate) profiles: Option<&'a [ProfileName]>,
}

/// Reads `[identity]`.
pub(crate) fn identity(root: &Table<'_>) -> Option<Identity> {
    let Some(table) = root.table("identity") else {
        return (!root.has("identity")).then(Identity::default);
    };
    let mut lines: BTreeMap<SystemUuid, usize> = BTreeMap::new();
    for uuid in table.list::<SystemUuid>("deny_uuids") {
        if let Some(line) = lines.insert(uuid.value, uuid.line) {
            let message = format!("`{}` is listed on line {line} already", uuid.value);
            table.fault_at(&uuid, message, "remove one of the two");
        }
    }
    Some(Identity { deny: lines.into_keys().collect() })
}

/// Reads `[enroll]` with its rules.
pub(crate) fn read(document: &Document, root: &Table<'_>, known: Known<'_>) -> Option<Enroll> {
    let default = Enroll {
        policy: EnrollPolicy::Approve,
        token_ttl: Duration::from_secs(15 * 60),
        rules: Vec::new(),
    };
    let Some(enroll) = root.table("enroll") else {
        return (!root.has("enroll")).then_some(default);
    };
    let words = [("approve", EnrollPolicy::Approve), ("auto", EnrollPolicy::Auto)];
    let policy = or(&enroll, "policy", enroll.choice("policy", &words), default.policy);
    let token_ttl =
        or(&enroll, "token_ttl", enroll.duration("token_ttl", TOKEN_TTL), default.token_ttl);
    let rules = rules(document, &enroll, known);
    Some(Enroll { policy: policy?, token_ttl: token_ttl?, rules: rules? })
}

fn rules(document: &Document, enroll: &Table<'_>, known: Known<'_>) -> Option<Vec<EnrollRule>> {
    let tables = enroll.tables("rule");
    if !enroll.is_within("rule", MAX_RULES, tables.len(), "rules") {
        return None;
    }
    let mut names = BTreeMap::new();
    tables
        .iter()
        .map(|table| rule(document, table, known, &mut names))
        .collect::<Vec<_>>()
        .into_iter()
        .collect()
}

fn rule(
    document: &Document,
    table: &Table<'_>,
    known: Known<'_>,
    names: &mut BTreeMap<RuleName, usize>,
) -> Option<EnrollRule> {
    let hint =
        "write name = \"rack-a\": events and the audit log name the rule that approved a machine";
    let name = table.required("name", table.parsed::<RuleName>("name"), hint);
    if let Some(name) = &name
        && let Some(line) = names.insert(name.value.clone(), name.line)
    {
        let message = format!("the rule on line {line} has the name `{}` too", name.value);
        document.fault(name, message, "rename one of them");
    }
    let criteria = EnrollCriteria {
        serials: words(table, "serials"),
        uuids: set(table, "uuids"),
        nodes: set::<NodeId>(table, "nodes"),
        manufacturer: table.word("manufacturer").map(|text| tidy(&text)),
        product: table.word("product").map(|text| tidy(&text)),
        mac_prefixes: set::<MacPrefix>(table, "mac_prefixes"),
        segments: on_segments(document, table, known.segments),
        circuit_ids: set::<RelayIdPattern>(table, "circuit_ids"),
        remote_ids: set::<RelayIdPattern>(table, "remote_ids"),
    };
    let profile = profile(document, table, known.profiles);
    let node_name = table.parsed::<NamePattern>("node_name").map(|pattern| pattern.value);
    let labels = labels(table);
    for key in ["circuit_ids", "remote_ids"] {
        if table.has(key) && !known.segments.may_have_relay() {
            let hint = "write a [[segment]] with relay = \"ADDRESS\", or use another criterion";
            table.fault(key, "no segment is behind a relay, so no machine matches", hint);
        }
        if table.has(key)
            && let Some(segment) = known.segments.unproven_relay()
        {
            let message = format!(
                "segment {} has no relay_mac, so a machine can pose as its relay and write the ID",
                segment.link
            );
            let hint = "write relay_mac = [\"52:54:00:12:34:56\"] in that [[segment]]: the relay's address as `ip neigh` shows it";
            table.fault(key, message, hint);
        }
    }
    // An empty list matches no machine.
    for key in LISTS {
        if table.has(key) && table.strings(key).is_empty() {
            table.fault(key, "is empty, so no machine matches", "list values, or remove the key");
        }
    }
    if KEYS.iter().all(|fact| !table.has(fact)) {
        let hint = format!(
            "write at least one of {}; to approve every machine, write policy = \"auto\"",
            KEYS.join(", ")
        );
        document.fault(&table.own_position(), "would approve every machine", hint);
    }
    Some(EnrollRule { name: name?.value, criteria, profile, labels, node_name })
}

/// Reads labels, each as `key=value`.
fn labels(table: &Table<'_>) -> BTreeMap<LabelKey, LabelValue> {
    let mut labels = BTreeMap::new();
    let texts = table.strings("labels");
    table.is_within("labels", MAX_LABELS, texts.len(), "labels");
    for text in texts {
        let (key, value) = text.split_once('=').unwrap_or((&text, ""));
        match (key.parse::<LabelKey>(), value.parse::<LabelValue>()) {
            (Ok(key), Ok(value)) => {
                if labels.insert(key, value).is_some() {
                    let message = format!("the label of `{}` occurs twice", text.value);
                    table.fault_at(&text, message, "remove one of the two");
                }
            }
            (Err(error), _) | (_, Err(error)) => {
                let message = format!("`{}` is not a label: {}", text.value, error.message());
                table.fault_at(&text, message, "write key=value, such as \"rack=a\"");
            }
        }
    }
    labels
}

fn profile(
    document: &Document,
    table: &Table<'_>,
    known: Option<&[ProfileName]>,
) -> Option<ProfileName> {
    let profile = table.parsed::<ProfileName>("profile")?;
    if let Some(known) = known.filter(|known| !known.contains(&profile.value)) {
        let hint = suggest(profile.as_str(), known.iter().map(ProfileName::as_str));
        document.fault(&profile, format!("there is no profile `{}`", profile.value), hint);
    }
    Some(profile.value)
}

fn set<T: std::str::FromStr<Err = meshd_types::ParseError> + Ord>(
    table: &Table<'_>,
    key: &str,
) -> BTreeSet<T> {
    table.list::<T>(key).into_iter().map(|at| at.value).collect()
}

/// Reads serial numbers, trimmed and in lower case; rejects placeholders of firmware.
fn words(table: &Table<'_>, key: &str) -> BTreeSet<String> {
    let mut words = BTreeSet::new();
    for text in table.strings(key) {
        let word = tidy(&text);
        if is_filler(&word) {
            let message =
                format!("`{}` is a placeholder of firmware, not a serial number", text.value);
            table.fault_at(&text, message, "many machines have it; use another criterion");
        }
        words.insert(word);
    }
    words
}

fn tidy(text: &str) -> String {
    text.trim().to_lowercase()
}

/// Reads segment names as in logs and metrics. meshd determines the segment of a machine from its
/// address.
fn on_segments(document: &Document, table: &Table<'_>, segments: &Segments) -> BTreeSet<String> {
    let listed = table.strings("segments");
    let Some(known) = segments.names() else { return BTreeSet::new() };
    for segment in &listed {
        match known.iter().find(|(name, _)| *name == segment.value) {
            None => {
                let hint = suggest(segment, known.iter().map(|(name, _)| name.as_str()));
                document.fault(segment, format!("there is no segment `{}`", segment.value), hint);
            }
            Some((_, leases)) if !leases && known.len() > 1 => {
                let message = format!(
                    "meshd leases no addresses on {}, so it cannot identify machines there",
                    segment.value
                );
                document.fault(
                    segment,
                    message,
                    "use another criterion, or make the segment authoritative",
                );
            }
            Some(_) => {}
        }
    }
    listed.into_iter().map(|segment| segment.value).collect()
}
