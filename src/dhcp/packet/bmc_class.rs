//! Management controllers (BMCs) that name themselves in option 60.
//!
//! Only whole texts that a vendor documents, or that another server relies on, are known. Many BMCs
//! send no class, or that of their DHCP client.

use super::{client_class::trim, options::Options};
use dhcproto::v4::OptionCode;

/// Texts of option 60, and the product that sends each.
///
/// | class | source |
/// | --- | --- |
/// | `iDRAC` | Dell, iDRAC7/8 and iDRAC9 User's Guide, "Auto Config sequence" |
/// | `CPQRIB3` | NVIDIA, bare-metal-manager-core: the class of the iLO of a ProLiant DL380a Gen11 |
const BMC_CLASSES: [(&[u8], &str); 2] = [(b"iDRAC", "Dell iDRAC"), (b"CPQRIB3", "HPE iLO")];
/// Maximum length of a host name (RFC 1123), in bytes.
const MAX_HOST_NAME: usize = 63;

/// What a client says of itself: that it is a BMC. Any client may say so.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BmcClaim {
    /// Name of the product.
    pub product: &'static str,
    /// Option 12, if it is a plain host name.
    pub host_name: Option<String>,
}

pub(super) fn bmc_claim(options: &Options<'_>) -> Option<BmcClaim> {
    let class = trim(options.get(OptionCode::ClassIdentifier)?);
    let (_, product) = BMC_CLASSES.into_iter().find(|(known, _)| *known == class)?;
    let host_name = options.get(OptionCode::Hostname).map(trim).and_then(host_name);
    Some(BmcClaim { product, host_name })
}

fn host_name(text: &[u8]) -> Option<String> {
    let is_plain = |byte: &u8| byte.is_ascii_alphanumeric() || b"-_.".contains(byte);
    let is_name = (1..=MAX_HOST_NAME).contains(&text.len()) && text.iter().all(is_plain);
    is_name.then(|| String::from_utf8_lossy(text).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn claim(class: &[u8], name: &[u8]) -> Option<BmcClaim> {
        let length = |text: &[u8]| u8::try_from(text.len()).expect("short");
        let mut packet = vec![0; crate::packet::options::HEADER];
        packet.extend([&[60, length(class)], class, &[12, length(name)], name, &[255]].concat());
        bmc_claim(&Options::read(&packet))
    }

    #[test]
    fn only_whole_known_classes_are_bmcs() {
        let product = |class: &[u8]| claim(class, b"").map(|claim| claim.product);
        assert_eq!(product(b"iDRAC"), Some("Dell iDRAC"));
        assert_eq!(product(b"CPQRIB3\0"), Some("HPE iLO"));
        for other in ["", "iDRAC9", "idrac", "PXEClient:Arch:00007", "udhcp 1.36.1", "MSFT 5.0"] {
            assert_eq!(product(other.as_bytes()), None, "{other}");
        }
    }

    #[test]
    fn host_name_of_a_bmc_is_plain_and_bounded() {
        let name = |text: &[u8]| claim(b"iDRAC", text).and_then(|claim| claim.host_name);
        assert_eq!(name(b"idrac-ABC1234\0").as_deref(), Some("idrac-ABC1234"));
        for bad in [&b"a b"[..], b"a\x1b[1m", b"", &[b'x'; 64], b"\xff"] {
            assert_eq!(name(bad), None, "{bad:?}");
        }
    }
}
