//! Machines of MAAS: the JSON that `maas PROFILE machines read` prints.

use meshd_model::fleet::{MachineRow, RowFault};
use meshd_types::is_filler;
use serde::Deserialize;
use serde_json::Value;
use std::collections::BTreeSet;

/// Zone and pool of a machine that nobody put elsewhere.
const DEFAULT: &str = "default";
/// Value of a serial number that MAAS does not know.
const UNKNOWN: &str = "unknown";
/// Value of the label of a tag.
const TAGGED: &str = "true";

/// The values that meshd takes. Other keys have other counterparts here.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct MaasMachine {
    hostname: Option<String>,
    boot_interface: Option<MaasInterface>,
    tag_names: Vec<String>,
    zone: Option<MaasPlace>,
    pool: Option<MaasPlace>,
    hardware_info: Option<HardwareInfo>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct MaasInterface {
    mac_address: Option<String>,
    links: Vec<MaasLink>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct MaasLink {
    mode: Option<String>,
    ip_address: Option<String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct MaasPlace {
    name: Option<String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct HardwareInfo {
    system_serial: Option<String>,
}

/// Whether a file seems to be an export of MAAS.
pub(super) fn is_export(content: &[u8]) -> bool {
    json(content).is_some_and(|json| json.trim_ascii_start().starts_with(b"["))
}

/// Returns the JSON: on a terminal, `maas` prints two lines of text before it.
fn json(content: &[u8]) -> Option<&[u8]> {
    const HEAD: &[u8] = b"Success.";
    match content.trim_ascii_start().strip_prefix(HEAD) {
        Some(rest) => rest.iter().position(|byte| *byte == b'[').map(|begin| &rest[begin..]),
        None => Some(content),
    }
}

/// Parses machines. Those without a boot NIC have a fault.
pub(super) fn parse(bytes: &[u8]) -> (Vec<MachineRow>, Vec<RowFault>) {
    const HINT: &str = "save the output of: maas PROFILE machines read";
    let values: Vec<Value> = match serde_json::from_slice(json(bytes).unwrap_or(bytes)) {
        Ok(values) => values,
        Err(error) => {
            let fault = RowFault::new(error.line(), "", error.to_string(), HINT);
            return (Vec::new(), vec![fault]);
        }
    };
    let text = String::from_utf8_lossy(bytes);
    let mut lines = HostnameLines::new(&text);
    let mut rows = Vec::new();
    let mut faults = Vec::new();
    for (index, value) in values.into_iter().enumerate() {
        let line = value["hostname"].as_str().map_or(0, |name| lines.line_of(name));
        let number = index + 1;
        match serde_json::from_value::<MaasMachine>(value) {
            Ok(machine) => match row(machine, line) {
                Ok(row) => rows.push(row),
                Err(name) => {
                    let name = name.unwrap_or_else(|| format!("number {number}"));
                    let message = format!("machine {name} has no boot interface");
                    let hint = "commission it in MAAS, or remove it from the file";
                    faults.push(RowFault::new(line, "mac", message, hint));
                }
            },
            Err(error) => {
                let message = format!("machine number {number}: {error}");
                faults.push(RowFault::new(line, "", message, HINT));
            }
        }
    }
    (rows, faults)
}

/// Returns the row of a machine; without a boot NIC, its name.
fn row(machine: MaasMachine, line: usize) -> Result<MachineRow, Option<String>> {
    let MaasMachine { hostname, boot_interface, tag_names, zone, pool, hardware_info } = machine;
    let Some((interface, mac)) =
        boot_interface.and_then(|it| it.mac_address.clone().map(|mac| (it, mac)))
    else {
        return Err(hostname);
    };
    // An automatic address belongs to the pool of MAAS.
    let fixed = interface.links.into_iter().find(|link| link.mode.as_deref() == Some("static"));
    let serial = hardware_info.and_then(|info| info.system_serial).unwrap_or_default();
    let is_serial = !is_filler(&serial.to_lowercase()) && serial.to_lowercase() != UNKNOWN;
    let place = |key: &str, value: Option<MaasPlace>| {
        let name = value.and_then(|value| value.name).filter(|name| name != DEFAULT)?;
        Some(format!("{key}={name}"))
    };
    // Zone and pool are labels, too: a tag of that name would be the label's second value.
    let is_place = |tag: &String| ["zone", "pool"].contains(&tag.as_str());
    let tags: BTreeSet<String> =
        tag_names.iter().map(|tag| tag.to_lowercase()).filter(|tag| !is_place(tag)).collect();
    let tags = tags.into_iter().map(|tag| format!("{tag}={TAGGED}"));
    let labels = place("zone", zone).into_iter().chain(place("pool", pool)).chain(tags);
    Ok(MachineRow {
        line,
        mac,
        name: hostname.unwrap_or_default().to_lowercase(),
        address: fixed.and_then(|link| link.ip_address).unwrap_or_default(),
        labels: labels.collect::<Vec<_>>().join(" "),
        serial: if is_serial { serial } else { String::new() },
        ..MachineRow::default()
    })
}

/// Finds the lines of host names, in the order of the machines.
struct HostnameLines<'t>(std::iter::Enumerate<std::str::Lines<'t>>);

impl<'t> HostnameLines<'t> {
    fn new(text: &'t str) -> Self {
        HostnameLines(text.lines().enumerate())
    }

    /// Returns the next line with a host name; 0 if all machines are on one line.
    fn line_of(&mut self, name: &str) -> usize {
        let value = Value::from(name).to_string();
        let has_name = |line: &str| {
            let rest = line.trim_start().strip_prefix("\"hostname\":");
            rest.is_some_and(|rest| rest.trim().trim_end_matches(',') == value)
        };
        let before = self.0.clone();
        match self.0.find(|(_, line)| has_name(line)) {
            Some((index, _)) => index + 1,
            None => {
                self.0 = before;
                0
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// With the keys of MAAS 3.4 that meshd reads, and some others.
    const EXPORT: &str = r#"[
    {
        "fqdn": "gpu001.maas",
        "hostname": "gpu001",
        "status_name": "Deployed",
        "power_type": "ipmi",
        "tag_names": ["GPU", "infiniband"],
        "zone": {"id": 2, "name": "row-a"},
        "pool": {"id": 0, "name": "default"},
        "hardware_info": {"system_vendor": "ACME", "system_serial": "SN-1"},
        "boot_interface": {
            "mac_address": "52:54:00:00:00:01",
            "links": [
                {"id": 7, "mode": "auto"},
                {"id": 8, "mode": "static", "ip_address": "10.77.0.21"}
            ]
        }
    },
    {
        "hostname": "gpu002",
        "boot_interface": {"mac_address": "52:54:00:00:00:02", "links": []},
        "hardware_info": {"system_serial": "Unknown"}
    },
    {
        "hostname": "gpu003",
        "boot_interface": null
    },
    {
        "hostname": "gpu004",
        "tag_names": "gpu"
    }
]
"#;

    #[test]
    fn machines_of_maas_are_read() {
        for text in
            [EXPORT.to_owned(), format!("Success.\nMachine-readable output follows:\n{EXPORT}")]
        {
            assert!(is_export(text.as_bytes()));
            let (rows, faults) = parse(text.as_bytes());
            let [one, two] = rows.as_slice() else { panic!("{rows:?}") };
            assert_eq!((one.name.as_str(), one.mac.as_str()), ("gpu001", "52:54:00:00:00:01"));
            assert_eq!((one.address.as_str(), one.serial.as_str()), ("10.77.0.21", "SN-1"));
            assert_eq!(one.labels, "zone=row-a gpu=true infiniband=true");
            assert_eq!((two.name.as_str(), two.serial.as_str()), ("gpu002", ""));
            let before = text.lines().take_while(|line| !line.contains("gpu003")).count();
            let [third, fourth] = faults.as_slice() else { panic!("{faults:?}") };
            assert!(third.line == before + 1 && third.message.contains("gpu003"), "{third:?}");
            assert!(fourth.message.contains("number 4"), "{fourth:?}");
        }
    }

    #[test]
    fn malformed_json_is_refused_with_its_line() {
        let (rows, faults) = parse(b"[\n{\n");
        assert!(rows.is_empty() && faults.len() == 1 && faults[0].line == 3, "{faults:?}");
        assert!(!parse(b"{}").1.is_empty(), "one machine, not the list");
        assert!(!is_export(b"mac,name\n") && !is_export(b"Success.\n"));
    }
}
