//! One module for each section of `site.toml`.
//!
//! | module | sections |
//! | --- | --- |
//! | `segment` | `[net]` with `[dhcp]`, and `[[segment]]`: the networks on which machines boot |
//! | `dhcp` | the keys of `[dhcp]` and of each `[[segment]]` |
//! | `dhcp_reservation` | `[[reservation]]`: fixed addresses |
//! | `enroll` | `[enroll]` and `[identity]`: admission of machines |
//! | `profiles` | `[profiles.*]`, with inheritance |
//! | `groups` | `[groups.*]` |
//! | `vars` | `vars = { name = value }` of profiles and groups |
//! | `power` | `[power]`: requests to BMCs, and their users |
//! | `programs` | `[programs.*]`: programs that rollouts and bisections run |
//! | `secrets` | `[secrets]`: the file of each secret |
//! | `vms` | `[vms]`: addresses, rules and templates of VMs |
//! | `admin` | `[admin]`, `[admin.https]` and `[process]` |
//! | `metrics` | `[metrics]` |
//! | `name_pattern` | names of nodes by rule: `gpu{rack}-{n:03}` |

pub(crate) mod admin;
pub(crate) mod dhcp;
pub(crate) mod dhcp_reservation;
pub(crate) mod enroll;
pub(crate) mod groups;
pub(crate) mod metrics;
pub(crate) mod name_pattern;
pub(crate) mod power;
pub(crate) mod profiles;
pub(crate) mod programs;
pub(crate) mod secrets;
pub(crate) mod segment;
pub(crate) mod vars;
pub(crate) mod vms;
