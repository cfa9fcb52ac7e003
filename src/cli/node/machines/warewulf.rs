//! `nodes.conf` of Warewulf 4: YAML with the nodes and their network devices.

use meshd_model::fleet::{MachineRow, RowFault};
use serde::Deserialize;
use std::collections::BTreeMap;

/// The part of `nodes.conf` that describes machines. Other keys, such as overlays and images, have
/// other counterparts here.
#[derive(Debug, Deserialize)]
struct NodesConf {
    #[serde(default)]
    nodes: BTreeMap<String, Option<WarewulfNode>>,
}

#[derive(Debug, Default, Deserialize)]
struct WarewulfNode {
    #[serde(rename = "network devices", default)]
    networks: BTreeMap<String, NetworkDevice>,
    #[serde(rename = "primary network", default)]
    primary: Option<String>,
    #[serde(default)]
    ipmi: Option<Ipmi>,
    #[serde(default)]
    tags: BTreeMap<String, String>,
}

#[derive(Debug, Default, Deserialize)]
struct NetworkDevice {
    #[serde(default)]
    hwaddr: String,
    #[serde(default)]
    ipaddr: String,
    #[serde(default)]
    primary: Option<serde_json::Value>,
}

#[derive(Debug, Default, Deserialize)]
struct Ipmi {
    #[serde(default)]
    ipaddr: String,
}

/// Parses `nodes.conf`. Profiles of Warewulf are no profiles of meshd, so the machines have the
/// default profile.
pub(super) fn parse(bytes: &[u8]) -> (Vec<MachineRow>, Vec<RowFault>) {
    let conf: NodesConf = match serde_norway::from_slice(bytes) {
        Ok(conf) => conf,
        Err(error) => {
            let line = error.location().map_or(0, |location| location.line());
            let hint = "name the file nodes.conf of Warewulf 4, or use --format csv";
            return (Vec::new(), vec![RowFault::new(line, "", error.to_string(), hint)]);
        }
    };
    let mut rows = Vec::new();
    let mut faults = Vec::new();
    let text = String::from_utf8_lossy(bytes);
    for (name, node) in conf.nodes {
        let line = line_of(&text, &name);
        let node = node.unwrap_or_default();
        let Some(device) = node.boot_device().filter(|device| !device.hwaddr.is_empty()) else {
            let message = format!("node {name} has no network device with hwaddr");
            faults.push(RowFault::new(line, "mac", message, "add the MAC address of its boot NIC"));
            continue;
        };
        let bmc_address = node.ipmi.as_ref().map(|ipmi| ipmi.ipaddr.clone()).unwrap_or_default();
        let labels = node.tags.iter().map(|(key, value)| format!("{}={value}", key.to_lowercase()));
        rows.push(MachineRow {
            line,
            mac: device.hwaddr.clone(),
            // A host name has no domain here.
            name: name.split('.').next().unwrap_or_default().to_lowercase(),
            address: device.ipaddr.split('/').next().unwrap_or_default().to_owned(),
            labels: labels.collect::<Vec<_>>().join(" "),
            bmc_driver: if bmc_address.is_empty() { String::new() } else { "ipmi".to_owned() },
            bmc_address,
            ..MachineRow::default()
        });
    }
    (rows, faults)
}

impl WarewulfNode {
    /// Returns the primary network device, else `default`, else the first one.
    fn boot_device(&self) -> Option<&NetworkDevice> {
        let named = self.primary.as_ref().and_then(|name| self.networks.get(name));
        let marked = || self.networks.values().find(|device| device.is_primary());
        let default = || self.networks.get("default");
        named.or_else(marked).or_else(default).or_else(|| self.networks.values().next())
    }
}

impl NetworkDevice {
    /// Warewulf writes booleans as text.
    fn is_primary(&self) -> bool {
        self.primary
            .as_ref()
            .is_some_and(|value| value.as_bool() == Some(true) || value.as_str() == Some("true"))
    }
}

/// Returns the line on which a node begins; 0 if it is written in an unusual form.
fn line_of(text: &str, name: &str) -> usize {
    let begins = |line: &str| {
        let key = line.trim_start().trim_start_matches(['"', '\'']);
        line.starts_with([' ', '\t'])
            && key.strip_prefix(name).is_some_and(|rest| {
                rest.trim_start_matches(['"', '\'']).trim_start().starts_with(':')
            })
    };
    text.lines().position(begins).map_or(0, |index| index + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As `wwctl node add` of Warewulf 4.5 writes it.
    const CONF: &str = r#"nodeprofiles:
  default:
    comment: This profile is automatically included for each node
    image name: rocky
nodes:
  n1.cluster:
    profiles:
      - default
    ipmi:
      ipaddr: 10.1.0.1
    network devices:
      default:
        type: ethernet
        device: eth0
        hwaddr: 52:54:00:00:00:01
        ipaddr: 10.77.0.21
        netmask: 255.255.255.0
      ib:
        hwaddr: 52:54:00:00:01:01
    tags:
      Rack: a
  n2:
    network devices:
      fast:
        hwaddr: 52:54:00:00:00:02
        primary: "true"
      default:
        hwaddr: 52:54:00:00:01:02
  n3: {}
"#;

    #[test]
    fn nodes_conf_of_warewulf_is_read() {
        let (rows, faults) = parse(CONF.as_bytes());
        let [one, two] = rows.as_slice() else { panic!("{rows:?}") };
        assert_eq!((one.line, one.name.as_str(), one.mac.as_str()), (6, "n1", "52:54:00:00:00:01"));
        assert_eq!((one.address.as_str(), one.labels.as_str()), ("10.77.0.21", "rack=a"));
        assert_eq!((one.bmc_driver.as_str(), one.bmc_address.as_str()), ("ipmi", "10.1.0.1"));
        assert_eq!((two.name.as_str(), two.mac.as_str()), ("n2", "52:54:00:00:00:02"));
        let [fault] = faults.as_slice() else { panic!("{faults:?}") };
        assert_eq!((fault.line, fault.message.contains("n3")), (29, true), "{fault:?}");
    }

    #[test]
    fn malformed_nodes_conf_is_refused_with_its_line() {
        let (rows, faults) = parse(b"nodes:\n  n1: [\n");
        assert!(rows.is_empty() && faults.len() == 1 && faults[0].line > 0, "{faults:?}");
    }
}
