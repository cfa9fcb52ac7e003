//! Time series of one node.

use crate::admin::{
    extract::TargetNode,
    query::parameters::Parameters,
    routes::{Answer, blocking, site::requested_range},
};
use axum::Json;
use meshd_api::SeriesPointsView;
use meshd_model::series::NodeSeries;

/// `GET /v1/nodes/{node}/series`: all series of a node, also those without points.
pub(crate) async fn node_series(
    TargetNode { central, id }: TargetNode,
    query: Parameters,
) -> Answer<Vec<SeriesPointsView>> {
    let (from, to, range) = requested_range(&query, central.now())?;
    let read = move || central.series.read_node(id, &range);
    let all = blocking("reading", read).await?;
    let view = |(series, points): (NodeSeries, Vec<_>)| SeriesPointsView {
        name: series.as_str().to_owned(),
        unit: series.unit().to_owned(),
        from,
        to,
        step_s: range.step(),
        points: points.into_iter().map(Into::into).collect(),
    };
    Ok(Json(NodeSeries::ALL.into_iter().zip(all).map(view).collect()))
}
