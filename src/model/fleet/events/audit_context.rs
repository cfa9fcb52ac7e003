//! Caller and reason of an order. The context is part of the events and of the audit record.

use meshd_types::{ApiTokenName, CorrelationId, ParseError, RuleName};
use serde::{Deserialize, Serialize};
use std::{
    fmt,
    str::FromStr,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

/// Maximum length of a reason, in characters.
pub const MAX_REASON: usize = 500;

/// The caller. Stored and shown as text: `uid:0`, `token:ci`, `rule:racks`, `node`, `meshd`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Principal {
    /// A process at the admin socket, by its user ID.
    Operator(u32),
    Token(ApiTokenName),
    /// An admission rule of the site.
    Rule(RuleName),
    Node,
    /// The central node: a timer, a reload.
    Meshd,
}

/// The operations. Each word equals the CLI verb, if there is one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[derive(utoipa::ToSchema)]
pub enum Verb {
    Approve,
    Reject,
    AssignProfile,
    Vars,
    Label,
    BootOnce,
    Pin,
    Release,
    Quarantine,
    Reboot,
    Power,
    BootDevice,
    Identify,
    SelClear,
    NodeConsole,
    Drain,
    Resume,
    Maintenance,
    Rename,
    Replace,
    AcceptNic,
    Remove,
    MachineImport,
    MachineRemove,
    Reload,
    Rollback,
    TokenCreate,
    TokenRevoke,
    CertificateRevoke,
    CaRotate,
    ApiTokenCreate,
    ApiTokenRevoke,
    Backup,
    VmCreate,
    VmStart,
    VmStop,
    VmRestart,
    VmDelete,
    Fence,
    SlotApprove,
    SlotDisable,
    SlotEnable,
    SlotRelease,
    VmConsole,
    NodeShell,
    VmShell,
    VolumeRemove,
    Doctor,
    TaskRun,
    TaskCancel,
    ContainerRun,
    ContainerStart,
    ContainerStop,
    ContainerDelete,
    ContainerExec,
    DiskWrite,
    DiskWipe,
    OperationCancel,
    RolloutPlan,
    RolloutStart,
    RolloutPause,
    RolloutResume,
    RolloutAbort,
    RolloutUndo,
    BisectStart,
    BisectAbort,
    Enrol,
    Renew,
}

/// The context of an order: caller, operation, reason, correlation ID.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct AuditContext {
    #[serde(rename = "actor")]
    pub principal: Principal,
    pub verb: Verb,
    /// Reason in the caller's words.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// The caller accepts the loss of VMs.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub forced: bool,
    /// Correlation ID in the answer, log, events and audit log.
    pub correlation_id: CorrelationId,
    /// Shared by all copies: whether a transaction wrote the order to the audit log.
    #[serde(skip)]
    pub audited: AuditMark,
}

/// Tells the caller of an order whether the order wrote a line to the audit log. All copies share
/// it; it is no part of the order's value.
#[derive(Clone, Default)]
pub struct AuditMark(Arc<AtomicBool>);

impl AuditMark {
    pub fn set(&self) {
        self.0.store(true, Ordering::Release);
    }

    pub fn is_set(&self) -> bool {
        self.0.load(Ordering::Acquire)
    }
}

impl PartialEq for AuditMark {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

impl Eq for AuditMark {}

impl fmt::Debug for AuditMark {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.is_set().fmt(f)
    }
}

impl AuditContext {
    /// Creates a context without reason.
    pub fn new(principal: Principal, verb: Verb, correlation_id: CorrelationId) -> Self {
        AuditContext {
            principal,
            verb,
            reason: None,
            forced: false,
            correlation_id,
            audited: AuditMark::default(),
        }
    }
}

impl fmt::Display for Principal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Principal::Operator(uid) => write!(f, "uid:{uid}"),
            Principal::Token(name) => write!(f, "token:{name}"),
            Principal::Rule(name) => write!(f, "rule:{name}"),
            Principal::Node => f.write_str("node"),
            Principal::Meshd => f.write_str("meshd"),
        }
    }
}

impl FromStr for Principal {
    type Err = ParseError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let principal = match text.split_once(':') {
            Some(("uid", uid)) => uid.parse().ok().map(Principal::Operator),
            Some(("token", name)) => name.parse().ok().map(Principal::Token),
            Some(("rule", name)) => name.parse().ok().map(Principal::Rule),
            None if text == "node" => Some(Principal::Node),
            None if text == "meshd" => Some(Principal::Meshd),
            _ => None,
        };
        let hint = "write uid:NUMBER, token:NAME, rule:NAME, node or meshd";
        principal.ok_or_else(|| ParseError::of_text(text, "is not a caller", hint))
    }
}

meshd_types::serde_as_text!(Principal);

impl fmt::Display for Verb {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.serialize(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn audit_context_round_trips() {
        let principals = ["uid:0", "uid:1000", "token:ci", "rule:racks", "node", "meshd"];
        for text in principals {
            assert_eq!(
                text.parse::<Principal>().map(|principal| principal.to_string()).as_deref(),
                Ok(text)
            );
        }
        for text in ["", "uid:", "uid:-1", "token:../x", "root", "node:"] {
            assert!(text.parse::<Principal>().is_err(), "{text}");
        }
        let by =
            AuditContext::new(Principal::Operator(0), Verb::AssignProfile, CorrelationId([1; 8]));
        let stored = serde_json::to_string(&by).expect("plain data");
        assert_eq!(
            stored,
            r#"{"actor":"uid:0","verb":"assign-profile","correlation_id":"0101010101010101"}"#
        );
        assert_eq!(serde_json::from_str::<AuditContext>(&stored).expect("what was written"), by);
        assert_eq!(Verb::AssignProfile.to_string(), "assign-profile");
    }
}
