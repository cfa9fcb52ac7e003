//! The boot API over HTTP: scripts, images and overlays for machines without credentials.
//!
//! | route | answer |
//! | --- | --- |
//! | `GET /boot.ipxe` | the entry script, equal for all machines |
//! | `GET /boot/failed?session=..&reason=..` | empty; records why `mesh-init` or stage 1 refused to start a node |
//! | `GET /boot/script?mac=..` | the machine's boot script or a refusal; always a script with status 200 |
//! | `GET /blob/<digest>/<part>` | kernel, initramfs, packages, modloop: first from memory, then by `sendfile`; with ranges, immutable |
//! | `GET /overlay/<capability>/<file>` | an overlay, once |
//! | `GET /loader/<file>` | iPXE for UEFI HTTP boot |
//! | `GET /healthz` | `ok` |
//!
//! There are no other routes and no redirects. Headers that a client could forge
//! (`X-Forwarded-For`) are ignored: the source address of the connection identifies the machine.
//! Logs contain routes, never paths, because paths contain capabilities.
//!
//! | module | content |
//! | --- | --- |
//! | `server` | accepts and limits connections |
//! | `routes` | the routes and their responses |
//! | `request_rate` | requests per second of a client |
//! | `backend` | calls of the routes to the central node |
//! | `blob` | names and ranges of blobs |
//! | `fetched_ranges` | fetches that were interrupted and continued |
//! | `blob_files` | blobs as unnamed files, for `sendfile` |
//! | `body` | response bodies that report when they are sent |
//! | `sendfile_writer` | the socket of a connection: `sendfile`, timeouts, completions |
//! | `fuzz_invariants` | runs arbitrary requests against the routes; used by fuzz targets |

mod blob;
mod body;
mod fuzz_invariants;
mod sendfile_writer;
mod backend;
mod request_rate;
mod routes;
mod server;
mod blob_files;
mod fetched_ranges;
#[cfg(test)]
mod tests;

pub use backend::{BootBackend, Transfer};
pub use fuzz_invariants::check_invariants;
pub use server::{Limits, run};
