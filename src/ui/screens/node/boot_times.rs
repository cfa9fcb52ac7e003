//! The steps of a boot beside the medians of other boots, and what costs the time.

use crate::html::{display_text, duration, maybe};
use maud::{Markup, html};
use meshd_api::{BootStepView, BootTimesView};

/// Width of the drawing, in SVG units.
const WIDTH: u64 = 1000;
/// Minimum width of a visible bar, in SVG units.
const MIN_WIDTH: u64 = 4;

pub(super) fn plot(boot: &BootTimesView) -> Markup {
    let longest = boot.steps.iter().flat_map(times).max().unwrap_or(0).max(1);
    html! {
        h2 { "Where the time goes" }
        p { (duration(boot.total_ms)) " since "
            @match &boot.order { Some(order) => { "the order " (display_text(order)) }, None => "the first packet" }
            ", compared with " (boot.own_boots) " earlier boots and " (boot.model_boots) " machines of the model"
        }
        div.scroll tabindex="0" role="group" aria-label="Steps of this boot and medians" {
            table.stages {
                thead { tr {
                    th scope="col" { "Step" } th scope="col" { "Took" } th scope="col" { "Own median" } th scope="col" { "Model" }
                    th.wide scope="col" { "This boot (bar), own median (upper mark), model (lower mark)" }
                } }
                tbody { @for step in &boot.steps { (row(step, longest)) } }
            }
        }
        @for delay in &boot.delays {
            div.alert.warn {
                strong { (delay.kind.as_str()) " costs " (duration(delay.cost_ms)) " in " (display_text(&delay.step)) }
                p { (display_text(&delay.detail)) }
                p { "Change: " (display_text(&delay.setting)) }
            }
        }
    }
}

fn times(step: &BootStepView) -> impl Iterator<Item = u64> {
    [Some(step.duration_ms), step.own_median_ms, step.model_median_ms].into_iter().flatten()
}

fn row(step: &BootStepView, longest: u64) -> Markup {
    let scaled =
        |millis: u64| (millis.saturating_mul(WIDTH - MIN_WIDTH) / longest).min(WIDTH - MIN_WIDTH);
    html! {
        tr {
            th scope="row" { (display_text(&step.step)) }
            td { (duration(step.duration_ms)) }
            td { (maybe(step.own_median_ms.map(duration))) }
            td { (maybe(step.model_median_ms.map(duration))) }
            td {
                svg viewBox=(format!("0 0 {WIDTH} 16")) preserveAspectRatio="none" aria-hidden="true" {
                    rect x="0" y="4" width=(scaled(step.duration_ms).max(MIN_WIDTH)) height="8" rx="2" {}
                    @if let Some(own) = step.own_median_ms { rect.mark x=(scaled(own)) y="0" width=(MIN_WIDTH) height="7" {} }
                    @if let Some(model) = step.model_median_ms { rect.mark x=(scaled(model)) y="9" width=(MIN_WIDTH) height="7" {} }
                }
            }
        }
    }
}
