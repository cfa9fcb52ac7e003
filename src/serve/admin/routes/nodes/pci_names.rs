//! Names of PCI devices, from the file `pci.ids` of the central node (Debian's package `pci.ids`).

use meshd_proto::PciFacts;
use std::{
    collections::{BTreeMap, BTreeSet},
    fs::File,
    io::Read as _,
};

const FILES: [&str; 2] = ["/usr/share/misc/pci.ids", "/usr/share/hwdata/pci.ids"];
/// Maximum size of the file in bytes; it has 1.4 MB.
const MAX_FILE: u64 = 16 << 20;
/// Maximum number of characters of a name.
const MAX_NAME: usize = 120;

/// Returns the names of these devices by `VENDOR:DEVICE`; empty without the file.
pub(super) fn installed(functions: &[PciFacts]) -> BTreeMap<String, String> {
    let Some(file) = FILES.iter().find_map(|path| File::open(path).ok()) else {
        return BTreeMap::new();
    };
    let mut bytes = Vec::new();
    if let Err(error) = file.take(MAX_FILE).read_to_end(&mut bytes) {
        tracing::debug!(%error, "cannot read pci.ids");
    }
    names(&String::from_utf8_lossy(&bytes), functions)
}

/// Looks devices up in the text of the file (pci.ids(5)).
fn names(text: &str, functions: &[PciFacts]) -> BTreeMap<String, String> {
    let wanted: BTreeSet<(&str, &str)> = functions
        .iter()
        .map(|function| (function.vendor.as_str(), function.device.as_str()))
        .collect();
    let vendors: BTreeSet<&str> = wanted.iter().map(|(vendor, _)| *vendor).collect();
    let mut named = BTreeMap::new();
    // ID and name of the vendor whose devices follow, if one is wanted.
    let mut current: Option<(&str, &str)> = None;
    for line in text.lines() {
        if line.starts_with("\t\t") || line.starts_with('#') {
            continue;
        }
        match (line.strip_prefix('\t'), current) {
            (Some(device), Some((vendor, vendor_name))) => {
                if let Some((id, name)) = device.split_once("  ")
                    && wanted.contains(&(vendor, id))
                {
                    named.insert(format!("{vendor}:{id}"), shown(&format!("{vendor_name} {name}")));
                }
            }
            (Some(_), None) => {}
            // Classes, at the end of the file, begin with `C `: no vendor has this ID.
            (None, _) => current = line.split_once("  ").filter(|(id, _)| vendors.contains(id)),
        }
    }
    named
}

fn shown(name: &str) -> String {
    name.chars().filter(|c| !c.is_control()).take(MAX_NAME).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "# Comment\n10de  NVIDIA Corporation\n\t2330  GH100 [H100 SXM5 80GB]\n\t\t10de 16c1  H100\n\
        \t2331  GH100 [H100 PCIe]\n8086  Intel Corporation\n\t2330  Another\nC 03  Display controller\n\t00  VGA\n";

    fn function(vendor: &str, device: &str) -> PciFacts {
        PciFacts { vendor: vendor.to_owned(), device: device.to_owned(), ..PciFacts::default() }
    }

    #[test]
    fn device_is_named_with_its_vendor() {
        let functions = [function("10de", "2330"), function("8086", "0001"), function("03", "00")];
        let found = names(TEXT, &functions);
        let expected =
            ("10de:2330".to_owned(), "NVIDIA Corporation GH100 [H100 SXM5 80GB]".to_owned());
        assert_eq!(found.into_iter().collect::<Vec<_>>(), [expected]);
        assert!(names("\tdevice\n  \n", &functions).is_empty());
    }
}
