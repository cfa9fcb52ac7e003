//! Which program does a machine load first? One table, by DHCP option 93.

use super::request::{Request, Vendor};
use crate::fleet::Exchange;
use crate::id::ClientArch;
use std::{collections::BTreeSet, net::Ipv4Addr};

/// How the firmware fetches its loader.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fetch {
    Tftp,
    Http,
}

/// A value of option 93, the firmware that sends it, how it fetches, and the loader for it.
///
/// `snponly` uses the firmware's own network driver, so it works on every card that the firmware booted from.
const LOADERS: [(u16, &str, Fetch, &str); 8] = [
    (0, "BIOS", Fetch::Tftp, "undionly.kpxe"),
    (7, "UEFI x64 (as every x64 firmware says it)", Fetch::Tftp, "snponly.efi"),
    (9, "UEFI x64 (as registered)", Fetch::Tftp, "snponly.efi"),
    (11, "UEFI arm64", Fetch::Tftp, "snponly-arm64.efi"),
    (16, "UEFI x64 HTTP boot", Fetch::Http, "snponly.efi"),
    (19, "UEFI arm64 HTTP boot", Fetch::Http, "snponly-arm64.efi"),
    (27, "UEFI riscv64", Fetch::Tftp, "snponly-riscv64.efi"),
    (28, "UEFI riscv64 HTTP boot", Fetch::Http, "snponly-riscv64.efi"),
];

/// What a client is told to boot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BootFile {
    /// An operating system boots nothing.
    None,
    /// A file, by TFTP from the server.
    Tftp(String),
    /// A URL, which firmware for HTTP boot takes only with option 60 `HTTPClient`.
    Http(String),
    /// The entry script of iPXE.
    Script(String),
    /// No loader for this machine: why not.
    Missing(NoLoader),
}

/// Why a machine gets no boot file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum NoLoader {
    /// Option 93 has a value that is not in the table.
    UnknownArch(ClientArch),
    /// The loader for it was not in `[boot].loaders_dir` when meshd started.
    Absent {
        /// The machine.
        firmware: &'static str,
        /// The file.
        loader: &'static str,
    },
}

/// Where clients find meshd, and which loaders it has.
#[derive(Clone, Debug)]
pub struct Sources {
    /// The address that clients are told.
    pub address: Ipv4Addr,
    /// Port of the boot plane over HTTP.
    pub http_port: u16,
    /// Names of the loaders that can be served.
    pub loaders: BTreeSet<String>,
}

/// All file names that the table may ask for.
pub fn loader_names() -> impl Iterator<Item = &'static str> {
    LOADERS.iter().map(|(_, _, _, loader)| *loader)
}

impl Sources {
    /// Chooses. iPXE gets the script, always: giving it iPXE again would go round for ever.
    pub fn boot_file(&self, request: &Request) -> BootFile {
        match request.exchange {
            Exchange::Os => BootFile::None,
            Exchange::Ipxe => BootFile::Script(self.url("boot.ipxe")),
            Exchange::Firmware => self.loader(request),
        }
    }

    fn loader(&self, request: &Request) -> BootFile {
        let arch = request.boot_arch();
        let row = LOADERS.iter().find(|(value, ..)| *value == arch.0);
        let Some(&(_, firmware, fetch, loader)) = row else { return BootFile::Missing(NoLoader::UnknownArch(arch)) };
        if !self.loaders.contains(loader) {
            return BootFile::Missing(NoLoader::Absent { firmware, loader });
        }
        match fetch {
            Fetch::Http => BootFile::Http(self.url(&format!("loader/{loader}"))),
            // A client that says HTTPClient can do nothing with a file name, whatever its option 93 says.
            Fetch::Tftp if request.vendor == Some(Vendor::Http) => {
                BootFile::Http(self.url(&format!("loader/{loader}")))
            }
            Fetch::Tftp => BootFile::Tftp(loader.to_owned()),
        }
    }

    fn url(&self, path: &str) -> String {
        format!("http://{}:{}/{path}", self.address, self.http_port)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::id::Firmware;

    #[test]
    fn the_table_and_the_registry_of_option_93_agree() {
        for (value, firmware, fetch, loader) in LOADERS {
            let (kind, _) = ClientArch(value).meaning().expect("a value that the vocabulary knows");
            assert_eq!(fetch == Fetch::Http, kind == Firmware::UefiHttp, "{firmware}");
            assert_eq!(loader.ends_with(".kpxe"), kind == Firmware::Bios, "{firmware}");
        }
    }
}
