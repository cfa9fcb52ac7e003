//! Definitions of xCAT: the stanzas that `lsdef -t node -l -z` prints.

use meshd_model::fleet::{MachineRow, RowFault};
use std::collections::{BTreeMap, BTreeSet};

/// First line of the output of `lsdef -z`.
const HEAD: &[u8] = b"# <xCAT data object stanza file>";
/// Group of all nodes.
const ALL: &str = "all";
/// Mark of a NIC that has no address by DHCP.
const NO_ADDRESS: &str = "*NOIP*";
/// Attributes that say where a node is.
const PLACES: [&str; 3] = ["room", "rack", "unit"];

/// Whether a file seems to be an export of xCAT.
pub(super) fn is_export(content: &[u8]) -> bool {
    content.trim_ascii_start().starts_with(HEAD)
}

/// One stanza: an object with its attributes.
struct Stanza<'t> {
    line: usize,
    name: &'t str,
    attributes: BTreeMap<&'t str, &'t str>,
}

/// Parses nodes. Other objects, such as groups and networks, are skipped.
pub(super) fn parse(bytes: &[u8]) -> (Vec<MachineRow>, Vec<RowFault>) {
    let text = String::from_utf8_lossy(bytes);
    let (stanzas, mut faults) = stanzas(&text);
    let mut rows = Vec::new();
    for stanza in &stanzas {
        if stanza.attributes.get("objtype").is_some_and(|kind| *kind != "node") {
            continue;
        }
        match row(stanza) {
            Some(row) => rows.push(row),
            None => {
                let message = format!("node {} has no MAC address", stanza.name);
                let hint = "add the line mac=aa:bb:cc:dd:ee:ff, or remove the node from the file";
                faults.push(RowFault::new(stanza.line, "mac", message, hint));
            }
        }
    }
    (rows, faults)
}

fn stanzas(text: &str) -> (Vec<Stanza<'_>>, Vec<RowFault>) {
    let mut stanzas = Vec::<Stanza<'_>>::new();
    let mut faults = Vec::new();
    for (index, line) in text.lines().enumerate() {
        let word = line.trim();
        if word.is_empty() || word.starts_with('#') {
            continue;
        }
        let attribute = word.split_once('=').filter(|_| line.starts_with([' ', '\t']));
        match (attribute, word.strip_suffix(':'), stanzas.last_mut()) {
            (Some((key, value)), _, Some(stanza)) => {
                stanza.attributes.insert(key.trim_end(), value.trim_start());
            }
            (None, Some(name), _) if !line.starts_with([' ', '\t']) => {
                let attributes = BTreeMap::new();
                stanzas.push(Stanza { line: index + 1, name, attributes });
            }
            _ => {
                let shown: String = word.chars().take(40).collect();
                let message = format!("`{shown}` is neither `NAME:` nor an indented `key=value`");
                let hint = "save the output of: lsdef -t node -l -z";
                faults.push(RowFault::new(index + 1, "", message, hint));
            }
        }
    }
    (stanzas, faults)
}

fn row(stanza: &Stanza<'_>) -> Option<MachineRow> {
    let value = |key: &str| stanza.attributes.get(key).copied().unwrap_or_default();
    // Several NICs are `MAC!NAME|MAC!NAME`; the first one with an address boots.
    let mut nics = value("mac").split('|').filter(|nic| !nic.contains(NO_ADDRESS));
    let mac = nics.find_map(|nic| nic.split('!').next().filter(|mac| !mac.is_empty()))?;
    let groups: BTreeSet<String> = value("groups")
        .split(',')
        .map(|group| group.trim().to_lowercase())
        .filter(|group| !group.is_empty() && group != ALL)
        .collect();
    let places = PLACES.iter().filter(|key| !value(key).is_empty());
    let places = places.map(|key| format!("{key}={}", value(key)));
    let groups = groups
        .iter()
        .filter(|group| !PLACES.contains(&group.as_str()))
        .map(|group| format!("{group}=true"));
    let driver = match value("mgt") {
        "ipmi" => "ipmi",
        "openbmc" => "redfish",
        _ => "",
    };
    let bmc = if driver.is_empty() { "" } else { value("bmc") };
    Some(MachineRow {
        line: stanza.line,
        mac: mac.to_owned(),
        // A host name has no domain here.
        name: stanza.name.split('.').next().unwrap_or_default().to_lowercase(),
        address: value("ip").to_owned(),
        labels: places.chain(groups).collect::<Vec<_>>().join(" "),
        serial: value("serial").to_owned(),
        bmc_driver: if bmc.is_empty() { String::new() } else { driver.to_owned() },
        bmc_address: bmc.to_owned(),
        ..MachineRow::default()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const EXPORT: &str = "# <xCAT data object stanza file>

gpu001:
    objtype=node
    arch=x86_64
    bmc=10.1.0.1
    bmcpassword=secret
    groups=compute,all,GPU
    ip=10.77.0.21
    mac=52:54:00:00:01:01!*NOIP*|52:54:00:00:00:01!gpu001
    mgt=ipmi
    postscripts=syslog,key=value
    rack=a
    serial=SN-1

compute:
    objtype=group
    members=gpu001
gpu002.cluster:
    objtype=node
    mac=52:54:00:00:00:02
    mgt=blade
    bmc=10.1.0.2
gpu003:
    objtype=node
    groups=all
stray
";

    #[test]
    fn definitions_of_xcat_are_read() {
        assert!(is_export(EXPORT.as_bytes()) && !is_export(b"mac,name"));
        let (rows, faults) = parse(EXPORT.as_bytes());
        let [one, two] = rows.as_slice() else { panic!("{rows:?}") };
        assert_eq!(
            (one.line, one.name.as_str(), one.mac.as_str()),
            (3, "gpu001", "52:54:00:00:00:01")
        );
        assert_eq!((one.address.as_str(), one.serial.as_str()), ("10.77.0.21", "SN-1"));
        assert_eq!(one.labels, "rack=a compute=true gpu=true");
        assert_eq!((one.bmc_driver.as_str(), one.bmc_address.as_str()), ("ipmi", "10.1.0.1"));
        assert_eq!((two.name.as_str(), two.bmc_address.as_str()), ("gpu002", ""), "no driver");
        let found: Vec<_> =
            faults.iter().map(|fault| (fault.line, fault.message.as_str())).collect();
        let [stray, third] = found.as_slice() else { panic!("{found:?}") };
        assert!(stray.0 == 27 && stray.1.contains("`stray`"), "{found:?}");
        assert!(third.0 == 24 && third.1.contains("gpu003"), "{found:?}");
    }

    #[test]
    fn attribute_without_a_stanza_is_refused_with_its_line() {
        let (rows, faults) = parse(b"  mac=1\n");
        assert!(rows.is_empty() && faults[0].line == 1, "{faults:?}");
    }
}
