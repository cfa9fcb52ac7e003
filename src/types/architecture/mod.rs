//! Processor architectures. The text and numbers of one architecture are in its file, and nowhere
//! else.
//!
//! | module | content |
//! | --- | --- |
//! | `facts` | the type of the facts |
//! | `x86_64`, `aarch64`, `riscv64` | the facts of one architecture |

mod aarch64;
mod facts;
mod riscv64;
mod x86_64;

pub use facts::{ArchitectureFacts, UefiFirmware};

use crate::ParseError;
use std::{fmt, str::FromStr};

/// Architecture of a machine and of the programs that run on it, in the spelling of Alpine and
/// Linux.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Architecture {
    /// 64-bit x86.
    X86_64,
    /// 64-bit ARM.
    Aarch64,
    /// 64-bit RISC-V.
    Riscv64,
}

impl Architecture {
    /// All architectures.
    pub const ALL: [Architecture; 3] =
        [Architecture::X86_64, Architecture::Aarch64, Architecture::Riscv64];

    /// The architecture that this program is built for; `None` if meshd does not know it.
    pub fn host() -> Option<Self> {
        std::env::consts::ARCH.parse().ok()
    }

    /// Returns what differs between architectures.
    pub fn facts(self) -> &'static ArchitectureFacts {
        match self {
            Architecture::X86_64 => &x86_64::FACTS,
            Architecture::Aarch64 => &aarch64::FACTS,
            Architecture::Riscv64 => &riscv64::FACTS,
        }
    }

    /// Parses iPXE's `${buildarch}`.
    pub fn from_ipxe(buildarch: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|known| known.facts().ipxe_names.contains(&buildarch))
    }

    /// Returns the architecture of an ELF program by its `e_machine`.
    pub fn from_elf(machine: u16) -> Option<Self> {
        Self::ALL.into_iter().find(|known| known.facts().elf_machine == machine)
    }
}

impl fmt::Display for Architecture {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.facts().name)
    }
}

impl FromStr for Architecture {
    type Err = ParseError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let known = Architecture::ALL.into_iter().find(|known| known.facts().name == text);
        let names = || Architecture::ALL.map(|known| known.facts().name).join(", ");
        let error = || {
            ParseError::of_text(text, "is not an architecture", format!("use one of {}", names()))
        };
        known.ok_or_else(error)
    }
}

crate::serde_as_text!(Architecture);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn architecture_round_trips_as_text_and_in_elf_files() {
        for architecture in Architecture::ALL {
            assert_eq!(architecture.to_string().parse(), Ok(architecture));
            assert_eq!(
                Architecture::from_elf(architecture.facts().elf_machine),
                Some(architecture)
            );
            for name in architecture.facts().ipxe_names {
                assert_eq!(Architecture::from_ipxe(name), Some(architecture));
            }
        }
        assert_eq!((Architecture::from_elf(0), Architecture::from_ipxe("arm32")), (None, None));
        let error = "vax".parse::<Architecture>().unwrap_err();
        assert_eq!(
            error.to_string(),
            "`vax` is not an architecture; use one of x86_64, aarch64, riscv64"
        );
    }
}
