//! Messages of the QEMU Machine Protocol (QMP), one JSON object a line. Pure.

use super::vm_state_machine::ShutdownCause;
use crate::vm::spec::argv::VOLUME_NODE;
use serde_json::{Value, json};

/// Maximum length of a line in bytes. Answers have a few KiB.
pub const MAX_LINE: usize = 256 * 1024;
/// Maximum length of texts from QEMU, in characters.
const MAX_TEXT: usize = 300;

/// A message of QEMU.
#[derive(Clone, Debug, PartialEq)]
pub enum QmpMessage {
    /// The greeting; QEMU waits for `qmp_capabilities`.
    Greeting,
    /// A command succeeded.
    Done {
        /// ID of the command.
        id: u64,
        /// Returned value.
        value: Value,
    },
    /// A command failed.
    Refused {
        /// ID of the command.
        id: u64,
        /// QEMU's description of the error.
        reason: String,
    },
    /// The guest was paused; `query-status` tells why.
    Stopped,
    /// The guest was resumed.
    Resumed,
    /// A disk request of the guest failed and paused it.
    DiskError(DiskError),
    /// QEMU is about to end.
    ShuttingDown(ShutdownCause),
    /// Any other event, or an invalid message.
    Other,
}

/// A failed disk request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DiskError {
    /// Index of the volume in the specification; `None` for another disk.
    pub volume: Option<usize>,
    /// QEMU's word for the operation.
    pub operation: String,
    /// Error of the operating system.
    pub reason: String,
}

/// A paused guest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pause {
    /// QEMU's run state.
    pub word: String,
    /// The guest can resume.
    pub resumable: bool,
}

/// Parses one line.
pub fn read(line: &[u8]) -> QmpMessage {
    let Ok(Value::Object(mut message)) = serde_json::from_slice::<Value>(line) else { return QmpMessage::Other };
    let text = |value: Option<&Value>| -> String {
        value.and_then(Value::as_str).unwrap_or_default().chars().take(MAX_TEXT).collect()
    };
    let id = message.get("id").and_then(Value::as_u64).unwrap_or(0);
    if let Some(value) = message.remove("return") {
        return QmpMessage::Done { id, value };
    }
    if let Some(error) = message.get("error") {
        return QmpMessage::Refused { id, reason: text(error.get("desc")) };
    }
    let data = message.get("data");
    match message.get("event").and_then(Value::as_str) {
        Some("SHUTDOWN") => QmpMessage::ShuttingDown(leaving(text(data.and_then(|data| data.get("reason"))))),
        Some("STOP") => QmpMessage::Stopped,
        Some("RESUME") => QmpMessage::Resumed,
        Some("BLOCK_IO_ERROR") => {
            let field = |name: &str| text(data.and_then(|data| data.get(name)));
            if field("action") != "stop" {
                return QmpMessage::Other;
            }
            let volume = field("node-name").strip_prefix(VOLUME_NODE).and_then(|index| index.parse().ok());
            QmpMessage::DiskError(DiskError { volume, operation: field("operation"), reason: field("reason") })
        }
        Some("GUEST_PANICKED") => QmpMessage::ShuttingDown(ShutdownCause::Panic),
        None if message.contains_key("QMP") => QmpMessage::Greeting,
        _ => QmpMessage::Other,
    }
}

/// `ShutdownCause` of QEMU's qapi/run-state.json.
fn leaving(reason: String) -> ShutdownCause {
    match reason.as_str() {
        "guest-shutdown" | "guest-reset" => ShutdownCause::Guest,
        "guest-panic" => ShutdownCause::Panic,
        _ => ShutdownCause::Outside { reason },
    }
}

/// Returns a command without arguments as a line.
pub fn command(id: u64, name: &str) -> String {
    format!("{}\n", json!({ "execute": name, "id": id }))
}

/// Returns whether an answer to `query-status` says that the guest has not started.
pub fn is_before_start(status: &Value) -> bool {
    status.get("status").and_then(Value::as_str) == Some("prelaunch")
}

/// Returns the pause that an answer to `query-status` describes (`RunState` of QEMU's qapi/run-state.json).
pub fn pause(status: &Value) -> Option<Pause> {
    let word = status.get("status").and_then(Value::as_str)?;
    let resumable = match word {
        "io-error" | "paused" => true,
        "internal-error" | "guest-panicked" | "shutdown" | "watchdog" => false,
        _ => return None,
    };
    Some(Pause { word: word.to_owned(), resumable })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn one(text: &str) -> QmpMessage {
        read(text.as_bytes())
    }

    #[test]
    fn what_qemu_says_is_understood() {
        assert_eq!(one(r#"{"QMP": {"version": {}, "capabilities": ["oob"]}}"#), QmpMessage::Greeting);
        assert_eq!(one(r#"{"return": {}, "id": 7}"#), QmpMessage::Done { id: 7, value: json!({}) });
        let refused = one(r#"{"id": 3, "error": {"class": "GenericError", "desc": "no"}}"#);
        assert_eq!(refused, QmpMessage::Refused { id: 3, reason: "no".into() });
        let left =
            |reason: &str| one(&format!(r#"{{"event": "SHUTDOWN", "data": {{"guest": true, "reason": "{reason}"}}}}"#));
        assert_eq!(left("guest-shutdown"), QmpMessage::ShuttingDown(ShutdownCause::Guest));
        assert_eq!(left("guest-panic"), QmpMessage::ShuttingDown(ShutdownCause::Panic));
        assert_eq!(
            left("host-signal"),
            QmpMessage::ShuttingDown(ShutdownCause::Outside { reason: "host-signal".into() })
        );
        assert_eq!(
            one(r#"{"event": "GUEST_PANICKED", "data": {"action": "pause"}}"#),
            QmpMessage::ShuttingDown(ShutdownCause::Panic)
        );
        assert_eq!(one(r#"{"event": "RTC_CHANGE"}"#), QmpMessage::Other);
        assert_eq!(
            (one(r#"{"event": "STOP"}"#), one(r#"{"event": "RESUME"}"#)),
            (QmpMessage::Stopped, QmpMessage::Resumed)
        );
        let fault = |action: &str| {
            let data = format!(
                r#"{{"device": "", "node-name": "volume1", "reason": "No space left on device", "nospace": true,
                "operation": "write", "action": "{action}"}}"#
            );
            one(&format!(r#"{{"event": "BLOCK_IO_ERROR", "data": {data}}}"#))
        };
        let reason = "No space left on device".to_owned();
        let told = DiskError { volume: Some(1), operation: "write".into(), reason };
        assert_eq!((fault("stop"), fault("report")), (QmpMessage::DiskError(told), QmpMessage::Other));
    }

    #[test]
    fn answers_are_looked_through() {
        assert!(is_before_start(&json!({"status": "prelaunch", "running": false})));
        assert!(!is_before_start(&json!({"status": "running"})));
        let held = |word: &str| pause(&json!({"status": word, "running": false})).map(|pause| pause.resumable);
        assert_eq!((held("io-error"), held("internal-error"), held("running")), (Some(true), Some(false), None));
        assert_eq!((held("suspended"), pause(&json!(7))), (None, None), "a guest that sleeps is not held");
        assert_eq!(command(4, "cont"), "{\"execute\":\"cont\",\"id\":4}\n");
    }

    proptest! {
        #[test]
        fn any_line_is_read(junk: Vec<u8>, text in "\\{\"(event|return|error|QMP|id|data)\": ?(\\{|\\[|\"|[0-9])?\\PC{0,40}") {
            let _ = read(&junk);
            let _ = read(text.as_bytes());
        }
    }
}
