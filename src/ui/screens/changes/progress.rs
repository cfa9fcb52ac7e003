//! Progress of changes of many nodes: bars, numbers, and the time that is left.

use maud::{Markup, html};
use meshd_api::WaveProgress;

/// Width of a bar, in SVG units.
const WIDTH: u64 = 1000;

/// Renders the parts of a whole as one bar. The numbers are also its text for screen readers.
pub(super) fn bar(progress: WaveProgress) -> Markup {
    let WaveProgress { waiting, active, done, failed, skipped } = progress;
    let parts =
        [("good", done), ("bad", failed), ("busy", active), ("idle", skipped), ("rest", waiting)];
    let total: u64 = parts.iter().map(|(_, count)| u64::from(*count)).sum();
    let mut begun = 0;
    let mut rects = Vec::new();
    for (class, count) in parts.into_iter().filter(|(_, count)| *count > 0) {
        let from = begun * WIDTH / total;
        begun += u64::from(count);
        rects.push((class, from, (begun * WIDTH / total - from).max(1)));
    }
    html! {
        @if !rects.is_empty() {
            svg.parts viewBox=(format!("0 0 {WIDTH} 10")) preserveAspectRatio="none" role="img" aria-label=(progress.words()) {
                @for (class, x, width) in rects { rect class=(class) x=(x) y="0" width=(width) height="10" {} }
            }
        }
    }
}

/// Returns the time that is left, in words.
pub(super) fn time_left(seconds: u64) -> String {
    match seconds.div_ceil(60) {
        0 => "almost done".to_owned(),
        minutes @ 1..=119 => format!("about {minutes} min left"),
        minutes => format!("about {} h left", minutes.div_ceil(60)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bar_covers_its_whole_width_with_the_parts() {
        let progress = WaveProgress { waiting: 1, active: 1, done: 1, failed: 0, skipped: 0 };
        let bar = bar(progress).into_string();
        assert!(bar.contains("aria-label=\"1 waiting, 1 in progress, 1 done\""), "{bar}");
        let parts = [("good", 0, 333), ("busy", 333, 333), ("rest", 666, 334)];
        for (class, x, width) in parts {
            let rect = format!("<rect class=\"{class}\" x=\"{x}\" y=\"0\" width=\"{width}\"");
            assert!(bar.contains(&rect), "{rect}: {bar}");
        }
        assert_eq!(super::bar(WaveProgress::default()).into_string(), "");
    }

    #[test]
    fn time_left_is_rounded_up() {
        let texts = [0, 1, 60, 61, 7_141, 9_000].map(time_left);
        let expected = ["almost done", "about 1 min left", "about 1 min left", "about 2 min left"];
        assert_eq!(texts[..4], expected);
        assert_eq!(texts[4..], ["about 2 h left", "about 3 h left"]);
    }
}
