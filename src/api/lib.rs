//! The admin API as types: routes with their request and response bodies, shared by the server, the
//! command line, the web UI and tests. The OpenAPI document is generated from them.
//!
//! | module | content |
//! | --- | --- |
//! | `access` | API tokens, enrolment tokens, roots of the certificate authority |
//! | `catalog` | images, overlays, volumes |
//! | `dhcp` | segments, leases and other DHCP servers |
//! | `event` | events and audit records |
//! | `node` | nodes: list entries, details and boot timelines |
//! | `order` | request bodies of orders for nodes and profiles, and their responses |
//! | `profile` | profiles with their inherited values |
//! | `routes` | the routes, and the OpenAPI document |
//! | `search` | results of a search |
//! | `status` | status of the central node, unfinished activities, health findings, time series, error responses |
//! | `work` | VMs, slots, containers and tasks |
//!
//! Values are JSON. Times are RFC 3339 in UTC. Sizes are in bytes unless a field states another
//! unit.

mod access;
mod catalog;
mod dhcp;
mod event;
mod node;
mod order;
mod profile;
pub mod routes;
mod search;
mod status;
mod work;

pub use access::{
    ApiTokenView, CreateApiToken, CreateToken, CreatedApiToken, CreatedToken, RootView, RotateCa,
    TokenView,
};
pub use catalog::{
    ImageView, OverlayDetail, OverlayFileView, OverlaySourceView, OverlayView, VariableView,
    VolumeView,
};
pub use dhcp::{LeaseView, OtherServerView, SegmentView};
pub use event::{AuditView, EventView};
pub use node::{
    BisectionView, BmcEventView, BmcVerb, BootDelayView, BootDeviceOrder, BootStepView,
    BootSummary, BootTimesView, BootView, CancelledOperation, ColdBootView, FirmwareView, Identify,
    ImportMachines, ImportedMachines, MachineView, NodeDetail, NodeOperationView, NodeView,
    OperationView, PowerOrder, PowerView, ProbeView, RemoveMachines, RolloutNodeView, RolloutPlan,
    RolloutView, SensorView, StageView, StartBisection, StartRollout, TaskStep, TimelineView,
    UndoRollout, WarmRebootView, WaveProgress, WaveView, gpus,
};
pub use order::{
    AcceptNic, Approve, AssignProfile, BootOnce, BulkDone, BulkNode, BulkRequest, BulkTarget,
    ChangeVars, DiffView, DoctorView, Drain, Fence, GenerationView, MakeBackup, Pin, Reboot,
    ReloadView, Rename, Replace, Replaced, RevisionDiffView, RevisionView, Rollback,
};
pub use profile::{ProfileView, SettingView};
pub use search::{SearchHit, SearchView};
pub use status::{
    ActivitiesView, ActivityView, CallerView, ErrorView, Finding, ReplicaCount, SeriesPointView,
    SeriesPointsView, SeriesView, Status, StatusView, UnitCount,
};
pub use work::{
    container::{ContainerView, MountVolume, ReplicaView, RunContainer},
    container_options,
    slot::{ApproveSlot, SlotView},
    task::{BootLogLine, RunTask, TaskNode, TaskOutput, TaskView},
    vm::{CreateVm, DeleteVm, TemplateView, VmView},
};

pub use meshd_model::operations::DrainPolicy;

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};

/// Request header: reason for the request, for the audit log, in UTF-8.
pub const REASON_HEADER: &str = "x-reason";
/// Request header: `true` permits an order that loses VMs.
pub const FORCE_HEADER: &str = "x-force";
/// Request header: idempotency key. An order with an earlier key gets the earlier response and is
/// not carried out again.
pub const KEY_HEADER: &str = "idempotency-key";
/// Response header: the response repeats an earlier one with the same idempotency key.
pub const REPLAYED_HEADER: &str = "idempotency-replayed";
/// Response header: ID that identifies the request in log, events and audit log.
pub const CORRELATION_HEADER: &str = "x-correlation-id";
/// Response header of a rendered overlay: the generation of the overlay.
pub const GENERATION_HEADER: &str = "x-meshd-generation";
/// Response header of a rendered overlay: the profile of the overlay.
pub const PROFILE_HEADER: &str = "x-meshd-profile";
/// Response header of a page of a list: the value of `after` for the next page. Absent on the last
/// page.
pub const CURSOR_HEADER: &str = "x-next-cursor";
/// Response header of a page of a list: number of rows of all pages.
pub const TOTAL_HEADER: &str = "x-total-count";

/// Unreserved characters, which need no percent-encoding (RFC 3986, 2.3).
const UNRESERVED: AsciiSet = NON_ALPHANUMERIC.remove(b'-').remove(b'_').remove(b'.').remove(b'~');

/// Percent-encodes a text as a path segment or a query value, because names may contain any
/// character.
pub fn segment(text: &str) -> String {
    let out = utf8_percent_encode(text, &UNRESERVED).to_string();
    // A segment of dots only would change the path (RFC 3986, 5.2.4).
    if out.chars().all(|c| c == '.') { out.replace('.', "%2E") } else { out }
}
