//! Routes of VMs, slots, volumes, containers and tasks.

use super::{Array, Binary, Empty, Get, JsonLines, Nullable, Object, Post, route::routes};
use crate::{
    ApproveSlot, ContainerView, CreateVm, DeleteVm, RunContainer, RunTask, SlotView, TaskOutput,
    TaskView, TemplateView, VmView, VolumeView,
};
use meshd_model::fleet::Verb;
use meshd_trust::Role;

const VM_PARAMETERS: &[&str] = &["state", "node", "q", "sort", "fields", "limit", "after"];
const CONTAINER_PARAMETERS: &[&str] =
    &["state", "image", "node", "q", "sort", "fields", "limit", "after"];
const TASK_PARAMETERS: &[&str] =
    &["state", "group", "node", "q", "sort", "fields", "limit", "after"];

routes! {
    LIST_VMS: Get<Array<VmView>> = Get::new("/v1/vms", "List VMs").query(VM_PARAMETERS);
    GET_VM: Get<Object<VmView>, 1> = Get::new("/v1/vms/{vm}", "Show a VM");
    LIST_VM_TEMPLATES: Get<Array<TemplateView>> = Get::new("/v1/vm-templates", "List VM templates");
    CREATE_VM: Post<Object<CreateVm>, Object<VmView>> =
        Post::new("/v1/vms", Verb::VmCreate, "Create a VM and assign a node; all or nothing");
    START_VM: Post<Empty, Object<VmView>, 1> = Post::new("/v1/vms/{vm}/start", Verb::VmStart, "Start a VM");
    STOP_VM: Post<Empty, Object<VmView>, 1> = Post::new("/v1/vms/{vm}/stop", Verb::VmStop, "Shut a VM down");
    RESTART_VM: Post<Empty, Object<VmView>, 1> = Post::new("/v1/vms/{vm}/restart", Verb::VmRestart, "Restart a VM");
    DELETE_VM: Post<Object<DeleteVm>, Object<VmView>, 1> =
        Post::new("/v1/vms/{vm}/delete", Verb::VmDelete, "Delete a VM and release its resources");
    OPEN_VM_CONSOLE: Get<Empty, 1> = Get::new(
        "/v1/vms/{vm}/console",
        "Open the console of a VM: a WebSocket; binary frames are bytes, text frames are notes",
    )
    .role(Role::Operator);
    OPEN_VM_SHELL: Get<Empty, 1> = Get::new(
        "/v1/vms/{vm}/shell",
        "Open a shell of the guest of a VM by SSH: a WebSocket; binary frames are bytes, text frames are notes",
    )
    .query(&["rows", "columns", "terminal", "user", "forget_host_key"])
    .role(Role::Admin);
    GET_VM_CONSOLE_LOG: Get<Binary, 1> = Get::new("/v1/vms/{vm}/logs", "Read the console log of a VM, or follow it")
        .query(&["follow", "tail"])
        .role(Role::Operator);

    LIST_SLOTS: Get<Array<SlotView>> = Get::new("/v1/slots", "List slots");
    GET_SLOT: Get<Object<SlotView>, 2> = Get::new("/v1/slots/{node}/{unit}", "Show a slot");
    APPROVE_SLOT: Post<Object<ApproveSlot>, Object<SlotView>, 2> =
        Post::new("/v1/slots/{node}/{unit}/approve", Verb::SlotApprove, "Acknowledge the present state of a slot");
    DISABLE_SLOT: Post<Empty, Object<SlotView>, 2> =
        Post::new("/v1/slots/{node}/{unit}/disable", Verb::SlotDisable, "Disable a slot: it is not allocated");
    ENABLE_SLOT: Post<Empty, Object<SlotView>, 2> =
        Post::new("/v1/slots/{node}/{unit}/enable", Verb::SlotEnable, "Enable a slot");
    RELEASE_SLOT: Post<Empty, Object<SlotView>, 2> =
        Post::new("/v1/slots/{node}/{unit}/release", Verb::SlotRelease, "Retry the cleanup of a slot");

    LIST_VOLUMES: Get<Array<VolumeView>> = Get::new("/v1/volumes", "List volumes");
    REMOVE_VOLUME: Post<Empty, Object<VolumeView>, 1> =
        Post::new("/v1/volumes/{volume}/remove", Verb::VolumeRemove, "Remove a volume that nothing uses");

    LIST_CONTAINERS: Get<Array<ContainerView>> = Get::new("/v1/containers", "List containers").query(CONTAINER_PARAMETERS);
    GET_CONTAINER: Get<Object<ContainerView>, 1> =
        Get::new("/v1/containers/{container}", "Show a container and its replicas");
    RUN_CONTAINER: Post<Object<RunContainer>, Object<ContainerView>> =
        Post::new("/v1/containers", Verb::ContainerRun, "Run a container and assign nodes; all or nothing");
    START_CONTAINER: Post<Empty, Object<ContainerView>, 1> = Post::new(
        "/v1/containers/{container}/start",
        Verb::ContainerStart,
        "Start the replicas of a container that do not run",
    );
    STOP_CONTAINER: Post<Empty, Object<ContainerView>, 1> =
        Post::new("/v1/containers/{container}/stop", Verb::ContainerStop, "End all processes of a container");
    DELETE_CONTAINER: Post<Empty, Nullable<ContainerView>, 1> = Post::new(
        "/v1/containers/{container}/delete",
        Verb::ContainerDelete,
        "Delete a container: its nodes release everything",
    );
    OPEN_CONTAINER_EXEC: Get<Empty, 1> = Get::new(
        "/v1/containers/{container}/exec",
        "Run a program in a replica: a WebSocket; binary frames are bytes, text frames are notes",
    )
    .query(&["rows", "columns", "terminal", "argv"])
    .role(Role::Admin);
    GET_CONTAINER_LOG: Get<Binary, 1> =
        Get::new("/v1/containers/{container}/logs", "Read the output of a replica, or follow it")
            .query(&["follow"])
            .role(Role::Operator);

    LIST_TASKS: Get<Array<TaskView>> = Get::new("/v1/tasks", "List tasks, the newest last").query(TASK_PARAMETERS);
    GET_TASK: Get<Object<TaskView>, 1> = Get::new("/v1/tasks/{task}", "Show a task and its nodes");
    RUN_TASK: Post<Object<RunTask>, Object<TaskView>> =
        Post::new("/v1/tasks", Verb::TaskRun, "Run a program on nodes of a group, or on one node");
    OPEN_TASK_INPUT: Get<Empty, 1> = Get::new(
        "/v1/tasks/{task}/input",
        "Connect the standard input of a task, for the caller that ordered it: a WebSocket; binary frames are bytes, \
         the text frame {\"note\":\"end\"} ends them",
    )
    .role(Role::Operator);
    CANCEL_TASK: Post<Empty, Nullable<TaskView>, 1> =
        Post::new("/v1/tasks/{task}/cancel", Verb::TaskCancel, "Cancel a task: end its processes on all its nodes");
    GET_TASK_OUTPUT: Get<JsonLines<TaskOutput>, 1> =
        Get::new("/v1/tasks/{task}/output", "Read the output of a task, or follow it")
            .query(&["follow", "from"])
            .role(Role::Operator);
}
