//! The admin API as types: routes with their request and response bodies, shared by the server, the command line, the web UI
//! and tests. The OpenAPI document is generated from them.
//!
//! | module | what it holds |
//! | --- | --- |
//! | `access` | API tokens, enrolment tokens, roots of the certificate authority |
//! | `catalog` | images, overlays, volumes |
//! | `dhcp` | segments and leases |
//! | `event` | events, lines of the audit log |
//! | `node` | a node in a listing, everything of one, and its boots |
//! | `order` | orders about nodes and profiles, and short answers |
//! | `profile` | a profile with everything that it inherits |
//! | `routes` | the routes, and the OpenAPI document |
//! | `search` | what a search found |
//! | `slot` | slots |
//! | `status` | the central node at a glance, unfinished operations, health findings, the body of a refusal |
//! | `task` | tasks and their output |
//! | `vm` | virtual machines |
//!
//! Values are JSON; times are RFC 3339 in UTC, sizes are bytes unless a field says otherwise.

mod access;
mod catalog;
mod dhcp;
mod event;
mod node;
mod order;
mod profile;
pub mod routes;
mod search;
mod slot;
mod status;
mod task;
mod vm;

pub use access::{
    ApiTokenView, CreateApiToken, CreateToken, CreatedApiToken, CreatedToken, RootView, RotateCa, TokenView,
};
pub use catalog::{
    ImageView, OverlayDetail, OverlayFileView, OverlaySourceView, OverlayView, VariableView, VolumeView,
};
pub use dhcp::{LeaseView, OtherServerView, SegmentView};
pub use event::{AuditView, EventView};
pub use node::{BootSummary, BootView, NodeDetail, NodeView, StageView, TimelineView};
pub use order::{
    AcceptNic, Approve, AssignProfile, BootOnce, BulkDone, BulkNode, BulkRequest, BulkTarget, ChangeLabels, ChangeVars,
    DiffView, DoctorView, Drain, DrainPolicy, Fence, GenerationView, MakeBackup, Pin, ReloadView, Rename, Replace,
    Replaced, RevisionDiffView, RevisionView, Rollback,
};
pub use profile::{ProfileView, SettingView};
pub use search::{SearchHit, SearchView};
pub use slot::{ApproveSlot, SlotView};
pub use status::{CallerView, ErrorView, Finding, OperationView, OperationsView, Status, StatusView, UnitCount};
pub use task::{BootLogLine, RunTask, TaskNode, TaskOutput, TaskView};
pub use vm::{CreateVm, DeleteVm, TemplateView, VmView};

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};

/// Header of a request: why it is made, in UTF-8.
pub const REASON_HEADER: &str = "x-reason";
/// Header of a request: `true` if virtual machines may be lost by it.
pub const FORCE_HEADER: &str = "x-force";
/// Header of a request: an order with a key that was used before is answered again, not done again.
pub const KEY_HEADER: &str = "idempotency-key";
/// Header of an answer that was given before.
pub const REPLAYED_HEADER: &str = "idempotency-replayed";
/// Header of every answer: what finds the request in log, events and audit log.
pub const CORRELATION_HEADER: &str = "x-correlation-id";
/// Header of a rendered overlay: the generation that it belongs to.
pub const GENERATION_HEADER: &str = "x-meshd-generation";
/// Header of a rendered overlay: the profile that it was rendered for.
pub const PROFILE_HEADER: &str = "x-meshd-profile";
/// Header of a page of a list: the value of `after` for the next page. Absent on the last page.
pub const CURSOR_HEADER: &str = "x-next-cursor";
/// Header of a page of a list: rows of all pages.
pub const TOTAL_HEADER: &str = "x-total-count";

/// Characters that stand for themselves (RFC 3986, 2.3).
const UNRESERVED: AsciiSet = NON_ALPHANUMERIC.remove(b'-').remove(b'_').remove(b'.').remove(b'~');

/// A text as a segment of a path or as a value of a query: names may hold anything that an operator types.
pub fn segment(text: &str) -> String {
    let out = utf8_percent_encode(text, &UNRESERVED).to_string();
    // A path of dots would name another route.
    if out.chars().all(|c| c == '.') { out.replace('.', "%2E") } else { out }
}
