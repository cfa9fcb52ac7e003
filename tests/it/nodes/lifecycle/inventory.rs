//! The hardware of a node by its names: memory modules, GPUs, disks, NICs.

use crate::world::{World, eventually, node::PxeNode};
use std::{fs, os::unix::fs::symlink, path::Path};

/// The tables of the firmware of a machine in QEMU, as hexadecimal digits.
const SMBIOS: &str = include_str!("../../../golden/smbios-qemu-7.2.hex");
/// Functions: address, vendor, device, class, driver.
const FUNCTIONS: [[&str; 5]; 4] = [
    ["0000:01:00.0", "1002", "740f", "120000", "amdgpu"],
    ["0000:02:00.0", "10de", "2330", "030200", "vfio-pci"],
    ["0000:03:00.0", "10de", "2330", "030200", "vfio-pci"],
    ["0000:04:00.0", "15b3", "101d", "020000", "mlx5_core"],
];

fn write(root: &Path, path: &str, content: impl AsRef<[u8]>) {
    let file = root.join(path);
    fs::create_dir_all(file.parent().unwrap()).unwrap();
    fs::write(file, content).unwrap();
}

/// Gives a machine its hardware.
fn equip(root: &Path, mac: &str) {
    let digits: String = SMBIOS.split_whitespace().collect();
    let byte = |at: usize| u8::from_str_radix(&digits[at..at + 2], 16).unwrap();
    let table: Vec<u8> = (0..digits.len()).step_by(2).map(byte).collect();
    write(root, "sys/firmware/dmi/tables/DMI", table);
    write(root, "proc/meminfo", "MemTotal: 20971520 kB\nMemAvailable: 20000000 kB\n");
    fs::create_dir_all(root.join("sys/bus/pci/devices")).unwrap();
    for [address, vendor, device, class, driver] in FUNCTIONS {
        let folder = format!("sys/devices/pci0000:00/{address}");
        write(root, &format!("{folder}/vendor"), format!("0x{vendor}\n"));
        write(root, &format!("{folder}/device"), format!("0x{device}\n"));
        write(root, &format!("{folder}/class"), format!("0x{class}\n"));
        symlink(format!("../../../bus/pci/drivers/{driver}"), root.join(&folder).join("driver"))
            .unwrap();
        let listed = root.join("sys/bus/pci/devices").join(address);
        symlink(format!("../../../devices/pci0000:00/{address}"), listed).unwrap();
    }
    write(root, "sys/devices/pci0000:00/0000:01:00.0/mem_info_vram_total", "68702699520\n");
    for (name, text) in [("address", mac), ("carrier", "1\n"), ("speed", "100000\n")] {
        write(root, &format!("sys/class/net/eth0/{name}"), text);
    }
    let device = "../../../devices/pci0000:00/0000:04:00.0";
    symlink(device, root.join("sys/class/net/eth0/device")).unwrap();
    for disk in ["nvme0n1", "nvme1n1"] {
        write(root, &format!("sys/block/{disk}/size"), "7501476528\n");
        write(root, &format!("sys/block/{disk}/device/model"), "SAMSUNG MZQL23T8\n");
        write(root, &format!("sys/block/{disk}/device/serial"), format!("S-{disk}\n"));
    }
}

#[test]
fn node_shows_its_hardware_by_names() {
    let world = World::new("auto");
    let machine = PxeNode::new(&world, 1);
    let overlay = machine.boot();
    let mac = machine.mac.to_string();
    let _agent = machine.start_agent_with(&overlay, |root| equip(root, &mac));
    let id = world.node()["id"].as_str().unwrap().to_owned();
    let shown = eventually("it reports its hardware", || {
        let shown = world.meshd(&["node", "show", &id]).stdout;
        let shown = String::from_utf8(shown).unwrap();
        if shown.contains("GPUs") { Ok(shown) } else { Err(shown) }
    });
    let row = |name: &str| {
        let line = shown.lines().find(|line| line.starts_with(&format!("{name} ")));
        line.unwrap_or_else(|| panic!("{name} in {shown}")).to_owned()
    };
    assert!(
        row("memory").ends_with(
            "20.0 GiB (1 x 4.0 GiB 3200 MT/s Samsung M393A8G40AB2, \
             1 x 16.0 GiB 3200 MT/s Samsung M393A8G40AB2; 2 of 2 sockets)"
        ),
        "{shown}"
    );
    let gpus = row("GPUs");
    assert!(gpus.contains("2 x NVIDIA Corporation GH100"), "{gpus}");
    assert!(gpus.contains("Aldebaran/MI200 [Instinct MI210] 63.9 GiB"), "{gpus}");
    assert!(row("disks").ends_with("  2 x 3576.9 GiB SAMSUNG MZQL23T8"), "{shown}");
    let nics = row("NICs");
    assert!(
        nics.contains("eth0 100 Gbit/s Mellanox Technologies MT2892 Family [ConnectX-6 Dx]"),
        "{nics}"
    );
    let detail = world.json(&["node", "show", &id, "-o", "json"]);
    assert_eq!(detail["facts"]["gpus"][0]["memory"], 68_702_699_520_u64);
    assert_eq!(detail["facts"]["nics"][0]["function"], "0000:04:00.0");
    let name = detail["pci_names"]["10de:2330"].as_str().unwrap_or_default();
    assert!(name.contains("H100 SXM5 80GB"), "{}", detail["pci_names"]);
}
