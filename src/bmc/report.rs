//! What a BMC reports besides the power state: sensors, its event log, versions of firmware.

/// Maximum number of rows of a report.
pub(crate) const MAX_ROWS: usize = 1024;
/// Maximum length of a text of a report, in characters.
const MAX_TEXT: usize = 200;

/// A report that a BMC is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReportKind {
    Sensors,
    /// The newest events.
    Events,
    Firmware,
    /// Deletes all events. Has no rows.
    ClearEvents,
}

/// One row of a report.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ReportRow {
    /// Number of an event; empty for other rows.
    pub id: String,
    /// Time of an event, as the BMC writes it.
    pub at: String,
    /// Sensor, or part with firmware.
    pub name: String,
    /// Reading with its unit, text of an event, or version; empty if there is none.
    pub value: String,
    /// State of a sensor, or severity of an event, as the BMC writes it.
    pub state: String,
}

/// Returns a text of a BMC without control characters, and bounded.
pub(crate) fn plain(text: &str) -> String {
    let text: String =
        text.trim().chars().map(|c| if c.is_control() { ' ' } else { c }).take(MAX_TEXT).collect();
    text.trim_end().to_owned()
}
