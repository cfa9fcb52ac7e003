//! Kernel modules: those that stage 1 needs, and those of the devices of this machine.
//!
//! | module | content |
//! | --- | --- |
//! | `pattern` | shell patterns of `modules.alias`: pure |
//! | `index` | `modules.dep` and `modules.alias` of a kernel release, and the order of dependencies: pure |
//! | `devices` | modaliases of devices in sysfs |
//! | `loader` | loads modules once |

mod pattern;
mod index;
mod devices;
mod loader;

pub use devices::{NicDevice, modaliases, network_devices};
pub use index::{ModuleFile, ModuleIndex};
pub use loader::ModuleLoader;
pub use pattern::matches;
