//! Routes of nodes, their generations and their overlays.

use super::{Array, Empty, Get, Gzip, JsonLines, Object, Post, route::routes};
use crate::{
    AcceptNic, Approve, AssignProfile, BmcEventView, BootDeviceOrder, BootLogLine, BootOnce,
    BootTimesView, ChangeVars, DiffView, DoctorView, Drain, Fence, FirmwareView, GenerationView,
    Identify, ImportMachines, ImportedMachines, MachineView, NodeDetail, NodeView, OverlayFileView,
    Pin, PowerOrder, PowerView, Reboot, RemoveMachines, Rename, Replace, Replaced, SearchView,
    SensorView, SeriesPointsView, TimelineView,
};
use meshd_model::fleet::{LabelChange, Verb};
use meshd_trust::Role;

const NODE_PARAMETERS: &[&str] = &[
    "removed",
    "nodes",
    "label",
    "phase",
    "condition",
    "attention",
    "profile",
    "q",
    "sort",
    "fields",
    "limit",
    "after",
];

routes! {
    LIST_NODES: Get<Array<NodeView>> = Get::new("/v1/nodes", "List nodes").query(NODE_PARAMETERS);
    LIST_MACHINES: Get<Array<MachineView>> =
        Get::new("/v1/machines", "List expected machines, also those that have appeared");
    IMPORT_MACHINES: Post<Object<ImportMachines>, Object<ImportedMachines>> = Post::new(
        "/v1/machines/import",
        Verb::MachineImport,
        "Define machines before they boot: all of them, or none if one has a fault",
    );
    REMOVE_MACHINES: Post<Object<RemoveMachines>, Array<MachineView>> =
        Post::new("/v1/machines/remove", Verb::MachineRemove, "Remove expected machines");
    SEARCH: Get<Object<SearchView>> =
        Get::new("/v1/search", "Search nodes, VMs, containers and tasks by ID, name, address, serial number or program").query(&["q"]);
    GET_NODE: Get<Object<NodeDetail>, 1> = Get::new("/v1/nodes/{node}", "Show a node");
    GET_NODE_TIMELINE: Get<Object<TimelineView>, 1> =
        Get::new("/v1/nodes/{node}/timeline", "Show the stages of a boot; the newest boot by default").query(&["session"]);
    GET_NODE_BOOT_TIMES: Get<Object<BootTimesView>, 1> = Get::new(
        "/v1/nodes/{node}/boot-times",
        "Compare the steps of a boot with other boots, and name what costs the time; the newest boot by default",
    )
    .query(&["session"]);
    LIST_NODE_SERIES: Get<Array<SeriesPointsView>, 1> = Get::new(
        "/v1/nodes/{node}/series",
        "Show the time series of a node: a minute for a day, an hour for at most 90 days; the last day by default",
    )
    .query(&["from", "to", "step"]);
    GET_NODE_LOG: Get<JsonLines<BootLogLine>, 1> =
        Get::new("/v1/nodes/{node}/log", "Read kernel messages and system log of a boot; the newest boot by default")
            .query(&["session", "follow", "from"])
            .role(Role::Operator);

    OPEN_NODE_SHELL: Get<Empty, 1> = Get::new(
        "/v1/nodes/{node}/shell",
        "Open a shell of a node as root: a WebSocket; binary frames are bytes, text frames are notes",
    )
    .query(&["rows", "columns", "terminal"])
    .role(Role::Admin);

    APPROVE_NODE: Post<Object<Approve>, Object<NodeView>, 1> =
        Post::new("/v1/nodes/{node}/approve", Verb::Approve, "Approve a node");
    REJECT_NODE: Post<Empty, Object<NodeView>, 1> =
        Post::new("/v1/nodes/{node}/reject", Verb::Reject, "Reject a node");
    QUARANTINE_NODE: Post<Empty, Object<NodeView>, 1> =
        Post::new("/v1/nodes/{node}/quarantine", Verb::Quarantine, "Hold a node in iPXE");
    RELEASE_NODE: Post<Empty, Object<NodeView>, 1> =
        Post::new("/v1/nodes/{node}/release", Verb::Release, "Release a quarantined node");
    DRAIN_NODE: Post<Object<Drain>, Object<NodeView>, 1> =
        Post::new("/v1/nodes/{node}/drain", Verb::Drain, "Drain a node: it receives no new work");
    START_NODE_MAINTENANCE: Post<Empty, Object<NodeView>, 1> =
        Post::new("/v1/nodes/{node}/maintenance", Verb::Maintenance, "Start maintenance of a node");
    RESUME_NODE: Post<Empty, Object<NodeView>, 1> =
        Post::new("/v1/nodes/{node}/resume", Verb::Resume, "End the maintenance of a node");
    REBOOT_NODE: Post<Object<Reboot>, Object<NodeView>, 1> =
        Post::new("/v1/nodes/{node}/reboot", Verb::Reboot, "Reboot a node through its agent");
    GET_NODE_POWER: Get<Object<PowerView>, 1> =
        Get::new("/v1/nodes/{node}/power", "Ask the BMC of a node for its power state")
            .role(Role::Operator);
    LIST_NODE_SENSORS: Get<Array<SensorView>, 1> =
        Get::new("/v1/nodes/{node}/sensors", "Ask the BMC of a node for its sensors").role(Role::Operator);
    LIST_NODE_BMC_EVENTS: Get<Array<BmcEventView>, 1> =
        Get::new("/v1/nodes/{node}/sel", "Ask the BMC of a node for the newest events of its log")
            .role(Role::Operator);
    LIST_NODE_FIRMWARE: Get<Array<FirmwareView>, 1> =
        Get::new("/v1/nodes/{node}/firmware", "Ask the BMC of a node for the versions of its firmware")
            .role(Role::Operator);
    OPEN_NODE_CONSOLE: Get<Empty, 1> = Get::new(
        "/v1/nodes/{node}/console",
        "Open the serial console of a node: a WebSocket; binary frames are bytes, text frames are notes",
    )
    .role(Role::Operator);
    CLEAR_NODE_BMC_EVENTS: Post<Empty, Array<BmcEventView>, 1> =
        Post::new("/v1/nodes/{node}/sel/clear", Verb::SelClear, "Delete the event log of a BMC");
    POWER_NODE: Post<Object<PowerOrder>, Object<NodeView>, 1> =
        Post::new("/v1/nodes/{node}/power", Verb::Power, "Switch a node by its BMC");
    SET_NODE_BOOT_DEVICE: Post<Object<BootDeviceOrder>, Object<NodeView>, 1> = Post::new(
        "/v1/nodes/{node}/boot-device",
        Verb::BootDevice,
        "Set the device of the next boot by the BMC of a node",
    );
    IDENTIFY_NODE: Post<Object<Identify>, Object<NodeView>, 1> =
        Post::new("/v1/nodes/{node}/identify", Verb::Identify, "Switch the identification light of a node");
    FENCE_NODE: Post<Object<Fence>, Object<NodeView>, 1> = Post::new(
        "/v1/nodes/{node}/fence",
        Verb::Fence,
        "Fence a node that is powered off: revoke its credentials and release its VMs",
    );
    REMOVE_NODE: Post<Empty, Object<NodeView>, 1> = Post::new(
        "/v1/nodes/{node}/remove",
        Verb::Remove,
        "Remove a node: revoke its credentials and release its resources",
    );
    REPLACE_NODE: Post<Object<Replace>, Object<Replaced>, 1> =
        Post::new("/v1/nodes/{node}/replace", Verb::Replace, "Replace the hardware of a node");
    ACCEPT_NODE_NIC: Post<Object<AcceptNic>, Object<NodeView>, 1> =
        Post::new("/v1/nodes/{node}/accept-nic", Verb::AcceptNic, "Accept a new NIC of a node");
    RUN_NODE_CHECKS: Post<Empty, Object<DoctorView>, 1> =
        Post::new("/v1/nodes/{node}/doctor", Verb::Doctor, "Run the readiness checks of a node now");
    REVOKE_NODE_CERTIFICATE: Post<Empty, Object<NodeDetail>, 1> = Post::new(
        "/v1/nodes/{node}/revoke",
        Verb::CertificateRevoke,
        "Revoke the certificate of a node and end its link",
    );

    ASSIGN_NODE_PROFILE: Post<Object<AssignProfile>, Object<NodeView>, 1> = Post::new(
        "/v1/nodes/{node}/assign-profile",
        Verb::AssignProfile,
        "Assign a profile, effective at the next boot",
    );
    CHANGE_NODE_VARIABLES: Post<Object<ChangeVars>, Object<NodeDetail>, 1> =
        Post::new("/v1/nodes/{node}/vars", Verb::Vars, "Set and remove variables of a node");
    LABEL_NODE: Post<Object<LabelChange>, Object<NodeView>, 1> =
        Post::new("/v1/nodes/{node}/label", Verb::Label, "Set and remove labels of a node");
    RENAME_NODE: Post<Object<Rename>, Object<NodeView>, 1> =
        Post::new("/v1/nodes/{node}/rename", Verb::Rename, "Rename a node");
    SET_NODE_BOOT_ONCE: Post<Object<BootOnce>, Object<NodeDetail>, 1> =
        Post::new("/v1/nodes/{node}/boot-once", Verb::BootOnce, "Set boot options for the next boot only");
    PIN_NODE: Post<Object<Pin>, Object<NodeDetail>, 1> =
        Post::new("/v1/nodes/{node}/pin", Verb::Pin, "Pin a node to a generation, regardless of its profile");
    LIST_NODE_GENERATIONS: Get<Array<GenerationView>, 1> =
        Get::new("/v1/nodes/{node}/history", "List the generations of a node");
    COMPARE_NODE_GENERATIONS: Get<Object<DiffView>, 1> =
        Get::new("/v1/nodes/{node}/diff", "Compare the running generation with the next one");
    RENDER_NODE_OVERLAY: Get<Gzip, 1> = Get::new(
        "/v1/overlay/{node}",
        "Render the overlay of a node without secrets, with its own or another profile",
    )
    .query(&["profile"])
    .role(Role::Operator);
    LIST_NODE_OVERLAY_FILES: Get<Array<OverlayFileView>, 1> = Get::new(
        "/v1/overlay/{node}/files",
        "List the files of a node's overlay, or show one with its text, without secrets",
    )
    .query(&["profile", "path"])
    .role(Role::Operator);
}
