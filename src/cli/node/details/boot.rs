//! The last warm reboot of a node, in words.

use crate::cli::output::print::ago;
use meshd_api::WarmRebootView;
use meshd_types::Timestamp;

/// Returns whether the node booted warm, or why it booted cold.
pub(in crate::cli::node) fn warm_result(reboot: &WarmRebootView, now: Timestamp) -> String {
    let when = ago(reboot.at, now);
    match &reboot.cold {
        None => format!("warm ({when})"),
        Some(cold) => format!("cold ({when}): {}", cold.reason),
    }
}
