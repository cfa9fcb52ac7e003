//! Plots of the last day of a node.

use super::absent_to_none;
use crate::{
    client::{ApiClient, ApiError},
    html::series_plot,
};
use maud::{Markup, html};
use meshd_api::{SeriesPointsView, routes as api};
use meshd_types::NodeId;

/// Seconds between two points of a plot.
const STEP: u64 = 600;

/// Titles of the series.
const TITLES: [(&str, &str); 7] = [
    ("cpu", "Processors busy"),
    ("memory", "Memory used"),
    ("disk", "Disk used"),
    ("nic_received", "NICs, received"),
    ("nic_sent", "NICs, sent"),
    ("temperature", "Hottest sensor"),
    ("gpu", "GPUs busy"),
];

/// Requests the series of the last day. An older meshd, which `meshd ui` shows, has none.
pub(super) async fn last_day(
    client: &ApiClient,
    node: NodeId,
) -> Result<Vec<SeriesPointsView>, ApiError> {
    let path = api::LIST_NODE_SERIES.path([&node]).with("step", STEP);
    Ok(absent_to_none(client.get(path).await)?.unwrap_or_default())
}

/// Renders the series that have points. `None`: series that cannot be read.
pub(super) fn plots(all: Option<&[SeriesPointsView]>) -> Markup {
    let Some(all) = all else { return series_plot::absent_plots() };
    let titled = TITLES.iter().filter_map(|(name, title)| {
        let series = all.iter().find(|series| series.name == *name)?;
        Some((*title, series)).filter(|(_, series)| !series.points.is_empty())
    });
    let plots: Vec<_> = titled
        .map(|(title, series)| series_plot::plot(&format!("plot-{}", series.name), title, series))
        .collect();
    html! {
        h2 { "Last 24 hours" }
        @if plots.is_empty() {
            p.quiet { "No samples yet. The node reports a sample a minute while it has a link." }
        }
        div.plots { @for plot in &plots { (plot) } }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn series_that_cannot_be_read_are_a_text() {
        assert!(plots(None).into_string().contains("Plots are not available."));
        assert!(plots(Some(&[])).into_string().contains("No samples yet"));
    }
}
