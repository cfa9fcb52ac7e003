//! Waits until the units and disks of a stopped VM are free. A VM is released only then, because the next VM may get them.

use crate::vm::host::{
    config::HostConfig,
    resources::{self, HostResources},
};
use meshd_proto::{UnitFacts, UnitState, vm::VmSpec};
use meshd_types::PciAddress;
use std::{sync::Arc, time::Duration};
use tokio::time::sleep;

/// Number of checks, and the pause between two.
const CHECKS: u32 = 10;
const CHECK_INTERVAL: Duration = Duration::from_millis(500);

/// The units and disks of a VM that cannot be assigned again, with the causes; `None` if all are free. Pure.
fn still_in_use(spec: &VmSpec, host: &HostResources) -> Option<String> {
    let has = |unit: &UnitFacts, own: &PciAddress| unit.members.iter().any(|member| member.address == own.as_str());
    let units = host.units.iter().filter(|unit| spec.units.iter().any(|own| has(unit, own)));
    let unit = units.filter(|unit| unit.state != UnitState::Ready).map(|unit| {
        let reason = if unit.reason.is_empty() { String::new() } else { format!(": {}", unit.reason) };
        format!("{} is {}{reason}", unit.name(), unit.state.as_str())
    });
    let lost = spec.units.iter().filter(|own| !host.units.iter().any(|unit| has(unit, own)));
    let lost = lost.map(|own| format!("there is no unit with {own} any more"));
    let disk = spec.disks().map(|disk| disk.as_str()).filter_map(|name| {
        let is = |own: &Option<String>| own.as_deref() == Some(name);
        let disk = host.disks.iter().find(|disk| is(&disk.wwid) || is(&disk.serial))?;
        Some(format!("disk `{name}`: {}", disk.in_use.as_ref()?))
    });
    let found: Vec<String> = unit.chain(lost).chain(disk).collect();
    (!found.is_empty()).then(|| found.join("; "))
}

/// Waits until the units and disks of a VM are free for another VM: the reset of a device takes a while.
///
/// # Errors
/// The units and disks that are still in use, and the causes.
pub async fn wait_until_free(config: &Arc<HostConfig>, spec: &VmSpec) -> Result<(), String> {
    if spec.units.is_empty() && spec.disks().next().is_none() {
        return Ok(());
    }
    let mut checks = 0;
    while let Some(why) = still_in_use(spec, &resources::survey(config, spec).await) {
        checks += 1;
        if checks >= CHECKS {
            return Err(why);
        }
        sleep(CHECK_INTERVAL).await;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::vm::host::resources::HostDisk;
    use meshd_proto::PciFacts;

    #[test]
    fn a_unit_that_is_not_ready_or_gone_and_a_disk_that_is_open_are_told() {
        let spec: VmSpec = serde_json::from_str(
            r#"{"name": "a", "uuid": "11223344-5566-7788-99aa-bbccddeeff00", "vcpus": 1, "memory": "1G",
            "units": ["0000:01:00.0"], "volumes": [{"name": "d", "format": "raw", "disk": "eui.1234"}]}"#,
        )
        .expect("a specification");
        let unit = |address: &str, state: UnitState, reason: &str| UnitFacts {
            group: Some(1),
            state,
            reason: reason.into(),
            members: vec![PciFacts { address: address.into(), ..PciFacts::default() }],
            ..UnitFacts::default()
        };
        let disk = |in_use: Option<&str>| HostDisk {
            name: "sdb".into(),
            serial: Some("eui.1234".into()),
            in_use: in_use.map(str::to_owned),
            ..HostDisk::default()
        };
        let host = |units: Vec<UnitFacts>, disk| HostResources { units, disks: vec![disk], ..HostResources::default() };
        let ready = unit("0000:01:00.0", UnitState::Ready, "");
        let wedged = unit("0000:01:00.0", UnitState::Wedged, "it answers nothing but ones");
        let other = unit("0000:02:00.0", UnitState::Wedged, "of somebody else");
        assert_eq!(still_in_use(&spec, &host(vec![ready.clone(), other], disk(None))), None);
        let why = still_in_use(&spec, &host(vec![wedged], disk(Some("open in dd (7)")))).expect("told");
        assert!(why.contains("wedged: it answers") && why.contains("disk `eui.1234`: open in dd (7)"), "{why}");
        assert!(still_in_use(&spec, &host(Vec::new(), disk(None))).is_some_and(|why| why.contains("no unit with")));
    }
}
