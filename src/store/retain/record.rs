//! Classes and sources of events and audit lines, and the bound of each class.

use meshd_model::fleet::{Audit, AuditOutcome, ConditionKind, Event, EventKind, Principal};
use meshd_types::{NodeId, Timestamp};
use std::time::Duration;

/// What drives out what.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Class {
    /// An attack, or something that looks like one.
    Alarm,
    /// An operator did something.
    Order,
    /// Somebody was refused something.
    Refusal,
    /// What nodes do from day to day.
    Routine,
    /// What machines do that nobody let in.
    Unknown,
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Source {
    /// Somebody without a name that meshd could check.
    Nobody,
    /// A node that was let in.
    Node(NodeId),
    /// An operator, a token, a rule, or meshd itself.
    Caller(Principal),
}

/// What one class may take.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Share {
    /// Records that are kept.
    pub(crate) records: usize,
    /// Records that a source writes at once.
    pub(crate) burst: u32,
    /// Time in which a source gets one more.
    pub(crate) refill: Duration,
    /// Folded records of a source that are told apart by more than their kind.
    pub(crate) distinct: usize,
}

const fn share(records: usize, burst: u32, refill_seconds: u64, distinct: usize) -> Share {
    Share { records, burst, refill: Duration::from_secs(refill_seconds), distinct }
}

/// A kind of records that is kept this way.
pub(crate) trait Record: Clone {
    /// What it is told apart by, for its bound.
    fn class(&self) -> Class;
    /// Who caused it, within its class.
    fn source(&self) -> Source;
    /// Wall-clock time of the record; of a folded one, that of its last repeat.
    fn at(&self) -> Timestamp;
    /// What, in general, and what in particular: repeats agree in both.
    fn topic(&self) -> (String, String);
    /// Counts what an earlier record stands for.
    fn add_earlier(&mut self, earlier: &Self);
    /// What a class of these records may take.
    fn share(class: Class) -> Share;
}

/// True if a condition is an everyday one: it is about a node's health, not about who it is.
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

fn is_caller(who: &Principal) -> bool {
    matches!(who, Principal::Operator(_) | Principal::Token(_))
}

impl Record for Event {
    fn class(&self) -> Class {
        let is_nobodys = self.is_unknown || self.node.is_none();
        match &self.kind {
            _ if self.by.as_ref().is_some_and(|by| is_caller(&by.who)) => Class::Order,
            EventKind::Raised { condition } | EventKind::Cleared { condition } if !is_routine(*condition) => {
                Class::Alarm
            }
            EventKind::OtherDhcpServer | EventKind::PoolExhausted => Class::Alarm,
            EventKind::EnrolRefused | EventKind::BootRefused => Class::Refusal,
            EventKind::Reloaded | EventKind::ReloadRefused | EventKind::BackedUp | EventKind::Restored => Class::Order,
            EventKind::AuthorityChanged => Class::Order,
            _ if is_nobodys => Class::Unknown,
            _ => Class::Routine,
        }
    }

    fn source(&self) -> Source {
        match (&self.by, self.node) {
            (Some(by), _) if is_caller(&by.who) => Source::Caller(by.who.clone()),
            (_, Some(node)) if !self.is_unknown => Source::Node(node),
            _ => Source::Nobody,
        }
    }

    fn at(&self) -> Timestamp {
        self.at
    }

    fn topic(&self) -> (String, String) {
        let node = self.node.map(|node| node.to_string()).unwrap_or_default();
        match &self.by {
            Some(by) => (format!("{} {}", self.kind.word(), by.verb), node),
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
            _ if !is_caller(&self.by.who) => Class::Routine,
            AuditOutcome::Refused(_) => Class::Refusal,
            AuditOutcome::Done | AuditOutcome::Failed(_) => Class::Order,
        }
    }

    fn source(&self) -> Source {
        match self.node {
            Some(node) if self.by.who == Principal::Node => Source::Node(node),
            _ => Source::Caller(self.by.who.clone()),
        }
    }

    fn at(&self) -> Timestamp {
        self.at
    }

    fn topic(&self) -> (String, String) {
        (format!("{} {}", self.by.verb, self.outcome.code()), self.target.clone().unwrap_or_default())
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
