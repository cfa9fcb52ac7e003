//! Processor architectures, and the client architecture of DHCP option 93.

use std::{fmt, str::FromStr};

/// Architecture of a kernel, in the spelling of Alpine and Linux.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Arch {
    /// 64-bit x86.
    X86_64,
    /// 64-bit ARM.
    Aarch64,
    /// 64-bit RISC-V.
    Riscv64,
}

impl Arch {
    const ALL: [Arch; 3] = [Arch::X86_64, Arch::Aarch64, Arch::Riscv64];

    /// Parses iPXE's `${buildarch}`. `i386` means x86-64, because `undionly.kpxe` is always built for `i386`.
    pub fn from_ipxe(buildarch: &str) -> Option<Self> {
        match buildarch {
            "i386" | "x86_64" => Some(Arch::X86_64),
            "arm64" => Some(Arch::Aarch64),
            "riscv64" => Some(Arch::Riscv64),
            _ => None,
        }
    }
}

impl fmt::Display for Arch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Arch::X86_64 => "x86_64",
            Arch::Aarch64 => "aarch64",
            Arch::Riscv64 => "riscv64",
        })
    }
}

impl FromStr for Arch {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let known = Arch::ALL.into_iter().find(|arch| arch.to_string() == text);
        known.ok_or_else(|| format!("`{text}` is not an architecture; known: x86_64, aarch64, riscv64"))
    }
}

crate::serde_as_text!(Arch);

/// The received value of DHCP option 93, from the IANA registry "Processor Architecture Types" (RFC 5970).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize, serde::Deserialize)]
pub struct ClientArch(pub u16);

impl ClientArch {
    /// Legacy BIOS; also assumed for a client without option 93.
    pub const BIOS: ClientArch = ClientArch(0);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_round_trips() {
        for arch in Arch::ALL {
            assert_eq!(arch.to_string().parse(), Ok(arch));
        }
    }
}
