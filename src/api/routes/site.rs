//! Routes of the site: status, profiles, images, DHCP, events, audit log, backup.

use super::{
    AnyObject, Array, Binary, Empty, Get, JsonLines, Object, PlainText, Post, ServerSentEvents,
    UntypedJson, route::routes,
};
use crate::{
    ActivitiesView, AuditView, CallerView, CancelledOperation, EventView, Finding, ImageView,
    LeaseView, MakeBackup, NodeOperationView, OperationView, OverlayDetail, OverlaySourceView,
    OverlayView, ProfileView, ReloadView, RevisionDiffView, RevisionView, Rollback, SegmentView,
    SeriesPointsView, SeriesView, SettingView, StatusView,
};
use meshd_model::fleet::Verb;
use meshd_trust::Role;

routes! {
    GET_CALLER: Get<Object<CallerView>> = Get::new("/v1/whoami", "Show name and role of the caller");
    GET_STATUS: Get<Object<StatusView>> = Get::new("/v1/status", "Show the status of the central node");
    LIST_ACTIVITIES: Get<Object<ActivitiesView>> = Get::new(
        "/v1/activities",
        "List unfinished activities: boots, reboots, drains, VMs, volumes, slots and tasks",
    );
    LIST_SERIES: Get<Array<SeriesView>> =
        Get::new("/v1/series", "List the time series of the site with their newest values");
    GET_SERIES: Get<Object<SeriesPointsView>, 1> = Get::new(
        "/v1/series/{name}",
        "Show the values of a time series: a minute for a day, an hour for 90 days; the last day by default",
    )
    .query(&["from", "to", "step"]);
    LIST_OPERATIONS: Get<Array<OperationView>> =
        Get::new("/v1/operations", "List operations: orders to nodes").query(&["state", "sort", "fields", "limit", "after"]);
    GET_OPERATION: Get<Object<OperationView>, 1> = Get::new("/v1/operations/{operation}", "Show an operation");
    LIST_OPERATION_NODES: Get<Array<NodeOperationView>, 1> =
        Get::new("/v1/operations/{operation}/nodes", "List the nodes of an operation")
            .query(&["state", "sort", "fields", "limit", "after"]);
    CANCEL_OPERATION: Post<Empty, Object<CancelledOperation>, 1> = Post::new(
        "/v1/operations/{operation}/cancel",
        Verb::OperationCancel,
        "Cancel the nodes of an operation that have not started",
    );
    LIST_FINDINGS: Get<Array<Finding>> = Get::new("/v1/doctor", "List problems that keep machines from booting");
    GET_OPENAPI_DOCUMENT: Get<UntypedJson> = Get::new("/v1/openapi.json", "This document");
    GET_METRICS: Get<PlainText> = Get::new("/metrics", "Metrics for Prometheus");

    LIST_PROFILES: Get<Array<ProfileView>> = Get::new("/v1/profiles", "List profiles with inherited values");
    LIST_PROFILE_SETTINGS: Get<Array<SettingView>, 1> =
        Get::new("/v1/profiles/{name}/settings", "List the values of a profile with the profile that set each");
    LIST_PROFILE_REVISIONS: Get<Array<RevisionView>, 1> =
        Get::new("/v1/profiles/{name}/history", "List the revisions of a profile");
    COMPARE_PROFILE_REVISIONS: Get<Object<RevisionDiffView>, 1> =
        Get::new("/v1/profiles/{name}/diff", "Compare two revisions of a profile").query(&["from", "to"]);
    ROLL_BACK_PROFILE: Post<Object<Rollback>, Array<RevisionView>, 1> = Post::new(
        "/v1/profiles/{name}/rollback",
        Verb::Rollback,
        "Roll a profile back to a revision, or return to the site file",
    );
    RELOAD_SITE: Post<Empty, Object<ReloadView>> =
        Post::new("/v1/reload", Verb::Reload, "Reload site, overlays and images; all or nothing");
    LIST_IMAGES: Get<Array<ImageView>> = Get::new("/v1/images", "List images and their versions");
    LIST_OVERLAYS: Get<Array<OverlayView>> = Get::new("/v1/overlays", "List overlays");
    GET_OVERLAY: Get<Object<OverlayDetail>, 1> =
        Get::new("/v1/overlays/{name}", "Show an overlay and the variables that it declares");
    LIST_OVERLAY_FILES: Get<Array<OverlaySourceView>, 1> = Get::new(
        "/v1/overlays/{name}/files",
        "List the files of an overlay, or show one with its text, without secrets",
    )
    .query(&["path"])
    .role(Role::Operator);

    LIST_SEGMENTS: Get<Array<SegmentView>> =
        Get::new("/v1/segments", "List segments with their pools and other DHCP servers");
    LIST_LEASES: Get<Array<LeaseView>> = Get::new("/v1/leases", "List DHCP leases")
        .query(&["state", "node", "q", "sort", "fields", "limit", "after"]);

    LIST_EVENTS: Get<JsonLines<EventView>> = Get::new("/v1/events", "List events, or follow them")
        .query(&["follow", "after", "node", "kind", "q", "sort", "fields", "limit"]);
    STREAM_EVENTS: Get<ServerSentEvents> = Get::new(
        "/v1/events/stream",
        "Follow events as server-sent events; the header last-event-id resumes, the event `lag` reports lost events",
    )
    .query(&["after", "node", "kind", "q", "fields"]);
    LIST_AUDIT_RECORDS: Get<Array<AuditView>> = Get::new("/v1/audit", "List the audit log")
        .query(&["node", "actor", "after", "q", "sort", "fields", "limit"]);
    CREATE_BACKUP: Post<AnyObject<MakeBackup>, Binary> =
        Post::new("/v1/backup", Verb::Backup, "Create an encrypted backup of the site");
}
