//! Rows of a list of machines: texts as a person wrote them, checked all at once.

use super::ExpectedMachine;
use crate::fleet::{LabelKey, LabelValue, Labels, MAX_LABELS};
use meshd_types::{
    BmcDriver, Hint as _, MacAddr, ParseError, Timestamp, is_filler, is_host_name,
    is_reserved_host_name,
};
use serde::{Deserialize, Serialize};
use std::{
    collections::{BTreeMap, btree_map::Entry},
    net::Ipv4Addr,
    str::FromStr,
};

/// Maximum number of rows of one list.
pub const MAX_MACHINE_ROWS: usize = 10_000;
/// Maximum length of a serial number or the address of a BMC, in bytes.
const MAX_TEXT: usize = 255;

/// One machine as text. An empty value is not set.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields, default)]
pub struct MachineRow {
    /// Line of the file, for faults; 0 for the number of the row.
    pub line: usize,
    pub mac: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub name: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub address: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub profile: String,
    /// `key=value`, separated by blanks.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub labels: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub serial: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub bmc_driver: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub bmc_address: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub bmc_mac: String,
}

/// Names of the values of a row, in the order of their columns.
pub const MACHINE_COLUMNS: [&str; 9] = [
    "mac",
    "name",
    "address",
    "profile",
    "labels",
    "serial",
    "bmc_driver",
    "bmc_address",
    "bmc_mac",
];

/// A fault of a row.
#[derive(
    Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, utoipa::ToSchema,
)]
pub struct RowFault {
    pub line: usize,
    /// Column, such as `mac`.
    pub column: String,
    pub message: String,
    pub hint: String,
}

impl RowFault {
    pub fn new(
        line: usize,
        column: &str,
        message: impl Into<String>,
        hint: impl Into<String>,
    ) -> Self {
        RowFault { line, column: column.to_owned(), message: message.into(), hint: hint.into() }
    }
}

/// A machine with the line that defines it.
pub type LocatedMachine = (usize, ExpectedMachine);

impl MachineRow {
    /// Returns the value of a column; `None` for an unknown name.
    pub fn value_mut(&mut self, column: &str) -> Option<&mut String> {
        Some(match column {
            "mac" => &mut self.mac,
            "name" => &mut self.name,
            "address" => &mut self.address,
            "profile" => &mut self.profile,
            "labels" => &mut self.labels,
            "serial" => &mut self.serial,
            "bmc_driver" => &mut self.bmc_driver,
            "bmc_address" => &mut self.bmc_address,
            "bmc_mac" => &mut self.bmc_mac,
            _ => return None,
        })
    }
}

/// Parses all rows. Returns the machines with a MAC address, without their invalid values, and the
/// faults of all rows by line: values that are invalid, and MAC addresses, names and addresses that
/// occur twice.
pub fn parse_rows(rows: &[MachineRow], now: Timestamp) -> (Vec<LocatedMachine>, Vec<RowFault>) {
    let mut faults = Vec::new();
    if rows.len() > MAX_MACHINE_ROWS {
        let hint = format!("split the list into lists of at most {MAX_MACHINE_ROWS}");
        faults.push(RowFault::new(0, "mac", format!("{} machines are too many", rows.len()), hint));
        return (Vec::new(), faults);
    }
    let mut seen = SeenValues::default();
    let mut machines = Vec::with_capacity(rows.len());
    for (index, row) in rows.iter().enumerate() {
        // A program may send rows without lines.
        let line = if row.line == 0 { index + 1 } else { row.line };
        let mut reader = RowReader { line, faults: Vec::new() };
        let machine = reader.machine(row, now);
        if let Some(machine) = &machine {
            seen.add(line, machine, &mut reader.faults);
        }
        machines.extend(machine.map(|machine| (line, machine)));
        faults.append(&mut reader.faults);
    }
    (machines, faults)
}

/// Lines of the values that one machine only may have.
#[derive(Default)]
struct SeenValues {
    /// Of boot NICs and of BMCs.
    macs: BTreeMap<MacAddr, usize>,
    names: BTreeMap<String, usize>,
    addresses: BTreeMap<Ipv4Addr, usize>,
}

impl SeenValues {
    fn add(&mut self, line: usize, machine: &ExpectedMachine, faults: &mut Vec<RowFault>) {
        let mut check = |column: &str, text: String, before: Option<usize>| {
            if let Some(before) = before {
                let message = format!("`{text}` is on line {before}, too");
                faults.push(RowFault::new(
                    line,
                    column,
                    message,
                    "remove or change one of the two",
                ));
            }
        };
        let mac = machine.mac;
        check("mac", mac.to_string(), known(&mut self.macs, mac, line));
        if let Some(mac) = machine.bmc_mac {
            check("bmc_mac", mac.to_string(), known(&mut self.macs, mac, line));
        }
        if let Some(name) = &machine.name {
            check("name", name.clone(), known(&mut self.names, name.clone(), line));
        }
        if let Some(address) = machine.address {
            check("address", address.to_string(), known(&mut self.addresses, address, line));
        }
    }
}

/// Returns the line of an earlier equal value, else remembers this line.
fn known<K: Ord>(lines: &mut BTreeMap<K, usize>, value: K, line: usize) -> Option<usize> {
    match lines.entry(value) {
        Entry::Occupied(entry) => Some(*entry.get()),
        Entry::Vacant(entry) => {
            entry.insert(line);
            None
        }
    }
}

struct RowReader {
    line: usize,
    faults: Vec<RowFault>,
}

impl RowReader {
    fn fault(&mut self, column: &str, message: impl Into<String>, hint: impl Into<String>) {
        self.faults.push(RowFault::new(self.line, column, message, hint));
    }

    /// Reads a row. Returns `None` without a valid MAC address.
    fn machine(&mut self, row: &MachineRow, now: Timestamp) -> Option<ExpectedMachine> {
        let mac = self.mac("mac", &row.mac, "the boot NIC");
        if row.mac.trim().is_empty() {
            self.fault("mac", "the MAC address is missing", "write it as aa:bb:cc:dd:ee:ff");
        }
        let name = self.name(&row.name);
        let address = self.address(&row.address);
        let profile = self.parsed("profile", &row.profile);
        let labels = self.labels(&row.labels);
        let serial = self.text("serial", &row.serial).map(|serial| serial.to_lowercase());
        if let Some(serial) = serial.as_ref().filter(|serial| is_filler(serial)) {
            let message = format!("`{serial}` is a placeholder of firmware, not a serial number");
            self.fault("serial", message, "many machines have it; leave it empty");
        }
        let bmc_driver = self.parsed::<BmcDriver>("bmc_driver", &row.bmc_driver);
        let bmc_address = self.text("bmc_address", &row.bmc_address);
        let bmc_mac = self.mac("bmc_mac", &row.bmc_mac, "the BMC");
        if let (Some(_), Some(address)) = (bmc_mac, &bmc_address) {
            let message =
                format!("the lease of `bmc_mac` has the address, and `{address}` is one, too");
            self.fault("bmc_mac", message, "write bmc_mac, or bmc_address");
        }
        Some(ExpectedMachine {
            name,
            address,
            profile,
            labels,
            serial,
            bmc_driver,
            bmc_address,
            bmc_mac,
            ..ExpectedMachine::new(mac?, now)
        })
    }

    fn parsed<T: FromStr<Err = ParseError>>(&mut self, column: &str, text: &str) -> Option<T> {
        let text = text.trim();
        if text.is_empty() {
            return None;
        }
        text.parse::<T>()
            .inspect_err(|error| {
                self.fault(column, error.message(), error.hint().unwrap_or_default());
            })
            .ok()
    }

    fn mac(&mut self, column: &str, text: &str, owner: &str) -> Option<MacAddr> {
        let mac = self.parsed::<MacAddr>(column, text)?;
        let is_usable = !mac.is_multicast() && mac.0 != [0; 6];
        if !is_usable {
            let message = format!("`{mac}` is the address of no single NIC");
            self.fault(column, message, format!("write the address of {owner}"));
        }
        is_usable.then_some(mac)
    }

    fn name(&mut self, text: &str) -> Option<String> {
        let name = text.trim();
        if name.is_empty() {
            return None;
        }
        if !is_host_name(name) || is_reserved_host_name(name) {
            let error = ParseError::of_text(name, "is not a valid host name", "");
            let hint = "use 1 to 63 of a-z, 0-9 and `-`, no IP address, no reserved name";
            self.fault("name", error.message(), hint);
            return None;
        }
        if name.strip_prefix("node-").unwrap_or(name).parse::<meshd_types::NodeId>().is_ok() {
            let message = format!("`{name}` is the name or ID of another node");
            self.fault("name", message, "use another name: node IDs have 8 characters");
            return None;
        }
        Some(name.to_owned())
    }

    fn address(&mut self, text: &str) -> Option<Ipv4Addr> {
        let text = text.trim();
        if text.is_empty() {
            return None;
        }
        text.parse::<Ipv4Addr>()
            .inspect_err(|_| {
                let error = ParseError::of_text(text, "is not an IPv4 address", "");
                self.fault("address", error.message(), "write it as 10.77.0.20");
            })
            .ok()
    }

    fn labels(&mut self, text: &str) -> Labels {
        let mut labels = Labels::new();
        for word in text.split_whitespace() {
            let pair = word.split_once('=').filter(|(key, _)| !key.is_empty());
            let Some((key, value)) = pair else {
                let error = ParseError::of_text(word, "is not a label", "");
                self.fault("labels", error.message(), "write key=value, separated by blanks");
                continue;
            };
            let key = self.parsed::<LabelKey>("labels", key);
            let value = match value {
                "" => {
                    self.fault("labels", format!("`{word}` has no value"), "write key=value");
                    None
                }
                value => self.parsed::<LabelValue>("labels", value),
            };
            let (Some(key), Some(value)) = (key, value) else { continue };
            if labels.contains_key(&key) {
                self.fault("labels", format!("label `{key}` occurs twice"), "write it once");
            }
            labels.insert(key, value);
        }
        if labels.len() > MAX_LABELS {
            let message = format!("{} labels are too many", labels.len());
            self.fault("labels", message, format!("use at most {MAX_LABELS}"));
        }
        labels
    }

    fn text(&mut self, column: &str, text: &str) -> Option<String> {
        let text = text.trim();
        if text.is_empty() {
            return None;
        }
        if text.len() > MAX_TEXT || text.chars().any(char::is_control) {
            let error = ParseError::of_text(text, "is not a plain text", "");
            let hint = format!("use at most {MAX_TEXT} characters without control characters");
            self.fault(column, error.message(), hint);
            return None;
        }
        Some(text.to_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn row(line: usize, values: [&str; 5]) -> MachineRow {
        let [mac, name, address, profile, labels] = values.map(str::to_owned);
        MachineRow { line, mac, name, address, profile, labels, ..MachineRow::default() }
    }

    fn bmc(line: usize, mac: &str, bmc_mac: &str) -> MachineRow {
        MachineRow { bmc_mac: bmc_mac.to_owned(), ..row(line, [mac, "", "", "", ""]) }
    }

    fn faults(rows: &[MachineRow]) -> Vec<String> {
        let (_, faults) = parse_rows(rows, Timestamp::EPOCH);
        faults
            .iter()
            .map(|fault| format!("{} {}: {}", fault.line, fault.column, fault.message))
            .collect()
    }

    #[test]
    fn row_becomes_a_machine() {
        let rows = [MachineRow {
            serial: " SN-7 ".to_owned(),
            bmc_driver: "redfish".to_owned(),
            bmc_address: "10.1.0.7".to_owned(),
            ..row(2, ["52-54-00-00-00-01", "gpu001", "10.77.0.21", "compute", "rack=a  feed=1"])
        }];
        let (machines, faults) = parse_rows(&rows, Timestamp::EPOCH);
        assert_eq!(faults, []);
        let [(2, machine)] = machines.as_slice() else { panic!("{machines:?}") };
        assert_eq!(machine.mac.to_string(), "52:54:00:00:00:01");
        assert_eq!(crate::fleet::label_words(&machine.labels), "feed=1 rack=a");
        assert_eq!(
            (machine.serial.as_deref(), machine.name.as_deref()),
            (Some("sn-7"), Some("gpu001"))
        );
        let stored = serde_json::to_string(machine).expect("plain data");
        assert_eq!(serde_json::from_str::<ExpectedMachine>(&stored).expect("as written"), *machine);
    }

    #[test]
    fn all_faults_of_all_rows_are_reported_with_their_lines() {
        let rows = [
            row(2, ["52:54:00:00:00:01", "a", "10.77.0.1", "", ""]),
            row(3, ["52:54:00:00:00:01", "a", "10.77.0.1", "", ""]),
            row(4, ["", "", "", "", ""]),
            row(5, ["x", "A_b", "10.77", "../x", "k k= =v k=v k=w"]),
            row(6, ["ff:ff:ff:ff:ff:ff", "localhost", "", "", ""]),
            row(7, ["52:54:00:00:00:07", "node-0123abcd", "::1", "", ""]),
            bmc(8, "52:54:00:00:00:07", "52:54:00:00:00:b8"),
            bmc(9, "52:54:00:00:00:09", "52:54:00:00:00:b8"),
            bmc(10, "52:54:00:00:00:0a", "52:54:00:00:00:09"),
            bmc(11, "52:54:00:00:00:0b", "01:00:5e:00:00:01"),
            MachineRow {
                bmc_address: "a".to_owned(),
                ..bmc(12, "52:54:00:00:00:0c", "52:54:00:00:00:bc")
            },
        ];
        let expected = [
            "3 mac: `52:54:00:00:00:01` is on line 2, too",
            "3 name: `a` is on line 2, too",
            "3 address: `10.77.0.1` is on line 2, too",
            "4 mac: the MAC address is missing",
            "5 mac: `x` is not a MAC address",
            "5 name: `A_b` is not a valid host name",
            "5 address: `10.77` is not an IPv4 address",
            "5 profile: `../x` is not a valid profile name",
            "5 labels: `k` is not a label",
            "5 labels: `k=` has no value",
            "5 labels: `=v` is not a label",
            "5 labels: label `k` occurs twice",
            "6 mac: `ff:ff:ff:ff:ff:ff` is the address of no single NIC",
            "6 name: `localhost` is not a valid host name",
            "7 name: `node-0123abcd` is the name or ID of another node",
            "7 address: `::1` is not an IPv4 address",
            "8 mac: `52:54:00:00:00:07` is on line 7, too",
            "9 bmc_mac: `52:54:00:00:00:b8` is on line 8, too",
            "10 bmc_mac: `52:54:00:00:00:09` is on line 9, too",
            "11 bmc_mac: `01:00:5e:00:00:01` is the address of no single NIC",
            "12 bmc_mac: the lease of `bmc_mac` has the address, and `a` is one, too",
        ];
        assert_eq!(faults(&rows), expected);
    }

    #[test]
    fn list_beyond_the_bound_is_refused_as_a_whole() {
        let rows = vec![MachineRow::default(); MAX_MACHINE_ROWS + 1];
        assert_eq!(faults(&rows), ["0 mac: 10001 machines are too many"]);
    }

    proptest! {
        #[test]
        fn any_row_is_a_machine_or_has_a_fault(values in prop::collection::vec(".{0,40}", 9)) {
            let mut row = MachineRow { line: 2, ..MachineRow::default() };
            for (column, value) in MACHINE_COLUMNS.iter().zip(&values) {
                row.value_mut(column).expect("a column").clone_from(value);
            }
            let (machines, faults) = parse_rows(&[row], Timestamp::EPOCH);
            prop_assert!(!machines.is_empty() || !faults.is_empty());
        }
    }
}
