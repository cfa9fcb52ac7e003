//! Runs the duties of a boot.

use super::error::BootError;
use crate::{
    console,
    fetch::{self, HttpUrl},
};
use meshd_types::{BootSessionId, Hint as _};
use std::{
    convert::Infallible,
    panic::{AssertUnwindSafe, catch_unwind},
};

/// Where a failure is reported, once that is known and the network is up.
#[derive(Default)]
pub struct FailureReport {
    pub target: Option<(HttpUrl, BootSessionId)>,
}

/// Runs the duties of a boot. If one fails, or panics, prints and reports why, and returns.
pub fn attempt(duties: impl FnOnce(&mut FailureReport) -> Result<Infallible, BootError>) {
    // The message of a panic: the reason that is reported says where it was.
    std::panic::set_hook(Box::new(|panic| console::message(panic)));
    let mut report = FailureReport::default();
    let error = match catch_unwind(AssertUnwindSafe(|| duties(&mut report))) {
        Ok(Err(error)) => error,
        Err(payload) => {
            let text = payload.downcast_ref::<String>().cloned();
            let text = text.or_else(|| payload.downcast_ref::<&str>().map(|it| (*it).to_owned()));
            BootError::Panic(text.unwrap_or_default())
        }
    };
    console::message(format_args!("FAILED: {error}"));
    if let Some(hint) = error.hint() {
        console::message(format_args!("hint: {hint}"));
    }
    if let Some((url, session)) = &report.target {
        match fetch::report_failure(url, *session, &error.to_string()) {
            Ok(status) => console::message(format_args!("reported: status {status}")),
            Err(error) => console::message(format_args!("report to {url}: {error}")),
        }
    }
}
