//! What happened stays on record, whoever floods the boot network or asks for more.

use crate::{
    boot::sessions::rig::{Machine, Rig, ordered},
    world::{World, single_orders::SingleOrders as _},
};
use meshd_central::{DhcpChange, DhcpExchange};
use meshd_model::fleet::{DhcpClient, Stage, Verb};
use meshd_store::{AuditFilter, EventFilter};
use meshd_types::MacAddr;
use std::{fs, net::Ipv4Addr, path::Path};

/// Exchanges that are forged; `MESHD_FLOOD` says how many where somebody measures.
const FLOOD: u32 = 12_000;
/// Exchanges that the DHCP server gathers for one change.
const GATHERED: u32 = 100;

/// An exchange of a machine that nobody has ever seen.
fn forged(number: u32) -> DhcpChange {
    let [a, b, c, d] = number.to_be_bytes();
    let address = Some(Ipv4Addr::new(10, 78, c, d));
    DhcpChange::Exchange(DhcpExchange {
        mac: MacAddr([2, 9, a, b, c, d]),
        client: DhcpClient::Firmware,
        uuid: None,
        arch: None,
        is_discover: false,
        secs: 0,
        address,
        lease: None,
        discovered: true,
        relay_port: None,
        is_relayed: false,
        bmc: None,
    })
}

/// Bytes of all files of the store.
pub(super) fn size(dir: &Path) -> u64 {
    fs::read_dir(dir).unwrap().map(|file| file.unwrap().metadata().unwrap().len()).sum()
}

/// What of the memory of this process is in use, in MiB.
fn memory() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.split_whitespace().next().unwrap().parse::<u64>().unwrap() / 1024
}

#[tokio::test]
async fn forged_dhcp_exchanges_evict_no_alarm_no_order_and_no_node() {
    let world = World::prepared("auto");
    let rig = Rig::new(&world);
    let mut machine = Machine::new(&rig, 1);
    machine.boot(Stage::Online).await;
    let id = machine.id();
    // Somebody else asks for its boot: an alarm.
    let query = format!(
        "mac={}&uuid={}&serial={}&manufacturer=QEMU&product=world&arch=x86_64",
        machine.mac, machine.uuid, machine.serial
    );
    let request = meshd_model::boot::ScriptRequest::parse(&query);
    rig.central
        .boot
        .script(request, Ipv4Addr::new(10, 77, 0, 200), crate::boot::sessions::rig::ENDPOINT)
        .await;
    rig.central.nodes.quarantine(id, &ordered(Verb::Quarantine)).await.unwrap();
    let audit = || {
        rig.central.store().audit(&AuditFilter { limit: 100, ..AuditFilter::default() }).unwrap()
    };
    let events = |kind: &str| {
        let all = rig
            .central
            .store()
            .events(EventFilter { limit: usize::MAX, ..EventFilter::default() })
            .unwrap();
        all.into_iter()
            .map(|(_, event)| event)
            .filter(|event| event.kind.word() == kind)
            .collect::<Vec<_>>()
    };
    let alarms = events("boot_impersonated");
    let lines = audit();
    let own = events("certificate_issued");
    assert!(!alarms.is_empty() && !lines.is_empty() && !own.is_empty());

    let flood =
        std::env::var("MESHD_FLOOD").ok().and_then(|count| count.parse().ok()).unwrap_or(FLOOD);
    let before = memory();
    let store = world.path("state/store");
    for begin in (0..flood).step_by(GATHERED as usize) {
        let steps: Vec<_> = (begin..begin + GATHERED).map(forged).collect();
        rig.central.boot.apply_dhcp_changes(&steps).await.unwrap();
    }
    eprintln!(
        "{flood} exchanges: memory {before} to {} MiB, store {} KiB",
        memory(),
        size(&store) / 1024
    );
    assert_eq!(events("boot_impersonated"), alarms);
    assert_eq!(audit(), lines);
    assert_eq!(events("certificate_issued"), own);
    let counted: u32 = events("boot_started").iter().map(|event| event.count).sum();
    assert!(counted > 0 && rig.central.store().read(|model| model.session_count()) <= 20_010);
    assert!(size(&store) < 128 << 20, "{} bytes", size(&store));
}

#[tokio::test]
async fn repeated_fetch_in_one_boot_costs_no_commit() {
    let world = World::prepared("auto");
    let rig = Rig::new(&world);
    let mut machine = Machine::new(&rig, 1);
    machine.boot(Stage::Kernel).await;
    let store = world.path("state/store");
    let before = size(&store);
    for _ in 0..50 {
        machine.fetch(Stage::Kernel).await;
    }
    assert_eq!(size(&store), before, "nothing was written");
    machine.fetch(Stage::Initramfs).await;
    assert!(size(&store) > before, "the next stage is");
}
