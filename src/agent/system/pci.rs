//! PCI functions behind devices of sysfs.

use super::Tree;

/// Returns the function of a sysfs device: the last PCI address in its real path. The ones before
/// are bridges.
pub fn function_of(tree: &Tree, path: &str) -> Option<String> {
    let real = tree.real(path)?;
    real.rsplit('/').find(|part| is_address(part)).map(str::to_owned)
}

/// `0000:01:00.0`; the domain has more digits behind some bridges.
fn is_address(part: &str) -> bool {
    let fields: Vec<&str> = part.split([':', '.']).collect();
    let hex = |field: &str, digits: usize| {
        field.len() == digits && field.bytes().all(|c| c.is_ascii_hexdigit())
    };
    matches!(fields.as_slice(), [domain, bus, device, function]
        if (4..=8).contains(&domain.len()) && hex(domain, domain.len()) && hex(bus, 2) && hex(device, 2) && hex(function, 1))
}

/// Returns the PCI functions in the real path of a sysfs device, outermost first.
pub fn pci_path(tree: &Tree, path: &str) -> Vec<String> {
    let real = tree.real(path).unwrap_or_default();
    real.split('/').filter(|part| part.contains(':')).map(str::to_owned).collect()
}

/// Returns the functions of a disk: several for an NVMe disk with multipath, whose sysfs path
/// contains no controller.
pub fn functions_of_disk(tree: &Tree, disk: &str) -> Vec<String> {
    let path = format!("/sys/block/{disk}");
    if let Some(function) = function_of(tree, &path) {
        return vec![function];
    }
    let real = tree.real(&path).unwrap_or_default();
    let Some((subsystem, _)) = real.rsplit_once('/') else { return Vec::new() };
    let controllers = tree.list(subsystem).into_iter().filter(|name| name.starts_with("nvme"));
    controllers.filter_map(|name| function_of(tree, &format!("{subsystem}/{name}"))).collect()
}
