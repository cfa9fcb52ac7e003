//! Reports of a BMC by Redfish. Each answer is bounded, and so is the number of requests.

use super::{Session, System, failed, is_path, unsupported};
use crate::report::{MAX_ROWS, ReportKind, ReportRow, plain};
use hyper::Method;
use meshd_model::operations::BmcFailure;
use serde_json::{Value, json};

/// Maximum number of members of a collection that are read one by one.
const MAX_MEMBERS: usize = 64;
const INVENTORY: &str = "/redfish/v1/UpdateService/FirmwareInventory";

type Rows = Result<Vec<ReportRow>, BmcFailure>;

/// Asks for a report.
pub(crate) async fn report(session: &Session, kind: ReportKind) -> Rows {
    let system = session.system().await?;
    let mut rows = match kind {
        ReportKind::Sensors => sensors(session, &system).await?,
        ReportKind::Events => events(session, &system).await?,
        ReportKind::Firmware => firmware(session, &system).await?,
        ReportKind::ClearEvents => {
            let service = log_service(session, &system, kind).await?;
            let target = service["Actions"]["#LogService.ClearLog"]["target"].as_str();
            let target = target.filter(|path| is_path(path));
            let target = target.ok_or_else(|| unsupported("the BMC cannot clear its log"))?;
            session.call(Method::POST, target, Some(&json!({})), None).await?;
            Vec::new()
        }
    };
    rows.truncate(MAX_ROWS);
    Ok(rows)
}

/// Reads the members that are listed as links or as whole values.
async fn members(session: &Session, collection: &Value) -> Result<Vec<Value>, BmcFailure> {
    let mut found = Vec::new();
    for member in collection["Members"].as_array().into_iter().flatten().take(MAX_ROWS) {
        let path = member["@odata.id"].as_str().filter(|path| is_path(path));
        let is_link = member.as_object().is_some_and(|object| object.len() == 1);
        match path {
            Some(path) if is_link && found.len() < MAX_MEMBERS => {
                found.push(session.get(path).await?);
            }
            _ if !is_link => found.push(member.clone()),
            _ => {}
        }
    }
    Ok(found)
}

/// Returns the paths of a list of links.
fn links(list: &Value) -> Vec<&str> {
    let paths = list.as_array().into_iter().flatten().take(MAX_MEMBERS);
    paths.filter_map(|link| link["@odata.id"].as_str()).filter(|path| is_path(path)).collect()
}

fn link<'v>(value: &'v Value, key: &str) -> Option<&'v str> {
    value[key]["@odata.id"].as_str().filter(|path| is_path(path))
}

async fn sensors(session: &Session, system: &System) -> Rows {
    let mut rows = Vec::new();
    let mut is_offered = false;
    for chassis in links(&system.value["Links"]["Chassis"]) {
        let chassis = session.get(chassis).await?;
        let old = [link(&chassis, "Thermal"), link(&chassis, "Power")];
        for path in old.into_iter().flatten() {
            is_offered = true;
            rows.extend(readings(&session.get(path).await?));
        }
        // Newer BMCs have one collection of all sensors instead.
        if let Some(path) = link(&chassis, "Sensors").filter(|_| old == [None, None]) {
            is_offered = true;
            let sensors = members(session, &session.get(path).await?).await?;
            rows.extend(sensors.iter().map(|sensor| {
                row(sensor, &sensor["Reading"], sensor["ReadingUnits"].as_str().unwrap_or_default())
            }));
        }
    }
    if is_offered { Ok(rows) } else { Err(unsupported("the BMC offers no sensors")) }
}

/// Returns the rows of `Thermal` and `Power`.
fn readings(value: &Value) -> Vec<ReportRow> {
    const LISTS: [(&str, &str, &str); 5] = [
        ("Temperatures", "ReadingCelsius", "degrees C"),
        ("Fans", "Reading", "RPM"),
        ("Voltages", "ReadingVolts", "V"),
        ("PowerControl", "PowerConsumedWatts", "W"),
        ("PowerSupplies", "LastPowerOutputWatts", "W"),
    ];
    let mut rows = Vec::new();
    for (list, key, unit) in LISTS {
        for sensor in value[list].as_array().into_iter().flatten() {
            let unit = sensor["ReadingUnits"].as_str().unwrap_or(unit);
            rows.push(row(sensor, &sensor[key], unit));
        }
    }
    rows
}

fn row(sensor: &Value, reading: &Value, unit: &str) -> ReportRow {
    let name = sensor["Name"].as_str().or(sensor["FanName"].as_str()).unwrap_or_default();
    let value = if reading.is_number() { format!("{reading} {unit}") } else { String::new() };
    let status = &sensor["Status"];
    let state = status["Health"].as_str().or(status["State"].as_str()).unwrap_or_default();
    ReportRow {
        name: plain(name),
        value: plain(&value),
        state: plain(state),
        ..ReportRow::default()
    }
}

/// Returns the log service of the system: the one of hardware events. To read, any other will do:
/// the first.
async fn log_service(
    session: &Session,
    system: &System,
    kind: ReportKind,
) -> Result<Value, BmcFailure> {
    let none = || unsupported("the BMC offers no event log of the system");
    let path = link(&system.value, "LogServices").ok_or_else(none)?;
    let services = members(session, &session.get(path).await?).await?;
    let is_sel = |service: &&Value| {
        let id = service["Id"].as_str().unwrap_or_default().to_lowercase();
        id == "sel" || id.contains("event")
    };
    let other = services.first().filter(|_| kind != ReportKind::ClearEvents);
    services.iter().find(is_sel).or(other).cloned().ok_or_else(none)
}

async fn events(session: &Session, system: &System) -> Rows {
    let service = log_service(session, system, ReportKind::Events).await?;
    let path = link(&service, "Entries").ok_or_else(|| failed("the event log has no entries"))?;
    let entries = members(session, &session.get(path).await?).await?;
    Ok(entries.iter().map(entry).collect())
}

fn entry(entry: &Value) -> ReportRow {
    let text = |key: &str| plain(entry[key].as_str().unwrap_or_default());
    ReportRow {
        id: text("Id"),
        at: text("Created"),
        name: text("SensorType"),
        value: text("Message"),
        state: text("Severity"),
    }
}

async fn firmware(session: &Session, system: &System) -> Rows {
    let version = |name: &str, value: &Value| {
        let value = value.as_str().map(plain).filter(|value| !value.is_empty())?;
        Some(ReportRow { name: plain(name), value, ..ReportRow::default() })
    };
    let mut rows = Vec::from_iter(version("BIOS", &system.value["BiosVersion"]));
    for manager in links(&system.value["Links"]["ManagedBy"]) {
        let manager = session.get(manager).await?;
        rows.extend(version("BMC", &manager["FirmwareVersion"]));
    }
    // Many BMCs have no inventory.
    if let Ok(inventory) = session.get(INVENTORY).await {
        for part in members(session, &inventory).await? {
            rows.extend(version(part["Name"].as_str().unwrap_or_default(), &part["Version"]));
        }
    }
    Ok(rows)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn readings_of_thermal_and_power_are_read() {
        let value = json!({
            "Temperatures": [{
                "Name": "CPU\u{1b}1", "ReadingCelsius": 45.5, "Status": { "Health": "OK" }
            }],
            "Fans": [
                { "FanName": "Fan 1", "Reading": 30, "ReadingUnits": "Percent" },
                { "Name": "Fan 2", "Reading": null, "Status": { "State": "Absent" } }
            ],
            "Voltages": 7,
            "PowerControl": [{ "Name": "System", "PowerConsumedWatts": 220 }]
        });
        let rows = readings(&value);
        let cells: Vec<[&str; 3]> =
            rows.iter().map(|row| [row.name.as_str(), &row.value, &row.state]).collect();
        assert_eq!(
            cells,
            [
                ["CPU 1", "45.5 degrees C", "OK"],
                ["Fan 1", "30 Percent", ""],
                ["Fan 2", "", "Absent"],
                ["System", "220 W", ""]
            ]
        );
    }

    #[test]
    fn any_json_is_a_row_or_no_link() {
        for text in ["null", "[]", "{}", r#"{"Name":7,"Status":[]}"#, r#"[{"@odata.id":"//x"}]"#] {
            let value: Value = serde_json::from_str(text).unwrap();
            assert!(readings(&value).is_empty() && links(&value).is_empty(), "{text}");
            assert!(link(&value, "Sensors").is_none() && row(&value, &value, "W").value.is_empty());
        }
        let found =
            entry(&json!({ "Id": "7", "Created": "2026-01-31T12:00:00Z", "Message": "a\nb" }));
        assert_eq!((found.id.as_str(), found.value.as_str()), ("7", "a b"));
    }
}
