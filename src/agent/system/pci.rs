//! PCI functions behind devices of sysfs.

use super::Tree;

/// The function that a device of sysfs belongs to: the last PCI address on its real path; those before it are bridges.
pub fn function_of(tree: &Tree, path: &str) -> Option<String> {
    let real = tree.real(path)?;
    real.rsplit('/').find(|part| is_address(part)).map(str::to_owned)
}

/// `0000:01:00.0`; the domain has more digits behind some bridges.
fn is_address(part: &str) -> bool {
    let fields: Vec<&str> = part.split([':', '.']).collect();
    let hex = |field: &str, digits: usize| field.len() == digits && field.bytes().all(|c| c.is_ascii_hexdigit());
    matches!(fields.as_slice(), [domain, bus, device, function]
        if (4..=8).contains(&domain.len()) && hex(domain, domain.len()) && hex(bus, 2) && hex(device, 2) && hex(function, 1))
}

/// The PCI functions that a device of sysfs hangs below, the outermost first.
pub fn way(tree: &Tree, path: &str) -> Vec<String> {
    let real = tree.real(path).unwrap_or_default();
    real.split('/').filter(|part| part.contains(':')).map(str::to_owned).collect()
}

/// One, or several where an NVMe disk has more than one path: the disk itself is no device of a controller then.
pub fn functions_of_disk(tree: &Tree, disk: &str) -> Vec<String> {
    let path = format!("/sys/block/{disk}");
    if let Some(function) = function_of(tree, &path) {
        return vec![function];
    }
    let Some((subsystem, _)) =
        tree.real(&path).and_then(|real| real.rsplit_once('/').map(|(a, b)| (a.to_owned(), b.to_owned())))
    else {
        return Vec::new();
    };
    let controllers = tree.list(&subsystem).into_iter().filter(|name| name.starts_with("nvme"));
    controllers.filter_map(|name| function_of(tree, &format!("{subsystem}/{name}"))).collect()
}
