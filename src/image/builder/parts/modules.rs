//! Selects kernel modules and their dependencies. Pure.

use meshd_types::SafePath;
use std::collections::{BTreeMap, BTreeSet};

/// A module of the recipe does not exist in the kernel.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the recipe lists modules that this kernel does not have: {}", .0.join(", "))]
pub struct NoSuchModule(pub Vec<String>);

meshd_types::hints!(NoSuchModule { _ => "take them out of the recipe"; });

/// Parses `modules.dep` of depmod: `path: path path ...`.
pub fn parse_dependencies(text: &str) -> BTreeMap<&str, Vec<&str>> {
    let lines = text.lines().filter_map(|line| line.split_once(':'));
    lines.map(|(module, needs)| (module, needs.split_whitespace().collect())).collect()
}

/// Returns the modules at or below `listed` (paths under `kernel/`), and their dependencies.
///
/// # Errors
/// Every listed path without a module.
pub fn select<'t>(
    dependencies: &BTreeMap<&'t str, Vec<&'t str>>,
    listed: &[SafePath],
) -> Result<BTreeSet<&'t str>, NoSuchModule> {
    let mut selected = BTreeSet::new();
    let mut absent = Vec::new();
    for path in listed {
        let path = format!("kernel/{}", path.relative());
        let folder = format!("{path}/");
        let below = |module: &&&str| **module == path || module.starts_with(&folder);
        let mut found = dependencies.keys().filter(below).copied().peekable();
        if found.peek().is_none() {
            absent.push(path.clone());
        }
        selected.extend(found);
    }
    if !absent.is_empty() {
        return Err(NoSuchModule(absent));
    }
    // modules.dep lists transitive dependencies, so one pass is enough.
    let needs: Vec<&str> =
        selected.iter().filter_map(|module| dependencies.get(module)).flatten().copied().collect();
    selected.extend(needs);
    Ok(selected)
}

#[cfg(test)]
mod tests {
    use super::*;

    const DEP: &str = "\
kernel/drivers/vfio/vfio.ko: kernel/virt/lib/irqbypass.ko
kernel/drivers/vfio/pci/vfio-pci.ko: kernel/drivers/vfio/vfio.ko kernel/virt/lib/irqbypass.ko
kernel/virt/lib/irqbypass.ko:
kernel/drivers/vfiox/other.ko:
";

    fn paths(list: &[&str]) -> Vec<SafePath> {
        list.iter().map(|path| path.parse().unwrap()).collect()
    }

    #[test]
    fn module_folder_includes_its_modules_and_their_dependencies_only() {
        let dependencies = parse_dependencies(DEP);
        let selected = select(&dependencies, &paths(&["drivers/vfio"])).unwrap();
        assert_eq!(selected.len(), 3);
        assert!(!selected.contains("kernel/drivers/vfiox/other.ko"));
    }

    #[test]
    fn paths_without_module_are_all_reported() {
        let dependencies = parse_dependencies(DEP);
        let absent = select(&dependencies, &paths(&["drivers/vfio", "drivers/nope", "fs/none.ko"]))
            .unwrap_err();
        assert_eq!(absent.0, ["kernel/drivers/nope", "kernel/fs/none.ko"]);
    }
}
