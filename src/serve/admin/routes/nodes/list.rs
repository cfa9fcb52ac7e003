//! The list of nodes.

use crate::admin::{
    error::Refused,
    query::{
        answer::Listing,
        nodes::{NODES, NodeFilter, order_key},
        page::{ResultPage, cut},
        parameters::Parameters,
    },
};
use axum::{extract::State, http::HeaderMap, response::Response};
use meshd_api::NodeView;
use meshd_central::{NodeRecords, Shared};
use meshd_model::fleet::Node;

/// `GET /v1/nodes`. Creates views only for the nodes of the page.
pub(crate) async fn nodes(
    State(central): State<Shared>,
    headers: HeaderMap,
    query: Parameters,
) -> Result<Response, Refused> {
    let page = query.page(&NODES)?;
    let fields = query.fields(&NODES)?;
    let mut filter = NodeFilter::read(&query)?;
    if let Some(hostlist) = &filter.hostlist {
        let nodes = central.nodes.resolve_hostlist(hostlist)?;
        filter = filter.of_nodes(nodes);
    }
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
