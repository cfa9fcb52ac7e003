//! The query of `GET /boot/script`: hardware facts that iPXE reports about its machine.
//!
//! Vendor texts are hexadecimal (`:hexhyp`, `41-42`). The iPXE of 2019 in Debian and QEMU decodes
//! `:uristring` before it sends a URL. A serial number with `&`, `"` or a blank would then break
//! the request. Plain keys are also accepted, for people and other loaders.

use super::loader::Loader;
use crate::{fleet::Node, image_kind::PciId};
use meshd_types::{Architecture, Hardware, MacAddr, SystemUuid};

/// Type of the PCI bus in iPXE's setting `busid`.
const PCI_BUS: u8 = 1;
/// Maximum length of the query in bytes.
const MAX_QUERY: usize = 4096;
/// Maximum length of a decoded value in bytes. SMBIOS has no limit; real values are below 100.
const MAX_VALUE: usize = 512;

/// A request for a boot script. All values are claims of the machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ScriptRequest {
    /// The loader that runs the script.
    pub loader: Loader,
    /// MAC address of the boot NIC.
    pub mac: MacAddr,
    /// SMBIOS system UUID.
    pub uuid: Option<SystemUuid>,
    /// SMBIOS system serial number; empty if unknown, as are `manufacturer` and `product`.
    pub serial: String,
    /// SMBIOS manufacturer.
    pub manufacturer: String,
    /// SMBIOS product name.
    pub product: String,
    /// SMBIOS board serial number. Not a basis of the node ID; it distinguishes a replaced NIC from
    /// another machine.
    pub board_serial: String,
    /// Architecture of iPXE, if reported.
    pub arch: Option<Architecture>,
    /// PCI ID of the boot NIC, if iPXE knows it.
    pub nic: Option<PciId>,
}

/// The query is not a valid request.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum QueryError {
    /// The query is longer than [`MAX_QUERY`].
    #[error("the query has {0} bytes, more than {MAX_QUERY}")]
    TooLong(usize),
    /// A value is longer than [`MAX_VALUE`].
    #[error("`{0}` has more than {MAX_VALUE} bytes")]
    ValueTooLong(&'static str),
    /// The required key `mac` is missing.
    #[error("`mac` is missing; is this request made by the script at /boot.ipxe?")]
    NoMac,
    /// A value is malformed. `value` is shortened; `what` is the expected form.
    #[error("`{key}` is `{value}`, which is not {what}")]
    Malformed { key: &'static str, value: String, what: &'static str },
}

impl ScriptRequest {
    /// Returns what the loader of a node would ask, as far as the node's facts have it.
    pub fn of_node(node: &Node) -> Self {
        ScriptRequest {
            loader: Loader::Ipxe,
            mac: node.mac,
            uuid: None,
            serial: String::new(),
            manufacturer: String::new(),
            product: String::new(),
            board_serial: String::new(),
            arch: None,
            nic: boot_nic(node),
        }
    }

    /// Parses the part of the URL after `?`. Unknown keys are ignored.
    pub fn parse(query: &str) -> Result<Self, QueryError> {
        if query.len() > MAX_QUERY {
            return Err(QueryError::TooLong(query.len()));
        }
        let raw = |key: &str| {
            let mut pairs = query.split('&').filter_map(|pair| pair.split_once('='));
            pairs.find_map(|(name, value)| (name == key).then_some(value)).unwrap_or_default()
        };
        let value = |key| read_value(key, percent_decode(raw(key)));
        let vendor_text = |key, hex_key: &'static str| match raw(hex_key) {
            "" => value(key),
            hex => {
                read_value(key, dehex(hex).ok_or_else(|| malformed(hex_key, hex, "hexadecimal"))?)
            }
        };
        let mac = value("mac")?;
        Ok(ScriptRequest {
            loader: Loader::Ipxe,
            mac: optional("mac", &mac, "the MAC address of a machine", |text| {
                text.parse().ok().filter(is_machine_address)
            })?
            .ok_or(QueryError::NoMac)?,
            uuid: optional("uuid", &value("uuid")?, "a UUID", |text| text.parse().ok())?,
            arch: optional(
                "arch",
                &value("arch")?,
                "an architecture that is booted here",
                Architecture::from_ipxe,
            )?,
            nic: pci_id(raw("nic_hex")),
            manufacturer: vendor_text("manufacturer", "manufacturer_hex")?,
            product: vendor_text("product", "product_hex")?,
            serial: vendor_text("serial", "serial_hex")?,
            board_serial: vendor_text("board_serial", "board_serial_hex")?,
        })
    }

    /// Returns the hardware identity for the node ID.
    pub fn hardware(&self) -> Hardware {
        Hardware {
            uuid: self.uuid,
            manufacturer: self.manufacturer.clone(),
            product: self.product.clone(),
            serial: self.serial.clone(),
            macs: vec![self.mac],
        }
    }
}

fn is_machine_address(mac: &MacAddr) -> bool {
    mac.0 != [0; 6] && !mac.is_multicast()
}

fn malformed(key: &'static str, value: &str, what: &'static str) -> QueryError {
    QueryError::Malformed { key, value: value.chars().take(60).collect(), what }
}

fn optional<T>(
    key: &'static str,
    text: &str,
    what: &'static str,
    read: impl Fn(&str) -> Option<T>,
) -> Result<Option<T>, QueryError> {
    match text {
        "" => Ok(None),
        text => read(text).map(Some).ok_or_else(|| malformed(key, text, what)),
    }
}

/// Reads iPXE's `busid`: type of the bus, vendor, device. `None` for a NIC of another bus.
fn pci_id(text: &str) -> Option<PciId> {
    match dehex(text)?.as_slice() {
        &[PCI_BUS, v0, v1, d0, d1] => Some(PciId {
            vendor: u16::from_be_bytes([v0, v1]),
            device: u16::from_be_bytes([d0, d1]),
        }),
        _ => None,
    }
}

/// Returns the PCI ID of the NIC that the node booted from; `None` if its facts do not have it.
fn boot_nic(node: &Node) -> Option<PciId> {
    let facts = node.facts.as_ref()?;
    let nic = facts.nics.iter().find(|nic| nic.mac == Some(node.mac))?;
    let function = facts.pci.iter().find(|pci| Some(&pci.address) == nic.function.as_ref())?;
    let number = |text: &str| u16::from_str_radix(text, 16).ok();
    Some(PciId { vendor: number(&function.vendor)?, device: number(&function.device)? })
}

/// Converts to text without control characters, with a maximum length.
fn read_value(key: &'static str, bytes: Vec<u8>) -> Result<String, QueryError> {
    let text: String =
        String::from_utf8_lossy(&bytes).chars().filter(|c| !c.is_control()).collect();
    // The length is checked after the conversion, because the replacement of an invalid byte takes
    // three bytes.
    if text.len() > MAX_VALUE { Err(QueryError::ValueTooLong(key)) } else { Ok(text) }
}

/// Decodes `hexhyp` (`41-42`) and `hexraw` (`4142`) of iPXE.
fn dehex(text: &str) -> Option<Vec<u8>> {
    let digits: Vec<u32> =
        text.chars().filter(|c| *c != '-').map(|c| c.to_digit(16)).collect::<Option<_>>()?;
    let bytes = digits.chunks_exact(2).map(|pair| u8::try_from(pair[0] * 16 + pair[1]).ok());
    if digits.len().is_multiple_of(2) { bytes.collect() } else { None }
}

/// Decodes percent encoding. `+` is a plus, because the query is not an HTML form.
fn percent_decode(raw: &str) -> Vec<u8> {
    percent_encoding::percent_decode_str(raw).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn query_of_ipxe_is_read_completely() {
        // A query that the iPXE of QEMU 7.2 sent, with encoded colons.
        let request = ScriptRequest::parse(
            "mac=52%3A54%3A00%3A12%3A34%3A56&uuid=01020304-0506-0708-090a-0b0c0d0e0f10&arch=i386\
             &manufacturer_hex=46-6f-6f-20-26-20-53-6f-6e-73&product_hex=582b31&serial_hex=&board_serial_hex=42-2d-31",
        )
        .expect("iPXE sends this");
        assert_eq!(request.mac.to_string(), "52:54:00:12:34:56");
        assert_eq!(
            request.uuid.map(|uuid| uuid.to_string()),
            Some("01020304-0506-0708-090a-0b0c0d0e0f10".into())
        );
        assert_eq!(request.arch, Some(Architecture::X86_64));
        assert_eq!(
            [&*request.manufacturer, &*request.product, &*request.serial],
            ["Foo & Sons", "X+1", ""]
        );
        assert_eq!(request.board_serial, "B-1");
        assert_eq!(request.hardware().macs, [request.mac]);
    }

    #[test]
    fn query_with_percent_encoded_text_is_read() {
        let request = ScriptRequest::parse(
            "mac=52:54:00:12:34:56&product=X%2b1+2&serial=50%&manufacturer=%C3%A4",
        );
        let request = request.expect("a MAC is there");
        assert_eq!(
            [&*request.manufacturer, &*request.product, &*request.serial],
            ["ä", "X+1+2", "50%"]
        );
    }

    #[test]
    fn query_without_smbios_values_is_accepted() {
        let request = ScriptRequest::parse(
            "mac=52-54-00-12-34-56&uuid=&arch=&manufacturer=&product=&serial=",
        );
        assert!(request.is_ok_and(|request| request.uuid.is_none() && request.arch.is_none()));
    }

    #[test]
    fn pci_id_of_nic_is_read_from_busid_of_ipxe() {
        for (busid, expected) in [
            ("01-80-86-10-0e", Some("8086:100e")),
            ("011af41000", Some("1af4:1000")),
            ("00-00-00-00-00", None),
            ("0a-0b-da-81-53", None),
            ("01-80-86", None),
            ("", None),
            ("${netX/busid:hexhyp}", None),
        ] {
            let request = ScriptRequest::parse(&format!("mac=52:54:00:12:34:56&nic_hex={busid}"));
            let nic = request.expect("a MAC is there").nic.map(|nic| nic.to_string());
            assert_eq!(nic.as_deref(), expected, "{busid}");
        }
    }

    #[test]
    fn second_mac_in_query_is_ignored() {
        let request = ScriptRequest::parse("mac=52:54:00:12:34:56&serial=a&mac=52:54:00:00:00:01")
            .expect("a MAC");
        assert_eq!(request.mac.to_string(), "52:54:00:12:34:56");
    }

    #[test]
    fn malformed_query_is_refused_with_key_and_value() {
        for (query, sentence) in [
            ("", "`mac` is missing"),
            ("mac=ff:ff:ff:ff:ff:ff", "not the MAC address of a machine"),
            ("mac=00:00:00:00:00:00", "not the MAC address of a machine"),
            ("mac=junk", "`mac` is `junk`"),
            ("mac=52:54:00:12:34:56&uuid=1", "not a UUID"),
            ("mac=52:54:00:12:34:56&arch=vax", "`arch` is `vax`"),
            ("mac=52:54:00:12:34:56&serial_hex=414", "not hexadecimal"),
            (
                &format!("mac=52:54:00:12:34:56&serial={}", "x".repeat(600)),
                "`serial` has more than",
            ),
            (
                &format!("mac=52:54:00:12:34:56&serial_hex={}", "ee".repeat(200)),
                "`serial` has more than",
            ),
            (&"x".repeat(5000), "the query has 5000 bytes"),
        ] {
            let error = ScriptRequest::parse(query).expect_err(query).to_string();
            assert!(error.contains(sentence), "{error}");
        }
    }

    proptest! {
        #[test]
        fn query_with_junk_never_panics(junk in "\\PC{0,200}", tail in "[%&=a-f0-9:\u{0}-\u{1f}]{0,80}") {
            let _ = ScriptRequest::parse(&junk);
            if let Ok(request) = ScriptRequest::parse(&format!("mac=52:54:00:12:34:56&serial={tail}")) {
                prop_assert!(!request.serial.chars().any(char::is_control));
            }
        }

        #[test]
        fn encoded_text_round_trips(text in "[ -~äß]{0,60}") {
            let coded: String = text.bytes().map(|byte| format!("%{byte:02X}")).collect();
            prop_assert_eq!(percent_decode(&coded), text.as_bytes());
            let hyphens: Vec<String> = text.bytes().map(|byte| format!("{byte:02x}")).collect();
            prop_assert_eq!(dehex(&hyphens.join("-")), Some(text.into_bytes()));
        }
    }
}
