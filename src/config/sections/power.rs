//! `[power]`: limits of requests to BMCs, and the rules that give machines a BMC and its user.

use crate::{
    BmcCommand, BmcLogin, BmcRule, Power,
    reader::{Document, Located, Table, or},
};
use meshd_types::{BmcDriver, Digest, Hostlist, unhex};
use std::{collections::BTreeSet, ops::RangeInclusive, time::Duration};

const MAX_RULES: usize = 1024;
const MAX_ARGS: usize = 64;
/// Maximum length of an address or a user, in bytes.
const MAX_TEXT: usize = 255;
const MAX_REQUESTS: RangeInclusive<usize> = 1..=1024;
const STAGGER: RangeInclusive<Duration> = Duration::ZERO..=Duration::from_secs(3600);
const TIMEOUT: RangeInclusive<Duration> = Duration::from_secs(1)..=Duration::from_secs(300);
const APPEAR_WITHIN: RangeInclusive<Duration> = Duration::from_secs(10)..=Duration::from_secs(7200);
/// Parts of an address that each machine replaces.
const PLACEHOLDERS: [&str; 3] = ["{name}", "{id}", "{mac}"];

/// Reads `[power]` with its rules. Password files are not opened.
pub(crate) fn read(document: &Document, root: &Table<'_>) -> Option<Power> {
    let default = Power::default();
    let Some(power) = root.table("power") else { return (!root.has("power")).then_some(default) };
    let requests = power.integer("max_requests", MAX_REQUESTS);
    let max_requests = or(&power, "max_requests", requests, default.max_requests);
    let stagger = or(&power, "stagger", power.duration("stagger", STAGGER), default.stagger);
    let timeout = or(&power, "timeout", power.duration("timeout", TIMEOUT), default.timeout);
    let appear = power.duration("appear_within", APPEAR_WITHIN);
    let appear_within = or(&power, "appear_within", appear, default.appear_within);
    let tables = power.tables("bmc");
    if !power.is_within("bmc", MAX_RULES, tables.len(), "rules") {
        return None;
    }
    let rules: Vec<_> = tables.iter().map(|table| rule(document, table)).collect();
    Some(Power {
        max_requests: max_requests?,
        stagger: stagger?,
        timeout: timeout?,
        appear_within: appear_within?,
        rules: rules.into_iter().collect::<Option<_>>()?,
    })
}

fn rule(document: &Document, table: &Table<'_>) -> Option<BmcRule> {
    let nodes = table.list::<Hostlist>("nodes").into_iter().map(|names| names.value).collect();
    if table.has("nodes") && table.strings("nodes").is_empty() {
        table.fault("nodes", "is empty, so no machine matches", "list names, or remove the key");
    }
    let driver = table.parsed::<BmcDriver>("driver");
    let hint = "write driver = \"redfish\", \"ipmi\", \"wol\" or \"command\"";
    let driver = table.required("driver", driver, hint).map(|driver| driver.value);
    let address = table.word("address").and_then(|text| address(document, text));
    let user = table.word("user").and_then(|text| plain_text(document, text));
    let password_file = table.path("password_file").map(|path| path.value);
    let login = match (user, password_file) {
        (Some(user), Some(password_file)) => Some(BmcLogin { user, password_file }),
        _ => {
            for (key, other) in [("user", "password_file"), ("password_file", "user")] {
                if table.has(key) && !table.has(other) {
                    table.fault(other, "is required", format!("`{key}` goes with `{other}`"));
                }
            }
            None
        }
    };
    let program = table.path("program").map(|path| path.value);
    let args: Vec<String> = table.strings("args").into_iter().map(|arg| arg.value).collect();
    table.is_within("args", MAX_ARGS, args.len(), "arguments");
    // Suite 0 has no authentication.
    let cipher_suite = table.integer("cipher_suite", 1..=17_u8).map(|suite| suite.value);
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
        ("address", driver != BmcDriver::Wol),
        ("user", driver != BmcDriver::Wol),
    ] {
        if table.has(key) && !is_used {
            table.fault(key, format!("driver {driver} does not use it"), "remove it");
        }
    }
    let command = program.map(|program| BmcCommand { program, args });
    Some(BmcRule { nodes, driver, address, login, command, certificates, ca_file, cipher_suite })
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
