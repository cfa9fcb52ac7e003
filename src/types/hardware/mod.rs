//! Hardware as firmware and Linux name it.
//!
//! | module | content |
//! | --- | --- |
//! | `mac` | Ethernet addresses |
//! | `uuid` | SMBIOS system UUIDs |
//! | `arch` | processor architectures, and DHCP option 93 |
//! | `vfio` | PCI addresses, and selectors of PCI functions for VFIO |

pub(crate) mod arch;
pub(crate) mod mac;
pub(crate) mod uuid;
pub(crate) mod vfio;
