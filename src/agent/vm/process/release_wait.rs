//! Waits until the units and disks of a stopped VM are free. A VM is released only then, because
//! the next VM may get them.

use crate::vm::{
    host::{
        config::HostConfig,
        resources::{self, HostResources},
    },
    spec::plan::{has_function, state_text},
};
use meshd_proto::{UnitState, vm::VmSpec};
use std::{sync::Arc, time::Duration};
use tokio::time::sleep;

/// Maximum number of checks, and the pause between two.
const CHECKS: u32 = 10;
const CHECK_INTERVAL: Duration = Duration::from_millis(500);

/// Returns the units and disks of a VM that cannot be assigned again, with the causes; `None` if
/// all are free. Pure.
fn still_in_use(spec: &VmSpec, host: &HostResources) -> Option<String> {
    let units = host
        .units
        .iter()
        .filter(|unit| spec.units.iter().any(|address| has_function(unit, address)));
    let not_ready = units.filter(|unit| unit.state != UnitState::Ready).map(state_text);
    let missing = spec
        .units
        .iter()
        .filter(|address| !host.units.iter().any(|unit| has_function(unit, address)));
    let missing = missing.map(|address| format!("no unit of the node has {address} any more"));
    let disks = spec.disks().map(|disk| disk.as_str()).filter_map(|name| {
        let disk = host.disks.iter().find(|disk| disk.identities().any(|own| own == name))?;
        Some(format!("disk `{name}`: {}", disk.blocked.as_ref()?))
    });
    let in_use: Vec<String> = not_ready.chain(missing).chain(disks).collect();
    (!in_use.is_empty()).then(|| in_use.join("; "))
}

/// Waits until the units and disks of a VM are free for another VM: the reset of a device takes a
/// while. An error names the units and disks that are still in use.
pub async fn wait_until_free(config: &Arc<HostConfig>, spec: &VmSpec) -> Result<(), String> {
    if spec.units.is_empty() && spec.disks().next().is_none() {
        return Ok(());
    }
    let mut checks = 0;
    while let Some(in_use) = still_in_use(spec, &resources::survey(config, spec).await) {
        checks += 1;
        if checks >= CHECKS {
            return Err(in_use);
        }
        sleep(CHECK_INTERVAL).await;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::vm::fixtures;
    use meshd_proto::{DiskFacts, PciFacts, UnitFacts};

    #[test]
    fn missing_or_unready_unit_and_open_disk_are_still_in_use() {
        let volumes = serde_json::json!([{ "name": "d", "format": "raw", "disk": "eui.1234" }]);
        let spec =
            fixtures::spec(serde_json::json!({ "units": ["0000:01:00.0"], "volumes": volumes }));
        let unit = |address: &str, state: UnitState, reason: &str| UnitFacts {
            group: Some(1),
            state,
            reason: reason.into(),
            members: vec![PciFacts { address: address.into(), ..PciFacts::default() }],
            ..UnitFacts::default()
        };
        let disk = |blocked: Option<&str>| DiskFacts {
            name: "sdb".into(),
            serial: Some("eui.1234".into()),
            blocked: blocked.map(str::to_owned),
            ..DiskFacts::default()
        };
        let host = |units: Vec<UnitFacts>, disk| HostResources {
            units,
            disks: vec![disk],
            ..HostResources::default()
        };
        let ready = unit("0000:01:00.0", UnitState::Ready, "");
        let wedged = unit("0000:01:00.0", UnitState::Wedged, "it answers nothing but ones");
        let other = unit("0000:02:00.0", UnitState::Wedged, "of somebody else");
        assert_eq!(still_in_use(&spec, &host(vec![ready.clone(), other], disk(None))), None);
        let why =
            still_in_use(&spec, &host(vec![wedged], disk(Some("open in dd (7)")))).expect("in use");
        assert!(
            why.contains("wedged: it answers") && why.contains("disk `eui.1234`: open in dd (7)"),
            "{why}"
        );
        assert!(
            still_in_use(&spec, &host(Vec::new(), disk(None)))
                .is_some_and(|why| why.contains("no unit of the node has"))
        );
    }
}
