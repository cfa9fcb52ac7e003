//! What firmware is there, what it loads first, and where it departs from the RFCs. Two tables, nothing else.

/// How firmware fetches its first program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fetch {
    /// A file name, by TFTP.
    Tftp,
    /// A URL.
    Http,
}

/// One value of option 93.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Firmware {
    /// The value, as the IANA registry "Processor Architecture Types" has it (RFC 5970).
    pub(super) arch: u16,
    /// For people.
    pub(super) name: &'static str,
    pub(super) fetch: Fetch,
    /// File names in `[boot].loaders_dir`; the first one that is there is used.
    pub(super) loaders: &'static [&'static str],
}

/// `snponly` and `undionly` use the firmware's own network driver, so they work on every card that the firmware booted from;
/// the other one brings drivers, and is there for the firmware whose own does not work.
const BIOS: &[&str] = &["undionly.kpxe", "ipxe.pxe"];
const IA32: &[&str] = &["snponly-i386.efi", "ipxe-i386.efi"];
const X64: &[&str] = &["snponly.efi", "ipxe.efi"];
const ARM32: &[&str] = &["snponly-arm32.efi", "ipxe-arm32.efi"];
const ARM64: &[&str] = &["snponly-arm64.efi", "ipxe-arm64.efi"];
const RISCV32: &[&str] = &["snponly-riscv32.efi", "ipxe-riscv32.efi"];
const RISCV64: &[&str] = &["snponly-riscv64.efi", "ipxe-riscv64.efi"];

const fn row(arch: u16, name: &'static str, fetch: Fetch, loaders: &'static [&'static str]) -> Firmware {
    Firmware { arch, name, fetch, loaders }
}

/// Every firmware that there is a loader for. The values that are missing are processors that iPXE does not know.
pub(super) const FIRMWARE: [Firmware; 20] = [
    row(0, "BIOS", Fetch::Tftp, BIOS),
    row(6, "UEFI IA32", Fetch::Tftp, IA32),
    row(7, "UEFI x64", Fetch::Tftp, X64),
    row(9, "UEFI x64 (as RFC 4578 had it)", Fetch::Tftp, X64),
    row(10, "UEFI arm32", Fetch::Tftp, ARM32),
    row(11, "UEFI arm64", Fetch::Tftp, ARM64),
    row(15, "UEFI IA32 HTTP boot", Fetch::Http, IA32),
    row(16, "UEFI x64 HTTP boot", Fetch::Http, X64),
    row(17, "UEFI x64 HTTP boot (as RFC 4578 had it)", Fetch::Http, X64),
    row(18, "UEFI arm32 HTTP boot", Fetch::Http, ARM32),
    row(19, "UEFI arm64 HTTP boot", Fetch::Http, ARM64),
    row(20, "BIOS HTTP boot", Fetch::Http, BIOS),
    row(21, "U-Boot arm32", Fetch::Tftp, ARM32),
    row(22, "U-Boot arm64", Fetch::Tftp, ARM64),
    row(23, "U-Boot arm32 HTTP boot", Fetch::Http, ARM32),
    row(24, "U-Boot arm64 HTTP boot", Fetch::Http, ARM64),
    row(25, "UEFI riscv32", Fetch::Tftp, RISCV32),
    row(26, "UEFI riscv32 HTTP boot", Fetch::Http, RISCV32),
    row(27, "UEFI riscv64", Fetch::Tftp, RISCV64),
    row(28, "UEFI riscv64 HTTP boot", Fetch::Http, RISCV64),
];

/// The row of a value.
pub(super) fn firmware(arch: u16) -> Option<&'static Firmware> {
    FIRMWARE.iter().find(|row| row.arch == arch)
}

/// All file names that the table may ask for.
pub fn loader_names() -> impl Iterator<Item = &'static str> {
    FIRMWARE.iter().flat_map(|row| row.loaders).copied()
}

/// Where firmware departs from the RFCs, or asks for more than they do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Quirk {
    /// Its user class is not a list of length-prefixed names.
    BareUserClass,
    /// Its user class is such a list, and its name may stand behind others.
    ListedUserClass,
    /// Given its own program again it starts it again.
    LoopsIntoItself,
    /// There is no option 97.
    NoUuid,
    /// Option 97 is not a type and 16 bytes.
    OddUuid,
    /// There is no option 93; the value stands in the text of option 60.
    ArchInClass,
    /// There is no option 93 at all.
    NoArch,
    /// Option 93 holds several values.
    SeveralArchs,
    /// It says HTTPClient and a value that means TFTP.
    HttpByClassOnly,
    /// It takes a URL only from a server that calls itself HTTPClient.
    UrlNeedsClass,
    /// It takes an answer without an address only from a server that calls itself PXEClient.
    ProxyNeedsClass,
    /// Without option 43 it looks for boot servers by broadcast and multicast before it takes the file.
    LooksForBootServers,
    /// Any option 43 sends it into the boot menu of PXE.
    StumblesOverMenu,
    /// It reads the BOOTP header and none of the options.
    HeaderOnly,
    /// What is shorter than a BOOTP packet is no packet to it.
    NoShortReply,
    /// Unless it is told that there is none, it waits seconds for a proxy's offer.
    WaitsForProxy,
    /// It asks port 4011 from a port of its own choice and listens there.
    AsksProxyFromAnyPort,
}

/// Which firmware a quirk was seen in, and what is done about it. `tests::quirks` shows each one.
pub const QUIRKS: [(Quirk, &str, &str); 17] = [
    (Quirk::BareUserClass, "iPXE, all versions", "option 77 `iPXE` is read as one name"),
    (
        Quirk::ListedUserClass,
        "iPXE behind relays that add a class; Windows",
        "each name of the list of RFC 3004 is read",
    ),
    (Quirk::LoopsIntoItself, "iPXE", "by its user class it gets the script, whatever its option 93 says"),
    (Quirk::NoUuid, "ROMs of old NICs, U-Boot", "the machine is known by its MAC address"),
    (Quirk::OddUuid, "ROMs that send 16 bytes without a type", "it is no identity, and goes back as it came"),
    (Quirk::ArchInClass, "HTTP clients of some boards", "`:Arch:00016:` of option 60 is read"),
    (Quirk::NoArch, "PXE 1.0 ROMs", "they are BIOS machines"),
    (Quirk::SeveralArchs, "firmware that lists what it can run (RFC 4578, 2.1)", "the first one with a row is taken"),
    (Quirk::HttpByClassOnly, "UEFI that keeps option 93 = 7 in HTTP boot", "option 60 decides: a URL"),
    (Quirk::UrlNeedsClass, "OVMF and all of EDK II", "option 60 `HTTPClient` goes back with the URL"),
    (Quirk::ProxyNeedsClass, "OVMF, iPXE", "option 60 `PXEClient` goes back from a proxy"),
    (Quirk::LooksForBootServers, "BIOS ROMs of Intel and Broadcom", "option 43 = 06 01 08 ff from a proxy"),
    (Quirk::StumblesOverMenu, "EDK II before 2019 on servers of several makers", "no option 43 for UEFI"),
    (Quirk::HeaderOnly, "U-Boot", "file and server stand in the header too; its class is no PXEClient"),
    (Quirk::NoShortReply, "BOOTP ROMs and relays (RFC 1542, 2.1)", "answers are padded to 300 bytes"),
    (Quirk::WaitsForProxy, "iPXE (3 to 5 s, build of 2019)", "option 175 says no-pxedhcp where meshd leases"),
    (Quirk::AsksProxyFromAnyPort, "OVMF (from 4011), iPXE (from 68)", "the answer goes to the port that asked"),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_has_a_row_for_each_value_once_and_names_a_loader_of_the_right_kind() {
        for (place, row) in FIRMWARE.iter().enumerate() {
            assert!(FIRMWARE[..place].iter().all(|other| other.arch < row.arch), "{}", row.name);
            let bios = row.name.starts_with("BIOS");
            assert_eq!(row.fetch == Fetch::Http, row.name.contains("HTTP boot"), "{}", row.name);
            assert!(row.loaders.iter().all(|loader| loader.ends_with(".efi") != bios), "{}", row.name);
            let short = |loader: &&str| loader.len() < 64;
            assert!(row.loaders.iter().all(short), "it fits the header's file field, which is all that U-Boot reads");
        }
    }
}
