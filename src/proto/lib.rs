//! Messages between agent and central node, with their limits; both sides use these types.
//!
//! | module | content |
//! | --- | --- |
//! | `boot` | what a node is given at boot: the agent's configuration in an overlay, and that of stage 1 |
//! | `json_element_limit` | counts the elements of untrusted JSON before parsing: a list of empty records takes a hundred times its size in memory |
//! | `container` | containers: desired state and reported state of their replicas |
//! | `disk` | disks of a node that have an owner |
//! | `check` | results of readiness checks: one line for each check, and the outcome of a run |
//! | `enrol` | enrolment and renewal of a node's certificate |
//! | `facts` | facts that a node reports at each connection, read from sysfs and procfs |
//! | `log` | the log of one boot of a node, in pieces |
//! | `task` | tasks: desired state from the central node, reported state from the agent; shells |
//! | `link` | the link: versioned JSON messages over a mutual-TLS WebSocket |
//! | `network` | networks of a node to which VMs attach |
//! | `text` | names that are valid by construction |
//! | `vm` | VMs: capabilities of a node, specification, desired state and reported state |
//!
//! Every first message contains [`VERSION`]. [`OLDEST`] is accepted too and answered with the same
//! number. A field may be added with a default. A changed meaning requires a new version. Unknown
//! fields are ignored, so a newer agent can talk to an older central node.
//!
//! | route | transport | credential | messages |
//! | --- | --- | --- | --- |
//! | [`ENROL_PATH`] | POST, JSON | a boot token | [`EnrolRequest`] -> [`EnrolResponse`], else 401 |
//! | [`PENDING_PATH`] | WebSocket | none; the number of connections is limited | [`PendingHello`], then [`PendingReply`]s |
//! | [`RENEW_PATH`] | POST, JSON | a client certificate, expired or not | [`RenewRequest`] -> [`EnrolResponse`] |
//! | [`LINK_PATH`] | WebSocket | a valid client certificate | [`FromAgent`], [`FromCentral`] |
//! | [`CONSOLE_PATH`] | WebSocket | a valid client certificate, on request of the link: consoles, shells, input of tasks | bytes, [`vm::ConsoleNote`], [`shell::InputNote`] |
//! | [`VOLUMES_PATH`] | GET, with a range | a valid client certificate of a node with a VM that uses the file | bytes |
//! | [`WARM_BOOT_PATH`] | POST, JSON | a valid client certificate, and an order to reboot warm | [`warm_boot::WarmBootRequest`] -> [`warm_boot::WarmBootAnswer`] |
//! | [`WARM_PARTS_PATH`] | GET, with a range | the same | bytes |
//! | [`WARM_OVERLAY_PATH`] | POST, JSON | the same, once for a plan | [`warm_boot::WarmBootStep`] -> bytes |
//! | [`WARM_REPORT_PATH`] | POST, JSON | the same | [`warm_boot::WarmBootReport`] -> `{}` |

/// Implements `as_str`, which returns the serialised name.
macro_rules! serialised_name {
    ($type:ty) => {
        impl $type {
            /// Returns the serialised name.
            pub fn as_str(self) -> &'static str {
                self.into()
            }
        }
    };
}

mod boot;
pub mod json_element_limit;
mod check;
pub mod container;
mod disk;
mod enrol;
mod facts;
pub mod log;
pub mod task;
mod link;
mod network;
mod text;
pub mod vm;

pub use boot::{
    AGENT_CONFIG_FILE, AgentConfig, BOOT_FILE, BootPart, CHECKS, CheckPolicy, CheckRule,
    Thresholds, Ticket, VOLUMES_CHECK, mesh_init, stage1, warm_boot,
};
pub use check::{
    Check, CheckReport, CheckStatus, DoctorReport, LineError, Resources, SERVICES_CHECK,
    blocks_approval, tally,
};
pub use disk::{DiskIdentity, DiskUse};
pub use enrol::{EnrolRequest, EnrolResponse, ErrorBody, PendingHello, PendingReply, RenewRequest};
pub use facts::iommu_units::{
    MAX_MEMBERS, MAX_UNITS, PciFacts, SriovFacts, UnitFacts, UnitKind, UnitState, units_ready,
    whole_node,
};
pub use facts::{
    CpuFacts, DiskFacts, Facts, GpuFacts, MAX_DEVICES, MemoryFacts, MemoryModuleFacts, NicFacts,
    STORE_STEP, SlotFacts, StoreFacts, StoreKind, SystemFacts, Versions,
};
pub use link::{
    ActionId, ActionOrder, ActionOutcome, DRAIN_HOOKS, DrainEntry, DrainOrder, DrainReport,
    FromAgent, FromCentral, Heartbeat, Hello, HookName, HookReport, HookState, MAX_DRAIN_HOOKS,
    MAX_DRAIN_REASON, MAX_HOOK_DETAIL, NodeAction, NodeReport, NodeSpec, Section, SectionReport,
    SpecEntry, Usage, Welcome,
};
pub use network::{InterfaceName, NetworkName, NetworkSpec, PRIVATE_BRIDGE_MAC, Subnet};
pub use task::shell;
pub use vm::{Hosting, HugepageFacts, NumaFacts};

/// Protocol version. Since 2 an agent reports its checks also when nothing has changed.
pub const VERSION: u16 = 2;
/// Oldest supported version: nodes run the agent of their last boot while meshd is upgraded.
pub const OLDEST: u16 = VERSION - 1;

/// Returns true if the version of the peer is supported.
pub fn is_supported_version(version: u16) -> bool {
    let oldest =
        if meshd_types::failpoint::defends("wire-previous-version") { OLDEST } else { VERSION };
    (oldest..=VERSION).contains(&version)
}

/// Enrolment with the one-time token of an overlay.
pub const ENROL_PATH: &str = "/v1/enrol";
/// Connection of a node that waits for approval, server-authenticated.
pub const PENDING_PATH: &str = "/v1/pending";
/// Renewal of a certificate, even when it has expired.
pub const RENEW_PATH: &str = "/v1/renew";
/// The permanent link of an enrolled node.
pub const LINK_PATH: &str = "/v1/link";

/// Console connections of nodes; the console ID follows.
pub const CONSOLE_PATH: &str = "/v1/console";
/// Volume files; the digest follows.
pub const VOLUMES_PATH: &str = "/v1/volumes";
/// The plan of a warm boot.
pub const WARM_BOOT_PATH: &str = "/v1/warm-boot";
/// Kernels and initrds of warm boots; the digest follows.
pub const WARM_PARTS_PATH: &str = "/v1/warm-boot/parts";
/// The overlay of a warm boot.
pub const WARM_OVERLAY_PATH: &str = "/v1/warm-boot/overlay";
/// Begin or failure of a warm boot.
pub const WARM_REPORT_PATH: &str = "/v1/warm-boot/report";

/// DNS name in the certificate of the central node, the same on every site. Agents connect by
/// address.
pub const SERVER_NAME: &str = "central.meshd.internal";

/// Maximum WebSocket message or request body of the agent API in bytes. Facts of a 16-GPU machine
/// take about 60 KB.
pub const MAX_MESSAGE: usize = 512 * 1024;
/// Maximum length of a certificate request in bytes of PEM; a P-256 request takes about 500.
pub const MAX_CSR: usize = 4096;
