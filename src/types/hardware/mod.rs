//! Hardware as firmware and Linux name it.
//!
//! | module | content |
//! | --- | --- |
//! | `bmc` | management controllers: protocols, requests, power states |
//! | `mac` | Ethernet addresses |
//! | `uuid` | SMBIOS system UUIDs |
//! | `client_arch` | DHCP option 93 |
//! | `vfio` | PCI addresses, and selectors of PCI functions for VFIO |

pub(crate) mod bmc;
pub(crate) mod client_arch;
pub(crate) mod mac;
pub(crate) mod uuid;
pub(crate) mod vfio;
