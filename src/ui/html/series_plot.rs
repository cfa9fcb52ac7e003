//! Plots of time series: an SVG with a title and a description, and the same values as a table.

use super::{bytes, display_text, duration};
use maud::{Markup, html};
use meshd_api::SeriesPointsView;
use meshd_types::Timestamp;
use std::{collections::BTreeMap, fmt::Write as _};

/// Size of a plot, in SVG units.
const WIDTH: f64 = 600.0;
const HEIGHT: f64 = 60.0;
/// Space above and below the line, so that its stroke is inside.
const MARGIN: f64 = 2.0;
/// Rows of the table of a plot.
const TABLE_ROWS: i64 = 24;

/// Formats a value with its unit.
fn value_text(value: f64, unit: &str) -> String {
    match unit {
        "bytes" => bytes(value as u64),
        "seconds" => duration((value * 1000.0) as u64),
        "percent" => format!("{value:.0} %"),
        "celsius" => format!("{value:.0} °C"),
        "bytes_per_second" => format!("{}/s", bytes(value as u64)),
        _ if value.fract() == 0.0 => format!("{value:.0}"),
        _ => format!("{value:.1}"),
    }
}

/// Renders a text in place of plots whose series cannot be read.
pub(crate) fn absent_plots() -> Markup {
    html! {
        section aria-label="Last 24 hours" {
            h2 { "Last 24 hours" }
            p.quiet { "Plots are not available." }
        }
    }
}

/// Renders the values of a series. `id` is unique on the page.
pub(crate) fn plot(id: &str, title: &str, series: &SeriesPointsView) -> Markup {
    let text = |value: f64| value_text(value, &series.unit);
    let values = series.points.iter().map(|point| point.value).filter(|value| value.is_finite());
    let low = values.clone().fold(f64::INFINITY, f64::min);
    let high = values.fold(f64::NEG_INFINITY, f64::max);
    let newest = series.points.last().filter(|_| low.is_finite());
    html! {
        figure.plot {
            div id=(id) data-live {
                figcaption { strong { (display_text(title)) } " "
                    @match newest {
                        Some(newest) => { (text(newest.value)) " " span.quiet { (text(low)) " to " (text(high)) } },
                        None => span.quiet { "no values" }
                    }
                }
                @if newest.is_some() {
                    svg viewBox=(format!("0 0 {WIDTH} {HEIGHT}")) preserveAspectRatio="none" role="img"
                        aria-labelledby=(format!("{id}-title {id}-text")) {
                        title id=(format!("{id}-title")) { (display_text(title)) }
                        desc id=(format!("{id}-text")) { (text(low)) " to " (text(high)) ", from " (series.from) " to " (series.to) }
                        path d=(line(series, low.min(0.0), high)) {}
                    }
                }
            }
            @if newest.is_some() { details { summary { "Values" } (value_table(series)) } }
        }
    }
}

/// The path of a line with a gap where samples are missing.
fn line(series: &SeriesPointsView, low: f64, high: f64) -> String {
    let from = series.from;
    let length = series.to.since(from).as_secs_f64().max(1.0);
    let step = i64::try_from(series.step_s).unwrap_or(i64::MAX);
    let span = if high > low { high - low } else { 1.0 };
    let mut path = String::new();
    let mut before: Option<i64> = None;
    for point in series.points.iter().filter(|point| point.value.is_finite()) {
        let x = WIDTH * (point.at.since(from).as_secs_f64() / length).min(1.0);
        let y = MARGIN + (HEIGHT - 2.0 * MARGIN) * (1.0 - (point.value - low) / span);
        let at = point.at.seconds();
        let is_next = before.is_some_and(|before| at.saturating_sub(before) <= step);
        // A line of no length is a dot with round caps: a sample between two gaps is seen.
        let _ = match is_next {
            true => write!(path, "L{x:.0} {y:.1}"),
            false => write!(path, "M{x:.0} {y:.1}h0"),
        };
        before = Some(at);
    }
    path
}

/// The means of at most [`TABLE_ROWS`] intervals.
fn value_table(series: &SeriesPointsView) -> Markup {
    let from = series.from.seconds();
    let length = (series.to.seconds() - from).max(1);
    let mut means: BTreeMap<i64, (Timestamp, f64, u32)> = BTreeMap::new();
    for point in &series.points {
        let place = (point.at.seconds() - from).max(0) * TABLE_ROWS / length;
        let (_, sum, count) = means.entry(place).or_insert((point.at, 0.0, 0));
        *sum += point.value;
        *count += 1;
    }
    html! {
        table {
            thead { tr { th scope="col" { "From" } th scope="col" { "Mean" } } }
            tbody { @for (at, sum, count) in means.into_values() {
                tr { th scope="row" { (super::time(at)) } td { (value_text(sum / f64::from(count), &series.unit)) } }
            } }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use meshd_api::SeriesPointView;

    fn at(minute: i64) -> Timestamp {
        Timestamp::from_millis(minute * 60_000)
    }

    fn series(to: i64, points: &[(i64, f64)]) -> SeriesPointsView {
        let point =
            |(minute, value): &(i64, f64)| SeriesPointView { at: at(*minute), value: *value };
        SeriesPointsView {
            name: "x".to_owned(),
            unit: "nodes".to_owned(),
            from: at(0),
            to: at(to),
            step_s: 60,
            points: points.iter().map(point).collect(),
        }
    }

    #[test]
    fn line_has_a_gap_where_samples_are_missing() {
        let points = series(10, &[(0, 0.0), (1, 10.0), (5, 10.0), (10, 5.0)]);
        let path = line(&points, 0.0, 10.0);
        assert_eq!(path, "M0 58.0h0L60 2.0M300 2.0h0M600 30.0h0");
        assert_eq!(line(&series(10, &[(0, 3.0)]), 3.0, 3.0), "M0 58.0h0");
    }

    #[test]
    fn plot_has_title_description_and_table() {
        let points = series(1440, &[(0, 1.0), (1, 2.5), (60, 4.0)]);
        let page = plot("p", "<b>", &points).into_string();
        assert!(page.contains("aria-labelledby=\"p-title p-text\""), "{page}");
        assert!(page.contains("&lt;b&gt;") && !page.contains("<b>"), "{page}");
        assert!(page.contains("1 to 4, from 1970-01-01T00:00:00.000Z"), "{page}");
        assert_eq!(page.matches("<tr>").count(), 3, "a head and two hours: {page}");
        assert!(page.contains("1.8"), "the mean of 1 and 2.5: {page}");
        let page = plot("p", "x", &series(1440, &[])).into_string();
        assert!(page.contains("no values") && !page.contains("<svg"), "{page}");
    }
}
