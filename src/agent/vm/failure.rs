//! Failures and refusals of VMs in reports, with texts of bounded length. Pure.

use meshd_proto::vm::{MAX_FAILURE_TEXT, VmFailure, VmFailureKind, VmRefusal, VmRefusalReason};
use meshd_types::truncate;

/// Makes a failure without log lines.
pub fn failure(kind: VmFailureKind, detail: impl Into<String>) -> VmFailure {
    VmFailure::new(kind, truncate(detail.into(), MAX_FAILURE_TEXT))
}

pub fn refusal(reason: VmRefusalReason, detail: impl Into<String>) -> VmRefusal {
    VmRefusal { reason, detail: detail.into() }
}

/// Combines refusals into one failure.
pub fn combine_refusals(refusals: &[VmRefusal]) -> VmFailure {
    let details: Vec<String> = refusals
        .iter()
        .map(|refusal| format!("{}: {}", refusal.reason.as_str(), refusal.detail))
        .collect();
    let reasons = refusals.iter().map(|refusal| refusal.reason).collect();
    VmFailure { reasons, ..failure(VmFailureKind::Refused, details.join("; ")) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reasons_of_a_refusal_survive_truncation_of_its_text() {
        let long = refusal(VmRefusalReason::StoreFull, "x".repeat(MAX_FAILURE_TEXT));
        let last = refusal(VmRefusalReason::VolumeMissing, "root");
        let failure = combine_refusals(&[long, last]);
        assert_eq!(failure.detail.len(), MAX_FAILURE_TEXT);
        assert!(failure.is_same_on_every_node());
    }
}
