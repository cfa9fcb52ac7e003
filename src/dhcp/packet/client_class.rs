//! The class of a client: firmware by option 60, iPXE by option 77.

use super::options::Options;
use crate::effect::ClientKind;
use dhcproto::v4::OptionCode;

/// User class of iPXE, in option 77.
const IPXE: &[u8] = b"iPXE";

/// The network boot client of the firmware, by option 60.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum VendorClass {
    /// `PXEClient`: expects a file name.
    Pxe,
    /// `HTTPClient`: expects a URL.
    Http,
    /// `U-Boot`: expects a file name in the header.
    UBoot,
}

pub(crate) fn vendor(options: &Options<'_>) -> Option<VendorClass> {
    let class = options.get(OptionCode::ClassIdentifier)?;
    let known = [
        (b"PXEClient".as_slice(), VendorClass::Pxe),
        (b"HTTPClient", VendorClass::Http),
        (b"U-Boot", VendorClass::UBoot),
    ];
    known.into_iter().find(|(name, _)| class.starts_with(name)).map(|(_, vendor)| vendor)
}

pub(super) fn client_kind(options: &Options<'_>, vendor: Option<VendorClass>) -> ClientKind {
    if options.get(OptionCode::UserClass).is_some_and(is_ipxe) {
        ClientKind::Ipxe
    } else if vendor.is_some() {
        ClientKind::Firmware
    } else {
        ClientKind::Other
    }
}

/// iPXE sends its bare name (`Quirk::BareUserClass`); relays and RFC 3004 use a list of length-prefixed names (`Quirk::ListedUserClass`).
fn is_ipxe(user_class: &[u8]) -> bool {
    if user_class == IPXE {
        return true;
    }
    let mut rest = user_class;
    while let Some((&length, tail)) = rest.split_first() {
        let Some((class, tail)) = tail.split_at_checked(usize::from(length)) else { return false };
        if class == IPXE {
            return true;
        }
        rest = tail;
    }
    false
}
