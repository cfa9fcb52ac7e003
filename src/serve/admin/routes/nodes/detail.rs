//! One node: its details, the timeline of a boot, and where its time goes.

use super::pci_names;
use crate::admin::{
    error::Refused,
    extract::{QueryOf, TargetNode},
    routes::{Answer, blocking},
};
use axum::{
    Json,
    extract::{Path, State},
};
use meshd_api::{BootTimesView, NodeDetail, NodeView, TimelineView};
use meshd_central::{NodeRecords, Shared};
use meshd_types::{BootSessionId, NodeId};
use serde::Deserialize;

pub(crate) async fn node(TargetNode { central, id }: TargetNode) -> Answer<NodeDetail> {
    let Json(detail) = detail(&central, id)?;
    let functions = detail.facts.as_ref().map(|facts| facts.pci.clone()).unwrap_or_default();
    let names =
        blocking("looking names of PCI devices up", move || pci_names::installed(&functions));
    Ok(Json(detail.with_pci_names(names.await?)))
}

/// Returns all details of a node.
pub(crate) fn detail(central: &Shared, id: NodeId) -> Answer<NodeDetail> {
    let link = central.links.link_state(id);
    let detail = central.nodes.read(|fleet| {
        let records = fleet.node(id)?;
        let detail = NodeDetail::new(records.node, records.boot(), &central.site(), &link);
        let boots = records.boots();
        let mut detail = detail.working(work(central, records));
        detail = detail.deferred(boots.first().copied(), central.now());
        detail.node = detail.node.rolled_back(|profile| central.generations.rolled_back(profile));
        Some(detail)
    });
    detail.map(Json).ok_or_else(|| node_removed(id))
}

/// The work on record, and that of drain hooks while the node is out of service.
fn work(central: &Shared, records: NodeRecords<'_>) -> Vec<String> {
    let mut work = records.active_work();
    work.extend(central.nodes.waiting_hooks(records.node));
    work
}

#[derive(Debug, Deserialize)]
pub(crate) struct TimelineQuery {
    session: Option<BootSessionId>,
}

pub(crate) async fn timeline(
    State(central): State<Shared>,
    Path(node): Path<String>,
    QueryOf(TimelineQuery { session }): QueryOf<TimelineQuery>,
) -> Answer<TimelineView> {
    let id = central.nodes.resolve(&node)?;
    let now = central.now();
    let timeline = central.nodes.read(|fleet| {
        let records = fleet.node(id)?;
        let boots = records.boots();
        let newest = boots.first().map(|boot| boot.id);
        let timeline = session
            .or(newest)
            .and_then(|session| TimelineView::new(records.node, session, &boots, now));
        Some(timeline.map(|timeline| timeline.with_tasks(fleet.tasks())))
    });
    timeline.ok_or_else(|| node_removed(id))?.map(Json).ok_or_else(|| no_boot(id, session))
}

pub(crate) async fn boot_times(
    State(central): State<Shared>,
    Path(node): Path<String>,
    QueryOf(TimelineQuery { session }): QueryOf<TimelineQuery>,
) -> Answer<BootTimesView> {
    let id = central.nodes.resolve(&node)?;
    let now = central.now();
    let times = central.nodes.read(|fleet| {
        let records = fleet.node(id)?;
        let compared = fleet.compare_boot(records, session).map(|compared| {
            let path = &compared.path;
            let over = compared.is_over;
            BootTimesView::new(records.node, path, &compared.comparison, over, now)
        });
        Some(compared)
    });
    times.ok_or_else(|| node_removed(id))?.map(Json).ok_or_else(|| no_boot(id, session))
}

/// Returns the error for a boot that is not on record.
fn no_boot(id: NodeId, session: Option<BootSessionId>) -> Refused {
    match session {
        Some(session) => Refused::not_found(format!("node {id} has no boot {session} on record"))
            .with_hint(format!("`meshd node timeline {id}` lists those that are kept")),
        None => Refused::not_found(format!("node {id} has no boot on record"))
            .with_hint("let its machine boot from the network"),
    }
}

pub(crate) fn node_view(central: &Shared, id: NodeId) -> Answer<NodeView> {
    let view = central.nodes.read(|fleet| {
        let records = fleet.node(id)?;
        let view = NodeView::new(
            records.node,
            records.boot(),
            &central.site(),
            &central.links.link_state(id),
        );
        Some(
            view.rolled_back(|profile| central.generations.rolled_back(profile))
                .working(work(central, records)),
        )
    });
    view.map(Json).ok_or_else(|| node_removed(id))
}

pub(crate) fn node_removed(id: NodeId) -> Refused {
    Refused::not_found(format!("node {id} was removed")).with_hint("see `meshd node list`")
}
