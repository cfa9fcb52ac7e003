//! The class of a client: firmware and its architecture by options 60 and 93, iPXE by option 77.

use super::options::Options;
use crate::client_arch::arch_entry;
use dhcproto::v4::OptionCode;
use meshd_types::ClientArch;

/// User class of iPXE, in option 77.
const IPXE: &[u8] = b"iPXE";

/// The architectures in the class of U-Boot (`BOOTP_VCI_STRING`).
const UBOOT_CLASSES: [(&[u8], u16); 2] = [(b"U-Boot.armv7", 21), (b"U-Boot.armv8", 22)];

/// The program that sent a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClientKind {
    /// Firmware that is not iPXE.
    Firmware,
    Ipxe,
    /// Any other client: an operating system, a switch, a BMC.
    Other,
}

/// The network boot client of the firmware, by option 60.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum VendorClass {
    /// `PXEClient`: expects a file name.
    Pxe,
    /// `HTTPClient`: expects a URL.
    Http,
    /// `U-Boot`: expects a file name in the header.
    UBoot,
}

impl VendorClass {
    /// Returns the first word of option 60.
    pub fn name(self) -> &'static str {
        match self {
            VendorClass::Pxe => "PXEClient",
            VendorClass::Http => "HTTPClient",
            VendorClass::UBoot => "U-Boot",
        }
    }
}

pub(crate) fn vendor(options: &Options<'_>) -> Option<VendorClass> {
    let class = options.get(OptionCode::ClassIdentifier)?;
    let known = [VendorClass::Pxe, VendorClass::Http, VendorClass::UBoot];
    known.into_iter().find(|vendor| class.starts_with(vendor.name().as_bytes()))
}

/// Returns the architecture of a client.
pub(super) fn arch(options: &Options<'_>, vendor: Option<VendorClass>) -> Option<ClientArch> {
    let listed = options.get(OptionCode::ClientSystemArchitecture).unwrap_or_default();
    let mut values = listed.as_chunks::<2>().0.iter().map(|value| u16::from_be_bytes(*value));
    // Quirk::SeveralArchs
    if let Some(first) = values.clone().next() {
        return Some(ClientArch(
            values.find(|value| arch_entry(*value).is_some()).unwrap_or(first),
        ));
    }
    let class = trim(options.get(OptionCode::ClassIdentifier).unwrap_or_default());
    if vendor == Some(VendorClass::UBoot) {
        return UBOOT_CLASSES
            .into_iter()
            .find(|(name, _)| *name == class)
            .map(|(_, arch)| ClientArch(arch));
    }
    // Quirk::ArchInClass: the text of option 60 contains it too, as in
    // "HTTPClient:Arch:00016:UNDI:003016".
    let mut words = class.split(|byte| *byte == b':').skip_while(|word| *word != b"Arch");
    match words.next() {
        Some(_) => words.next().and_then(number).map(ClientArch),
        // Quirk::NoArch
        None => (vendor == Some(VendorClass::Pxe)).then_some(ClientArch::BIOS),
    }
}

/// Parses the number of a class: decimal, or hexadecimal if it has letters.
fn number(word: &[u8]) -> Option<u16> {
    let word = std::str::from_utf8(trim(word)).ok()?;
    // `from_str_radix` would accept a sign.
    if !word.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        return None;
    }
    let radix = if word.bytes().all(|byte| byte.is_ascii_digit()) { 10 } else { 16 };
    u16::from_str_radix(word, radix).ok()
}

/// Removes the NULs behind a text that its sender keeps as a C string.
pub(super) fn trim(text: &[u8]) -> &[u8] {
    let end = text.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1);
    text.get(..end).unwrap_or_default()
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

/// iPXE sends its bare name (`Quirk::BareUserClass`); relays and RFC 3004 use a list of
/// length-prefixed names (`Quirk::ListedUserClass`).
fn is_ipxe(user_class: &[u8]) -> bool {
    if trim(user_class) == IPXE {
        return true;
    }
    let mut rest = user_class;
    while let Some((&length, tail)) = rest.split_first() {
        let Some((class, tail)) = tail.split_at_checked(usize::from(length)) else { return false };
        if trim(class) == IPXE {
            return true;
        }
        rest = tail;
    }
    false
}
