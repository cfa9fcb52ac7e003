//! Metrics for Prometheus: counters and histograms of the servers, and gauges read from the state
//! on request.
//!
//! | module | content |
//! | --- | --- |
//! | `describe` | HELP texts of counters and histograms |
//! | `gauges` | gauges, computed from the state on each request |
//! | `listen` | the listener of `[metrics]`: one route for Prometheus |
//! | `observe` | counters derived from the durable event log |
//! | `page` | writes gauges in the text format of Prometheus |
//! | `process` | gauges of this process, read from /proc |
//! | `workload_gauges` | gauges of VMs, tasks, slots and units |
//!
//! Servers use the macros of the `metrics` facade. [`Metrics`] is the recorder of the process;
//! [`Metrics::page`] is the whole response. The admin socket and the listener of `[metrics]` serve
//! it; the boot API never does. Names begin with `meshd_` and end with their unit. Labels have few
//! closed values, never a MAC address, an IP address or a path.

mod describe;
mod gauges;
mod listen;
mod observe;
mod page;
mod process;
mod workload_gauges;
#[cfg(test)]
mod tests;

pub use listen::{Listener, bind, serve};
pub use observe::observe;
pub use process::resident_bytes;

use axum::{body::HttpBody as _, response::Response};
use meshd_central::Central;
use metrics_exporter_prometheus::{
    Matcher, PrometheusBuilder, PrometheusHandle, PrometheusRecorder,
};
use std::sync::OnceLock;

/// Media type of the Prometheus text format.
pub const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// Default upper bounds of histograms, in seconds: from a look-up in memory to a slow disk.
const QUICK: [f64; 12] =
    [0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0];
/// Upper bounds of histograms of boots, in seconds.
const BOOT: [f64; 13] =
    [1.0, 2.0, 5.0, 10.0, 20.0, 30.0, 45.0, 60.0, 90.0, 120.0, 180.0, 300.0, 600.0];

/// Upper bounds of histograms of tasks, in seconds.
const TASK: [f64; 11] = [0.1, 0.25, 0.5, 1.0, 5.0, 15.0, 60.0, 300.0, 1800.0, 7200.0, 86_400.0];

/// Handle to the recorder of this process.
#[derive(Clone)]
pub struct Metrics(PrometheusHandle);

impl Metrics {
    /// Installs the recorder once per process. Later calls return the existing one.
    pub fn install() -> Self {
        static INSTALLED: OnceLock<PrometheusHandle> = OnceLock::new();
        let handle = INSTALLED.get_or_init(|| {
            let recorder = recorder();
            let handle = recorder.handle();
            if metrics::set_global_recorder(recorder).is_err() {
                tracing::error!(
                    "another metrics recorder is installed: counters will stay at zero"
                );
            }
            describe::describe();
            handle
        });
        Metrics(handle.clone())
    }

    /// Returns all metrics in the Prometheus text format.
    pub fn page(&self, central: &Central) -> String {
        let mut page = self.0.render();
        page.push_str(&gauges::gauges(central));
        page.push_str(&process::process());
        page
    }

    /// Aggregates recorded samples. Without this call, memory grows until the next scrape.
    pub fn upkeep(&self) {
        self.0.run_upkeep();
    }
}

fn recorder() -> PrometheusRecorder {
    let boots = Matcher::Prefix("meshd_boot_".to_owned());
    PrometheusBuilder::new()
        .set_buckets(&QUICK)
        .and_then(|builder| builder.set_buckets_for_metric(boots, &BOOT))
        .and_then(|builder| {
            builder.set_buckets_for_metric(Matcher::Prefix("meshd_task_".to_owned()), &TASK)
        })
        .expect("the bounds are not empty")
        .build_recorder()
}

/// Counts a response of an API and the bytes of its body. A stream has no known size and counts no
/// bytes. `route` is a fixed name of the router, never text of a client.
pub fn count_request(
    api: &'static str,
    route: impl Into<metrics::SharedString>,
    response: &Response,
) {
    let status = response.status().as_u16();
    let bytes = response.body().size_hint().exact().unwrap_or(0);
    let labels = [
        ("api", api.into()),
        ("route", route.into()),
        ("status", metrics::SharedString::from(status.to_string())),
    ];
    metrics::counter!("meshd_http_requests_total", &labels).increment(1);
    metrics::counter!("meshd_http_response_bytes_total", "api" => api).increment(bytes);
}
