//! Writes gauges in the text format of Prometheus.

use std::fmt::{Display, Write as _};

/// Text of the metrics page, extended family by family.
#[derive(Default)]
pub(super) struct MetricsPage(String);

impl MetricsPage {
    /// Writes a gauge without labels.
    pub(super) fn gauge(&mut self, name: &str, help: &str, value: impl Display) {
        self.family("gauge", name, help, [([("", ""); 0], value)]);
    }

    /// Writes a counter without labels whose value is read on request.
    pub(super) fn counter(&mut self, name: &str, help: &str, value: impl Display) {
        self.family("counter", name, help, [([("", ""); 0], value)]);
    }

    /// Writes a family of gauges that differ in their labels.
    pub(super) fn gauges<'a, const N: usize, V: Display>(
        &mut self,
        name: &str,
        help: &str,
        samples: impl IntoIterator<Item = ([(&'static str, &'a str); N], V)>,
    ) {
        self.family("gauge", name, help, samples);
    }

    fn family<'a, const N: usize, V: Display>(
        &mut self,
        kind: &str,
        name: &str,
        help: &str,
        samples: impl IntoIterator<Item = ([(&'static str, &'a str); N], V)>,
    ) {
        let _ = writeln!(self.0, "# HELP {name} {help}\n# TYPE {name} {kind}");
        for (labels, value) in samples {
            let labels: Vec<String> = labels
                .iter()
                .map(|(label, value)| format!("{label}=\"{}\"", escape_label(value)))
                .collect();
            let labels =
                if labels.is_empty() { String::new() } else { format!("{{{}}}", labels.join(",")) };
            let _ = writeln!(self.0, "{name}{labels} {value}");
        }
        self.0.push('\n');
    }

    pub(super) fn text(self) -> String {
        self.0
    }
}

/// Escapes a label value for the text format.
fn escape_label(value: &str) -> String {
    value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}
