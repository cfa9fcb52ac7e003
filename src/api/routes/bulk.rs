//! Routes of orders for several nodes. The field `order` of a request is the body of the same order
//! for one node.

use super::{Object, Post, route::routes};
use crate::{BulkDone, BulkRequest};
use meshd_model::fleet::Verb;

/// Route of an order for several nodes.
pub type BulkPost = Post<Object<BulkRequest>, Object<BulkDone>>;

routes! {
    APPROVE_NODES: BulkPost =
        Post::new("/v1/bulk/nodes/approve", Verb::Approve, "Approve several nodes");
    REJECT_NODES: BulkPost =
        Post::new("/v1/bulk/nodes/reject", Verb::Reject, "Reject several nodes");
    QUARANTINE_NODES: BulkPost =
        Post::new("/v1/bulk/nodes/quarantine", Verb::Quarantine, "Quarantine several nodes");
    RELEASE_NODES: BulkPost =
        Post::new("/v1/bulk/nodes/release", Verb::Release, "Release several nodes from quarantine");
    DRAIN_NODES: BulkPost =
        Post::new("/v1/bulk/nodes/drain", Verb::Drain, "Drain several nodes");
    START_NODES_MAINTENANCE: BulkPost =
        Post::new("/v1/bulk/nodes/maintenance", Verb::Maintenance, "Put several nodes into maintenance");
    RESUME_NODES: BulkPost =
        Post::new("/v1/bulk/nodes/resume", Verb::Resume, "Return several nodes to service");
    REMOVE_NODES: BulkPost =
        Post::new("/v1/bulk/nodes/remove", Verb::Remove, "Remove several nodes");
    REBOOT_NODES: BulkPost =
        Post::new("/v1/bulk/nodes/reboot", Verb::Reboot, "Reboot several nodes through their agents");
    POWER_NODES: BulkPost =
        Post::new("/v1/bulk/nodes/power", Verb::Power, "Switch several nodes by their BMCs");
    SET_NODES_BOOT_DEVICE: BulkPost = Post::new(
        "/v1/bulk/nodes/boot-device",
        Verb::BootDevice,
        "Set the device of the next boot by the BMCs of several nodes",
    );
    IDENTIFY_NODES: BulkPost = Post::new(
        "/v1/bulk/nodes/identify",
        Verb::Identify,
        "Switch the identification lights of several nodes",
    );
    ASSIGN_NODES_PROFILE: BulkPost =
        Post::new("/v1/bulk/nodes/assign-profile", Verb::AssignProfile, "Assign a profile to several nodes");
    CHANGE_NODES_VARIABLES: BulkPost =
        Post::new("/v1/bulk/nodes/vars", Verb::Vars, "Set and remove variables of several nodes");
    LABEL_NODES: BulkPost =
        Post::new("/v1/bulk/nodes/label", Verb::Label, "Set and remove labels of several nodes");
    PIN_NODES: BulkPost = Post::new(
        "/v1/bulk/nodes/pin",
        Verb::Pin,
        "Pin several nodes to their running generations, or unpin them",
    );
    SET_NODES_BOOT_ONCE: BulkPost = Post::new(
        "/v1/bulk/nodes/boot-once",
        Verb::BootOnce,
        "Set boot options of several nodes for the next boot only",
    );
    RUN_NODES_CHECKS: BulkPost =
        Post::new("/v1/bulk/nodes/doctor", Verb::Doctor, "Run the readiness checks of several nodes now");
}
