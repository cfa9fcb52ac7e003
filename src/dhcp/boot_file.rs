//! Chooses the boot file of a client.

use crate::{
    client_arch::{ArchEntry, LoaderTransport, arch_entry},
    packet::{ClientKind, ClientMessage, VendorClass},
};
use meshd_types::ClientArch;
use std::{collections::BTreeSet, net::Ipv4Addr};

/// The boot file of a client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BootFile {
    /// Nothing: the client is an operating system or a VM.
    None,
    /// A file name, for TFTP.
    Tftp(&'static str),
    /// A URL, for firmware with HTTP boot.
    Http(String),
    /// The URL of the first script of iPXE.
    Script(String),
    /// There is no loader for this client.
    Missing(NoLoader),
}

/// Why there is no boot file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum NoLoader {
    /// Nothing is known to boot on the architecture of the client, or the client names none.
    UnknownArch {
        /// The class of the client.
        class: VendorClass,
        /// Option 93, or the value in the text of option 60.
        arch: Option<ClientArch>,
    },
    /// None of its loaders is among [`BootSources::loaders`].
    Absent {
        /// The name of the architecture.
        firmware: &'static str,
        /// The preferred loader.
        loader: &'static str,
    },
}

/// The boot files that can be served.
#[derive(Clone, Debug)]
pub struct BootSources {
    /// Port of the HTTP server.
    pub http_port: u16,
    /// File names of the available loaders.
    pub loaders: BTreeSet<String>,
}

impl BootSources {
    /// Returns the boot file of a client with the boot server `server`. iPXE always gets the
    /// script: with its own program again it would loop forever.
    pub(crate) fn boot_file(&self, request: &ClientMessage, server: Ipv4Addr) -> BootFile {
        match request.client {
            ClientKind::Other => BootFile::None,
            // Quirk::LoopsIntoItself
            ClientKind::Ipxe => BootFile::Script(self.url(server, "boot.ipxe")),
            ClientKind::Firmware => self.loader(request, server),
        }
    }

    fn loader(&self, request: &ClientMessage, server: Ipv4Addr) -> BootFile {
        let class = request.vendor.unwrap_or(VendorClass::Pxe);
        let row = request.arch.and_then(|arch| arch_entry(arch.0));
        // U-Boot on x86 says that it is a BIOS, but cannot run programs of one.
        let runs = |row: &&ArchEntry| class != VendorClass::UBoot || !row.is_bios();
        let Some(row) = row.filter(runs) else {
            return BootFile::Missing(NoLoader::UnknownArch { class, arch: request.arch });
        };
        let Some(loader) =
            row.loaders.iter().copied().find(|loader| self.loaders.contains(*loader))
        else {
            let first = row.loaders.first().copied().unwrap_or_default();
            return BootFile::Missing(NoLoader::Absent { firmware: row.name, loader: first });
        };
        // An HTTPClient cannot use a file name, whatever its option 93 contains
        // (Quirk::HttpByClassOnly).
        if row.transport == LoaderTransport::Http || class == VendorClass::Http {
            return BootFile::Http(self.url(server, &format!("loader/{loader}")));
        }
        BootFile::Tftp(loader)
    }

    fn url(&self, server: Ipv4Addr, path: &str) -> String {
        format!("http://{server}:{}/{path}", self.http_port)
    }
}
