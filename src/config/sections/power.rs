//! `[power]`: limits of requests to BMCs, and the rules that give machines a BMC and its user.

use super::secrets::SecretSource;
use crate::{
    BmcCommand, BmcLogin, BmcRule, Power, StallRetryPolicy,
    reader::{Document, Located, Table, or},
    suggest,
};
use meshd_types::{BmcDriver, Digest, Hostlist, NodePattern, PowerLadder, VarName, unhex};
use std::{
    collections::{BTreeMap, BTreeSet},
    ops::RangeInclusive,
    time::Duration,
};

const MAX_RULES: usize = 1024;
const MAX_ARGS: usize = 64;
/// Maximum length of an address or a user, in bytes.
const MAX_TEXT: usize = 255;
const MAX_REQUESTS: RangeInclusive<usize> = 1..=1024;
const STAGGER: RangeInclusive<Duration> = Duration::ZERO..=Duration::from_secs(3600);
const TIMEOUT: RangeInclusive<Duration> = Duration::from_secs(1)..=Duration::from_secs(300);
const APPEAR_WITHIN: RangeInclusive<Duration> = Duration::from_secs(10)..=Duration::from_secs(7200);
const STALL_RETRIES: RangeInclusive<u32> = 1..=10;
const STALL_RETRY_INTERVAL: RangeInclusive<Duration> =
    Duration::from_secs(60)..=Duration::from_secs(24 * 3600);
/// Parts of an address that each machine replaces.
const PLACEHOLDERS: [&str; 3] = ["{name}", "{id}", "{mac}"];

/// The secrets of the site.
type Secrets = BTreeMap<VarName, SecretSource>;

/// Reads `[power]` with its rules. Password files are not opened. A secret that is a password is
/// for no overlay, unless its entry names overlays.
pub(crate) fn read(document: &Document, root: &Table<'_>, secrets: &mut Secrets) -> Option<Power> {
    let default = Power::default();
    let Some(power) = root.table("power") else { return (!root.has("power")).then_some(default) };
    let requests = power.integer("max_requests", MAX_REQUESTS);
    let max_requests = or(&power, "max_requests", requests, default.max_requests);
    let stagger = or(&power, "stagger", power.duration("stagger", STAGGER), default.stagger);
    let timeout = or(&power, "timeout", power.duration("timeout", TIMEOUT), default.timeout);
    let appear = power.duration("appear_within", APPEAR_WITHIN);
    let appear_within = or(&power, "appear_within", appear, default.appear_within);
    let stall_retries = stall_retries(&power);
    let tables = power.tables("bmc");
    if !power.is_within("bmc", MAX_RULES, tables.len(), "rules") {
        return None;
    }
    let rules: Vec<_> = tables.iter().map(|table| rule(document, table, secrets)).collect();
    refuse_shared_bmcs(&tables, &rules);
    Some(Power {
        max_requests: max_requests?,
        stagger: stagger?,
        timeout: timeout?,
        appear_within: appear_within?,
        stall_retries,
        rules: rules.into_iter().collect::<Option<_>>()?,
    })
}

/// Reads the policy of retries: both of its keys, or none.
fn stall_retries(power: &Table<'_>) -> Option<StallRetryPolicy> {
    let keys = ["stall_retries", "stall_retry_interval"];
    let count = power.integer(keys[0], STALL_RETRIES).map(|count| count.value);
    let interval = power.duration(keys[1], STALL_RETRY_INTERVAL).map(|interval| interval.value);
    for [key, other] in [keys, [keys[1], keys[0]]] {
        if power.has(key) && !power.has(other) {
            power.fault(other, "is required", format!("`{key}` goes with `{other}`"));
        }
    }
    Some(StallRetryPolicy { count: count?, interval: interval? })
}

/// Refuses a constant address of one BMC for several machines: an order to one would switch them
/// all.
fn refuse_shared_bmcs(tables: &[Table<'_>], rules: &[Option<BmcRule>]) {
    let mut first_rules = BTreeMap::new();
    for (index, (table, rule)) in tables.iter().zip(rules).enumerate() {
        let Some(BmcRule { nodes, driver, address: Some(address), .. }) = rule else { continue };
        let is_network = matches!(driver, BmcDriver::Redfish | BmcDriver::Ipmi);
        if !is_network || PLACEHOLDERS.iter().any(|part| address.contains(part)) {
            continue;
        }
        let mut patterns = nodes.iter().flat_map(|names| names.patterns());
        let is_one = matches!(patterns.next(), Some(NodePattern::Word(_) | NodePattern::Name(_)));
        if !is_one || patterns.next().is_some() {
            let message = format!("`{address}` is one BMC, and the rule is for several machines");
            let hint = "write {name}, {id} or {mac} into the address, or name one machine in nodes";
            table.fault("address", message, hint);
        } else if let Some(first) = first_rules.insert((driver, address), index) {
            let message = format!("`{address}` is the BMC of rule {}, too", first + 1);
            table.fault("address", message, "write the address of this machine's BMC");
        }
    }
}

fn rule(document: &Document, table: &Table<'_>, secrets: &mut Secrets) -> Option<BmcRule> {
    let nodes = table.list::<Hostlist>("nodes").into_iter().map(|names| names.value).collect();
    if table.has("nodes") && table.strings("nodes").is_empty() {
        table.fault("nodes", "is empty, so no machine matches", "list names, or remove the key");
    }
    let driver = table.parsed::<BmcDriver>("driver");
    let hint = "write driver = \"redfish\", \"ipmi\", \"wol\" or \"command\"";
    let driver = table.required("driver", driver, hint).map(|driver| driver.value);
    let address = table.word("address").and_then(|text| address(document, text));
    let login = login(document, table, secrets);
    let program = table.path("program").map(|path| path.value);
    let args: Vec<String> = table.strings("args").into_iter().map(|arg| arg.value).collect();
    table.is_within("args", MAX_ARGS, args.len(), "arguments");
    // Suite 0 has no authentication.
    let cipher_suite = table.integer("cipher_suite", 1..=17_u8).map(|suite| suite.value);
    let console_log = table.bool("console_log").map(|is_on| is_on.value);
    let ladder = table.parsed::<PowerLadder>("ladder").map(|ladder| ladder.value);
    let certificates = certificates(document, table);
    let ca_file = table.path("ca_file").map(|path| path.value);
    let driver = driver?;
    let needs = |key: &str, hint: &str| table.required(key, table.has(key).then_some(()), hint);
    match driver {
        BmcDriver::Command => {
            needs("program", "write the program's path: program = \"/etc/meshd/power\"");
        }
        BmcDriver::Redfish | BmcDriver::Ipmi => {
            needs("user", "write the user of the BMC, and the file of its password");
            if driver == BmcDriver::Redfish && !table.has("ca_file") {
                let hint = "write the SHA-256 of each BMC's certificate, or ca_file = \"/path\"";
                needs("certificates", hint);
            }
        }
        BmcDriver::Wol => {}
    }
    for (key, is_used) in [
        ("program", driver == BmcDriver::Command),
        ("args", driver == BmcDriver::Command),
        ("certificates", driver == BmcDriver::Redfish),
        ("ca_file", driver == BmcDriver::Redfish),
        ("cipher_suite", driver == BmcDriver::Ipmi),
        ("console_log", driver == BmcDriver::Ipmi),
        ("address", driver != BmcDriver::Wol),
        ("user", driver != BmcDriver::Wol),
        ("ladder", driver != BmcDriver::Wol),
    ] {
        if table.has(key) && !is_used {
            table.fault(key, format!("driver {driver} does not use it"), "remove it");
        }
    }
    let command = program.map(|program| BmcCommand { program, args });
    Some(BmcRule {
        nodes,
        driver,
        address,
        login,
        command,
        certificates,
        ca_file,
        cipher_suite,
        records_console: console_log.unwrap_or(true),
        ladder: ladder.unwrap_or_default(),
    })
}

/// Reads user and password: `password_file` or `password_secret`.
fn login(document: &Document, table: &Table<'_>, secrets: &mut Secrets) -> Option<BmcLogin> {
    const PASSWORDS: [&str; 2] = ["password_file", "password_secret"];
    let user = table.word("user").and_then(|text| plain_text(document, text));
    let file = table.path(PASSWORDS[0]).map(|path| path.value);
    let name = table.parsed::<VarName>(PASSWORDS[1]);
    let has_password = PASSWORDS.iter().any(|key| table.has(key));
    if PASSWORDS.iter().all(|key| table.has(key)) {
        let message = "the rule has `password_file`, too";
        table.fault(PASSWORDS[1], message, "keep one of the two");
    }
    if table.has("user") && !has_password {
        let hint = "`user` goes with `password_file`, or with `password_secret` of [secrets]";
        table.fault(PASSWORDS[0], "is required", hint);
    }
    if has_password && !table.has("user") {
        table.fault("user", "is required", "write the user of the password");
    }
    let of_secret = name.and_then(|name| match secrets.get_mut(&name.value) {
        Some(secret) => {
            secret.overlays.get_or_insert_default();
            Some(secret.file.clone())
        }
        None => {
            let hint = suggest(name.as_str(), secrets.keys().map(VarName::as_str));
            document.fault(&name, format!("[secrets] has no `{}`", name.value), hint);
            None
        }
    });
    Some(BmcLogin { user: user?, password_file: file.or(of_secret)? })
}

/// Reads fingerprints: SHA-256, hexadecimal, with or without colons.
fn certificates(document: &Document, table: &Table<'_>) -> BTreeSet<Digest> {
    let mut found = BTreeSet::new();
    for text in table.strings("certificates") {
        let plain: String = text.to_lowercase().chars().filter(|c| *c != ':').collect();
        match unhex::<32>(&plain) {
            Some(digest) => drop(found.insert(Digest(digest))),
            None => {
                let message = format!("`{}` is not a SHA-256", crate::reader::brief(&text));
                let hint = "copy it from: openssl x509 -noout -fingerprint -sha256";
                document.fault(&text, message, hint);
            }
        }
    }
    found
}

/// Checks an address, or a pattern of addresses.
fn address(document: &Document, text: Located<String>) -> Option<String> {
    let rest = PLACEHOLDERS.iter().fold(text.value.clone(), |rest, it| rest.replace(it, "x"));
    let is_address = |c: char| c.is_ascii_alphanumeric() || ".:-[]/_".contains(c);
    if rest.len() > MAX_TEXT || !rest.chars().all(is_address) || rest.starts_with('-') {
        let message = format!("`{}` is not an address", crate::reader::brief(&text));
        let hint =
            "write a host name or an address; {name}, {id} and {mac} are those of the machine";
        document.fault(&text, message, hint);
        return None;
    }
    Some(text.value)
}

fn plain_text(document: &Document, text: Located<String>) -> Option<String> {
    if text.len() > MAX_TEXT || text.chars().any(char::is_control) || text.starts_with('-') {
        document.fault(&text, "is not the name of a user", "write one short line of text");
        return None;
    }
    Some(text.value)
}
