//! Classes and sources of events and audit lines, and the bound of each class.

use meshd_model::fleet::{Audit, AuditOutcome, ConditionKind, Event, EventKind, Principal};
use meshd_types::{NodeId, Timestamp};
use std::time::Duration;

/// A record evicts only records of its class.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Class {
    /// A sign of an attack.
    Alarm,
    /// A completed order.
    Order,
    /// A refused order or boot.
    Refusal,
    /// Normal operation of nodes.
    Routine,
    /// Activity of unapproved machines.
    Unknown,
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Source {
    /// No verified identity.
    Unidentified,
    /// An approved node.
    Node(NodeId),
    Caller(Principal),
}

/// The bounds of a class.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Share {
    /// Maximum number of stored records.
    pub(crate) records: usize,
    /// Number of records that a source may write at once.
    pub(crate) burst: u32,
    /// Time after which a source may write one more.
    pub(crate) refill: Duration,
    /// Maximum number of folds of a source by subject; further ones are folded by kind.
    pub(crate) distinct: usize,
}

const fn share(records: usize, burst: u32, refill_seconds: u64, distinct: usize) -> Share {
    Share { records, burst, refill: Duration::from_secs(refill_seconds), distinct }
}

/// A record with bounded retention.
pub(crate) trait Record: Clone {
    fn class(&self) -> Class;
    fn source(&self) -> Source;
    /// Wall-clock time of the record; of a folded one, that of its last repeat.
    fn at(&self) -> Timestamp;
    /// Kind and subject; repeats have the same.
    fn topic(&self) -> (String, String);
    /// Adds the count of an earlier repeat.
    fn add_earlier(&mut self, earlier: &Self);
    fn share(class: Class) -> Share;
}

/// True if a condition describes the health of a node, not its identity.
fn is_routine(condition: ConditionKind) -> bool {
    matches!(
        condition,
        ConditionKind::WeakIdentity
            | ConditionKind::BootStalled
            | ConditionKind::BootLoop
            | ConditionKind::OverlayMissing
            | ConditionKind::RebootRequired
            | ConditionKind::Drift
            | ConditionKind::UnitDrift
            | ConditionKind::CheckFailed
            | ConditionKind::ImageMissing
            | ConditionKind::RenderFailed
            | ConditionKind::AgentOutdated
    )
}

fn is_caller(principal: &Principal) -> bool {
    matches!(principal, Principal::Operator(_) | Principal::Token(_))
}

impl Record for Event {
    fn class(&self) -> Class {
        let is_unidentified = self.is_unknown || self.node.is_none();
        match &self.kind {
            _ if self.by.as_ref().is_some_and(|audit| is_caller(&audit.principal)) => Class::Order,
            EventKind::Raised { condition } | EventKind::Cleared { condition }
                if !is_routine(*condition) =>
            {
                Class::Alarm
            }
            EventKind::OtherDhcpServer | EventKind::PoolExhausted => Class::Alarm,
            EventKind::EnrolRefused | EventKind::BootRefused => Class::Refusal,
            EventKind::Reloaded
            | EventKind::ReloadRefused
            | EventKind::BackedUp
            | EventKind::Restored => Class::Order,
            EventKind::AuthorityChanged => Class::Order,
            _ if is_unidentified => Class::Unknown,
            _ => Class::Routine,
        }
    }

    fn source(&self) -> Source {
        match (&self.by, self.node) {
            (Some(audit), _) if is_caller(&audit.principal) => {
                Source::Caller(audit.principal.clone())
            }
            (_, Some(node)) if !self.is_unknown => Source::Node(node),
            _ => Source::Unidentified,
        }
    }

    fn at(&self) -> Timestamp {
        self.at
    }

    fn topic(&self) -> (String, String) {
        let node = self.node.map(|node| node.to_string()).unwrap_or_default();
        match &self.by {
            Some(audit) => (format!("{} {}", self.kind.word(), audit.verb), node),
            None => (self.kind.word().to_owned(), format!("{node} {}", self.detail)),
        }
    }

    fn add_earlier(&mut self, earlier: &Self) {
        self.count = self.count.saturating_add(earlier.count);
        self.first_at = Some(earlier.first_at.unwrap_or(earlier.at));
    }

    fn share(class: Class) -> Share {
        match class {
            Class::Alarm => share(40_000, 200, 300, 64),
            Class::Order => share(40_000, 2_000, 10, 4_096),
            Class::Refusal => share(20_000, 200, 300, 64),
            Class::Routine => share(80_000, 2_000, 10, 64),
            // A rack of 10,000 new machines may power on at once.
            Class::Unknown => share(20_000, 20_000, 1, 64),
        }
    }
}

impl Record for Audit {
    fn class(&self) -> Class {
        match self.outcome {
            _ if !is_caller(&self.by.principal) => Class::Routine,
            AuditOutcome::Refused(_) => Class::Refusal,
            AuditOutcome::Done | AuditOutcome::Failed(_) => Class::Order,
        }
    }

    fn source(&self) -> Source {
        match self.node {
            Some(node) if self.by.principal == Principal::Node => Source::Node(node),
            _ => Source::Caller(self.by.principal.clone()),
        }
    }

    fn at(&self) -> Timestamp {
        self.at
    }

    fn topic(&self) -> (String, String) {
        (
            format!("{} {}", self.by.verb, self.outcome.code()),
            self.target.clone().unwrap_or_default(),
        )
    }

    fn add_earlier(&mut self, earlier: &Self) {
        self.count = self.count.saturating_add(earlier.count);
        self.first_at = Some(earlier.first_at.unwrap_or(earlier.at));
    }

    fn share(class: Class) -> Share {
        match class {
            Class::Order => share(60_000, 2_000, 10, 4_096),
            Class::Alarm | Class::Refusal => share(20_000, 200, 60, 64),
            Class::Routine | Class::Unknown => share(20_000, 2_000, 10, 64),
        }
    }
}
