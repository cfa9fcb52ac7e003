//! Hardware as firmware and Linux name it.
//!
//! | module | content |
//! | --- | --- |
//! | `bmc` | management controllers: protocols, requests, power states |
//! | `mac` | Ethernet addresses |
//! | `uuid` | SMBIOS system UUIDs |
//! | `client_arch` | DHCP option 93 |
//! | `relay_id` | IDs of switch ports that DHCP relays report |
//! | `vfio` | PCI addresses, and selectors of PCI functions for VFIO |

pub(crate) mod bmc;
pub(crate) mod client_arch;
pub(crate) mod mac;
pub(crate) mod relay_id;
pub(crate) mod uuid;
pub(crate) mod vfio;
