//! Client architectures (option 93) and their loaders.

/// How firmware downloads its loader.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LoaderTransport {
    /// By TFTP, from a file name.
    Tftp,
    /// By HTTP, from a URL.
    Http,
}

/// One client architecture.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ArchEntry {
    /// The value of option 93 in the IANA registry "Processor Architecture Types" (RFC 5970).
    pub(crate) arch: u16,
    /// Name for messages.
    pub(crate) name: &'static str,
    pub(crate) transport: LoaderTransport,
    /// File names of loaders; the first available one is used.
    pub(crate) loaders: &'static [&'static str],
}

impl ArchEntry {
    /// Returns true if the loaders need the services of a BIOS.
    pub(crate) fn is_bios(&self) -> bool {
        self.loaders == BIOS
    }
}

/// `snponly` and `undionly` use the network driver of the firmware, so they work with every NIC
/// that the firmware boots from. The second loader contains drivers, for firmware whose own driver
/// does not work.
const BIOS: &[&str] = &["undionly.kpxe", "ipxe.pxe"];
const IA32: &[&str] = &["snponly-i386.efi", "ipxe-i386.efi"];
const X64: &[&str] = &["snponly.efi", "ipxe.efi"];
const ARM32: &[&str] = &["snponly-arm32.efi", "ipxe-arm32.efi"];
const ARM64: &[&str] = &["snponly-arm64.efi", "ipxe-arm64.efi"];
const RISCV32: &[&str] = &["snponly-riscv32.efi", "ipxe-riscv32.efi"];
const RISCV64: &[&str] = &["snponly-riscv64.efi", "ipxe-riscv64.efi"];

const fn row(
    arch: u16,
    name: &'static str,
    transport: LoaderTransport,
    loaders: &'static [&'static str],
) -> ArchEntry {
    ArchEntry { arch, name, transport, loaders }
}

/// All architectures with a loader. meshd ships no loader for the missing values.
pub(crate) const ARCHITECTURES: [ArchEntry; 20] = [
    row(0, "BIOS", LoaderTransport::Tftp, BIOS),
    row(6, "UEFI IA32", LoaderTransport::Tftp, IA32),
    row(7, "UEFI x64", LoaderTransport::Tftp, X64),
    row(9, "UEFI x64 (as RFC 4578 had it)", LoaderTransport::Tftp, X64),
    row(10, "UEFI arm32", LoaderTransport::Tftp, ARM32),
    row(11, "UEFI arm64", LoaderTransport::Tftp, ARM64),
    row(15, "UEFI IA32 HTTP boot", LoaderTransport::Http, IA32),
    row(16, "UEFI x64 HTTP boot", LoaderTransport::Http, X64),
    row(17, "EBC HTTP boot (firmware of x64)", LoaderTransport::Http, X64),
    row(18, "UEFI arm32 HTTP boot", LoaderTransport::Http, ARM32),
    row(19, "UEFI arm64 HTTP boot", LoaderTransport::Http, ARM64),
    row(20, "BIOS HTTP boot", LoaderTransport::Http, BIOS),
    row(21, "U-Boot arm32", LoaderTransport::Tftp, ARM32),
    row(22, "U-Boot arm64", LoaderTransport::Tftp, ARM64),
    row(23, "U-Boot arm32 HTTP boot", LoaderTransport::Http, ARM32),
    row(24, "U-Boot arm64 HTTP boot", LoaderTransport::Http, ARM64),
    row(25, "UEFI riscv32", LoaderTransport::Tftp, RISCV32),
    row(26, "UEFI riscv32 HTTP boot", LoaderTransport::Http, RISCV32),
    row(27, "UEFI riscv64", LoaderTransport::Tftp, RISCV64),
    row(28, "UEFI riscv64 HTTP boot", LoaderTransport::Http, RISCV64),
];

/// Returns the entry of an architecture.
pub(crate) fn arch_entry(arch: u16) -> Option<&'static ArchEntry> {
    ARCHITECTURES.iter().find(|row| row.arch == arch)
}

/// Returns the file names of all loaders.
pub fn loader_names() -> impl Iterator<Item = &'static str> {
    ARCHITECTURES.iter().flat_map(|row| row.loaders).copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn architecture_table_is_sorted_unique_and_loaders_match_firmware() {
        for (index, row) in ARCHITECTURES.iter().enumerate() {
            assert!(
                ARCHITECTURES[..index].iter().all(|other| other.arch < row.arch),
                "{}",
                row.name
            );
            let bios = row.name.starts_with("BIOS");
            assert_eq!(row.is_bios(), bios, "{}", row.name);
            assert_eq!(
                row.transport == LoaderTransport::Http,
                row.name.contains("HTTP boot"),
                "{}",
                row.name
            );
            assert!(
                row.loaders.iter().all(|loader| loader.ends_with(".efi") != bios),
                "{}",
                row.name
            );
            let short = |loader: &&str| loader.len() < 64;
            assert!(
                row.loaders.iter().all(short),
                "it fits the header's file field, which is all that U-Boot reads"
            );
        }
    }
}
