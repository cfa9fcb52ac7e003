//! Routes of the node list, the search and activities.

use super::{
    error::Refused,
    query::{
        answer::{Listing, RawQuery, parameters},
        nodes::{NODES, NodeFilter, order_key},
        page::{ResultPage, cut},
        parameters::ParameterError,
        search::SearchRun,
        text::{MAX_TEXT, MIN_TEXT},
    },
    routes::{Answer, blocking, tasks, vms},
};
use axum::{Json, extract::State, http::HeaderMap, response::Response};
use meshd_api::{ActivitiesView, NodeView, SearchView, routes::SEARCH};
use meshd_central::{NodeRecords, Shared};
use meshd_model::fleet::Node;

/// `GET /v1/nodes`. Creates views only for the nodes of the page.
pub(crate) async fn nodes(
    State(central): State<Shared>,
    headers: HeaderMap,
    query: RawQuery,
) -> Result<Response, Refused> {
    let query = parameters(query, NODES.parameters)?;
    let (filter, page, fields) =
        (NodeFilter::read(&query)?, query.page(&NODES)?, query.fields(&NODES)?);
    let site = central.site();
    let page = central.nodes.read(|fleet| {
        let default = &site.default_profile;
        let seen = |node: &Node| {
            let last = central.links.link_state(node.id).last_message_at;
            last.map_or(node.last_seen, |last| last.max(node.last_seen))
        };
        let taken = fleet.nodes().filter(|records| filter.takes(records.node, default));
        let rows = taken
            .map(|records| (order_key(records.node, page.sort.key, default, seen), records))
            .collect();
        let ResultPage { rows, next, total } = cut(rows, &page);
        let view = |records: NodeRecords<'_>| {
            let link = central.links.link_state(records.node.id);
            let view = NodeView::new(records.node, records.boot(), &site, &link);
            view.rolled_back(|profile| central.generations.rolled_back(profile))
        };
        ResultPage { rows: rows.into_iter().map(view).collect::<Vec<_>>(), next, total }
    });
    Listing::page(page, fields).answer(&headers)
}

/// `GET /v1/search`: finds nodes, VMs and tasks.
pub(crate) async fn search(State(central): State<Shared>, query: RawQuery) -> Answer<SearchView> {
    let query = parameters(query, SEARCH.spec().query)?;
    let needle = query.needle()?.ok_or_else(|| {
        let hint = format!("write the search text, {MIN_TEXT} to {MAX_TEXT} characters");
        ParameterError::invalid("q", "it is missing", hint)
    })?;
    let mut run = SearchRun::new(needle);
    central.nodes.read(|fleet| fleet.nodes().for_each(|records| run.node(records.node)));
    vms::all(&central).iter().for_each(|vm| run.vm(vm));
    tasks::all(&central).iter().for_each(|task| run.task(task));
    Ok(Json(run.finish()))
}

/// `GET /v1/activities`: lists unfinished activities.
pub(crate) async fn activities(State(central): State<Shared>) -> Answer<ActivitiesView> {
    let (activities, rest) = blocking("reading", move || central.activities()).await?;
    Ok(Json(ActivitiesView { activities: activities.into_iter().map(Into::into).collect(), rest }))
}
