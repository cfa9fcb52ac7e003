//! Random IDs: tasks, operations, rollouts, bisections, boot sessions, and the correlation IDs of requests.

use crate::ParseError;
use std::{fmt, str::FromStr};

/// Declares an ID of random bytes, written as hexadecimal characters. IDs are not secrets.
macro_rules! random_id {
    ($(#[$doc:meta])* $id:ident, $bytes:literal, $is_what:literal, $hint:literal) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $id(pub [u8; $bytes]);

        impl fmt::Display for $id {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.pad(&crate::hex(&self.0))
            }
        }

        impl FromStr for $id {
            type Err = ParseError;

            fn from_str(text: &str) -> Result<Self, Self::Err> {
                let error = || ParseError::of_text(text, $is_what, $hint);
                crate::unhex(text).map($id).ok_or_else(error)
            }
        }

        crate::debug_as_text!($id);
        crate::serde_as_text!($id);
    };
}

random_id!(
    /// The ID of a task: 8 hexadecimal characters.
    TaskId,
    4,
    "is not a task ID (8 hexadecimal characters)",
    "`meshd task list` shows them"
);
random_id!(
    /// The ID of an operation: 8 hexadecimal characters.
    OperationId,
    4,
    "is not an operation ID (8 hexadecimal characters)",
    "`meshd operation list` shows them"
);
random_id!(
    /// The ID of a rollout: 8 hexadecimal characters.
    RolloutId,
    4,
    "is not a rollout ID (8 hexadecimal characters)",
    "`meshd rollout list` shows them"
);
random_id!(
    /// The ID of a bisection: 8 hexadecimal characters.
    BisectionId,
    4,
    "is not a bisection ID (8 hexadecimal characters)",
    "`meshd bisect list` shows them"
);
random_id!(
    /// The ID of a boot session: 24 hexadecimal characters.
    BootSessionId,
    12,
    "is not a boot session ID (24 hexadecimal characters)",
    ""
);
random_id!(
    /// Correlation ID of a request in its answer, log lines, events and audit record: 16
    /// hexadecimal characters.
    CorrelationId,
    8,
    "is not a correlation ID (16 hexadecimal characters)",
    ""
);
