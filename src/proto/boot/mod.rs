//! What a node is given at boot.
//!
//! | module | content |
//! | --- | --- |
//! | `agent_config` | the agent's configuration in an overlay: a public part, and a small part for one boot |
//! | `mesh_init` | the configuration of mesh-init, the first program of a node with an Alpine image |
//! | `stage1` | the configuration of stage 1, the first program of a node with an image of kind `root` |
//! | `warm_boot` | a boot that the running agent fetches and starts by kexec |

mod agent_config;
pub mod mesh_init;
pub mod stage1;
pub mod warm_boot;

pub use agent_config::{
    AGENT_CONFIG_FILE, AgentConfig, BOOT_FILE, BootPart, CHECKS, CheckPolicy, CheckRule,
    Thresholds, Ticket, VOLUMES_CHECK,
};
