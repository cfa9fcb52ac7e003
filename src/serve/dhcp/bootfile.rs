//! What a client is told to boot.

use super::{
    firmware::{Fetch, firmware},
    request::{Request, Vendor},
};
use meshd_model::fleet::DhcpExchange;
use meshd_types::ClientArch;
use std::{collections::BTreeSet, net::Ipv4Addr};

/// What a client is told to boot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BootFile {
    /// An operating system boots nothing.
    None,
    /// A file, by TFTP from the server.
    Tftp(&'static str),
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
    /// No loader for it was in `[boot].loaders_dir` when meshd started.
    Absent {
        /// The machine.
        firmware: &'static str,
        /// The file that is looked for first.
        loader: &'static str,
    },
}

/// What can be fetched from the boot plane.
#[derive(Clone, Debug)]
pub struct Sources {
    /// Its port over HTTP.
    pub http_port: u16,
    /// Names of the loaders that can be served.
    pub loaders: BTreeSet<String>,
}

impl Sources {
    /// Chooses, for a client that is told `server`. iPXE gets the script, always: giving it iPXE again would go round for ever.
    pub fn boot_file(&self, request: &Request, server: Ipv4Addr) -> BootFile {
        match request.exchange {
            DhcpExchange::Os => BootFile::None,
            DhcpExchange::Ipxe => BootFile::Script(self.url(server, "boot.ipxe")),
            DhcpExchange::Firmware => self.loader(request, server),
        }
    }

    fn loader(&self, request: &Request, server: Ipv4Addr) -> BootFile {
        let arch = request.boot_arch();
        let Some(row) = firmware(arch.0) else { return BootFile::Missing(NoLoader::UnknownArch(arch)) };
        let Some(loader) = row.loaders.iter().copied().find(|loader| self.loaders.contains(*loader)) else {
            let first = row.loaders.first().copied().unwrap_or_default();
            return BootFile::Missing(NoLoader::Absent { firmware: row.name, loader: first });
        };
        // A client that says HTTPClient can do nothing with a file name, whatever its option 93 says.
        if row.fetch == Fetch::Http || request.vendor == Some(Vendor::Http) {
            return BootFile::Http(self.url(server, &format!("loader/{loader}")));
        }
        BootFile::Tftp(loader)
    }

    fn url(&self, server: Ipv4Addr, path: &str) -> String {
        format!("http://{server}:{}/{path}", self.http_port)
    }
}
