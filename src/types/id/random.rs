//! Random IDs: tasks, operations, boot sessions, and the correlation IDs of requests.

use std::{fmt, str::FromStr};

/// Declares an ID of random bytes, written as hexadecimal characters. IDs are not secrets.
macro_rules! random_id {
    ($(#[$doc:meta])* $id:ident, $bytes:literal, $error:ident, $message:literal) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $id(pub [u8; $bytes]);

        /// The text has another length, or contains characters that are not hexadecimal.
        #[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
        #[error($message)]
        pub struct $error(pub String);

        impl fmt::Display for $id {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.pad(&crate::hex(&self.0))
            }
        }

        impl FromStr for $id {
            type Err = $error;

            fn from_str(text: &str) -> Result<Self, Self::Err> {
                crate::unhex(text).map($id).ok_or_else(|| $error(text.chars().take(40).collect()))
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
    ParseTaskIdError,
    "`{0}` is not a task ID (8 hexadecimal characters); `meshd task list` shows them"
);
random_id!(
    /// The ID of an operation: 8 hexadecimal characters.
    OperationId,
    4,
    ParseOperationIdError,
    "`{0}` is not an operation ID (8 hexadecimal characters); `meshd operation list` shows them"
);
random_id!(
    /// The ID of a boot session: 24 hexadecimal characters.
    BootSessionId,
    12,
    ParseBootSessionIdError,
    "`{0}` is not a boot session ID (24 hexadecimal characters)"
);
random_id!(
    /// Correlation ID of a request in its answer, log lines, events and audit record: 16
    /// hexadecimal characters.
    CorrelationId,
    8,
    ParseCorrelationIdError,
    "`{0}` is not a correlation ID (16 hexadecimal characters)"
);
