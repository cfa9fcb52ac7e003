//! Reports of a BMC by IPMI. Without `-v`, `ipmitool` prints one row a line.

use super::{command, run};
use crate::{
    Bmc, program,
    report::{MAX_ROWS, ReportKind, ReportRow, plain},
};
use meshd_model::operations::BmcFailure;

/// Number of events that are read, the newest.
const EVENTS: &str = "500";

/// Asks for a report. A request for the power state comes first: it alone tells a wrong password
/// from a BMC that does not answer.
pub(crate) async fn report(bmc: &Bmc, kind: ReportKind) -> Result<Vec<ReportRow>, BmcFailure> {
    run(bmc, &["chassis", "power", "status"]).await?;
    let words: &[&str] = match kind {
        ReportKind::Sensors => &["sdr", "list"],
        ReportKind::Events => &["sel", "elist", "last", EVENTS],
        ReportKind::Firmware => &["mc", "info"],
        ReportKind::ClearEvents => &["sel", "clear"],
    };
    let output = program::run(command(bmc, &[], words)?, bmc.timeout).await?;
    let rows: Vec<ReportRow> = match kind {
        ReportKind::Sensors => output.stdout.lines().filter_map(sensor).take(MAX_ROWS).collect(),
        ReportKind::Events => output.stdout.lines().filter_map(event).take(MAX_ROWS).collect(),
        ReportKind::Firmware => firmware(&output.stdout),
        ReportKind::ClearEvents => Vec::new(),
    };
    // Some BMCs lack a record in the middle: the rows before it count.
    if output.code == Some(0) || !rows.is_empty() { Ok(rows) } else { Err(super::failure(&output)) }
}

/// Parses `CPU Temp | 45 degrees C | ok`.
fn sensor(line: &str) -> Option<ReportRow> {
    let mut cells = line.split('|').map(plain);
    let name = cells.next()?;
    let value = cells.next()?;
    let state = cells.next()?;
    let value =
        if ["disabled", "no reading"].contains(&value.as_str()) { String::new() } else { value };
    Some(ReportRow { name, value, state, ..ReportRow::default() })
}

/// Parses `1 | 11/28/2026 | 17:52:42 | Temperature CPU Temp | Upper Critical going high | Asserted`.
fn event(line: &str) -> Option<ReportRow> {
    let cells: Vec<String> = line.split('|').map(plain).collect();
    let [id, day, time, name, value, rest @ ..] = cells.as_slice() else { return None };
    let (state, reading) = match rest {
        [state, reading @ ..] => (state.clone(), reading.join(" ")),
        [] => (String::new(), String::new()),
    };
    let value =
        if reading.is_empty() { value.clone() } else { plain(&format!("{value}: {reading}")) };
    Some(ReportRow {
        id: id.clone(),
        at: format!("{day} {time}"),
        name: name.clone(),
        value,
        state,
    })
}

/// Parses the versions of `mc info`.
fn firmware(text: &str) -> Vec<ReportRow> {
    let value = |key: &str| {
        let line = text.lines().find(|line| line.starts_with(key))?;
        line.split_once(':').map(|(_, value)| plain(value)).filter(|value| !value.is_empty())
    };
    let row = |name: &str, key: &str| {
        Some(ReportRow { name: name.to_owned(), value: value(key)?, ..ReportRow::default() })
    };
    [row("BMC", "Firmware Revision"), row("IPMI", "IPMI Version")].into_iter().flatten().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_of_ipmitool_are_read() {
        let found = sensor("CPU Temp         | 45 degrees C      | ok").unwrap();
        let cells = (found.name.as_str(), found.value.as_str(), found.state.as_str());
        assert_eq!(cells, ("CPU Temp", "45 degrees C", "ok"));
        assert_eq!(sensor("Fan 1            | disabled          | ns").unwrap().value, "");
        let line = "   1 |  Pre-Init  |0000001279| Temperature CPU Temp | Upper Critical going high | Asserted | Reading 0 > Threshold 0 degrees C";
        let found = event(line).unwrap();
        assert_eq!((found.id.as_str(), found.at.as_str()), ("1", "Pre-Init 0000001279"));
        assert_eq!(
            (found.name.as_str(), found.state.as_str()),
            ("Temperature CPU Temp", "Asserted")
        );
        assert_eq!(found.value, "Upper Critical going high: Reading 0 > Threshold 0 degrees C");
        let versions = firmware(
            "Firmware Revision         : 9.08\nIPMI Version : 2.0\nAux Firmware Rev Info     : \n",
        );
        let versions: Vec<_> =
            versions.iter().map(|row| (row.name.as_str(), row.value.as_str())).collect();
        assert_eq!(versions, [("BMC", "9.08"), ("IPMI", "2.0")]);
    }

    #[test]
    fn hostile_line_is_a_bounded_row_or_none() {
        for line in [
            "",
            "|",
            "||||||",
            "\u{1b}[2J|\u{7}|\n|a|b|c|d",
            &"x|".repeat(300),
            &format!("{0}|{0}|{0}|{0}|{0}|{0}", "y".repeat(900)),
        ] {
            for row in [sensor(line), event(line)].into_iter().flatten() {
                for text in [row.id, row.at, row.name, row.value, row.state] {
                    assert!(
                        !text.chars().any(char::is_control) && text.chars().count() <= 402,
                        "{text:?}"
                    );
                }
            }
            assert!(firmware(line).is_empty());
        }
    }
}
