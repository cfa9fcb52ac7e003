//! Selects kernel modules and their dependencies. Pure.

use meshd_types::{SafePath, failpoint};
use std::collections::{BTreeMap, BTreeSet};

/// The modules of a kernel cannot be selected.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ModulesError {
    #[error("the recipe lists modules that this kernel does not have: {}", .0.join(", "))]
    Missing(Vec<String>),
    #[error("modules.dep of the kernel names `{0}`, which lies outside the folder of the modules")]
    Outside(String),
}

meshd_types::hints!(ModulesError {
    ModulesError::Missing(_) => "take them out of the recipe";
    ModulesError::Outside(_) => "do not trust the source: depmod writes no such path";
});

/// Parses `modules.dep` of depmod: `path: path path ...`. Files are written to these paths, so none
/// may lead out of their folder.
pub fn parse_dependencies(text: &str) -> Result<BTreeMap<&str, Vec<&str>>, ModulesError> {
    let lines = text.lines().filter_map(|line| line.split_once(':'));
    let lines: BTreeMap<&str, Vec<&str>> =
        lines.map(|(module, needs)| (module, needs.split_whitespace().collect())).collect();
    let is_outside = |path: &&&str| SafePath::new(path).is_err() || path.starts_with('/');
    let outside = lines.keys().chain(lines.values().flatten()).find(is_outside);
    match outside.filter(|_| failpoint::defends("module-paths")) {
        Some(path) => Err(ModulesError::Outside(path.escape_debug().take(200).collect())),
        None => Ok(lines),
    }
}

/// Endings of compressed modules, which lists of modules leave out.
const PACKED: [&str; 4] = ["", ".gz", ".xz", ".zst"];

/// Returns the modules at or below `listed`, and their dependencies. A listed path lies under
/// `kernel/`, or under the folder of all modules, such as `updates/dkms`.
///
/// # Errors
/// Every listed path without a module.
pub fn select<'t>(
    dependencies: &BTreeMap<&'t str, Vec<&'t str>>,
    listed: &[SafePath],
) -> Result<BTreeSet<&'t str>, ModulesError> {
    let mut selected = BTreeSet::new();
    let mut absent = Vec::new();
    for path in listed {
        let path = path.relative();
        let is_listed = |module: &&&str| {
            let rest = module.strip_prefix("kernel/").unwrap_or(module);
            let rest = [rest, module].iter().find_map(|rest| rest.strip_prefix(path));
            rest.is_some_and(|rest| rest.starts_with('/') || PACKED.contains(&rest))
        };
        let mut found = dependencies.keys().filter(is_listed).copied().peekable();
        if found.peek().is_none() {
            absent.push(path.to_owned());
        }
        selected.extend(found);
    }
    if !absent.is_empty() {
        return Err(ModulesError::Missing(absent));
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
    fn path_outside_the_folder_of_the_modules_is_refused() {
        for text in ["../loop.ko:", "kernel/a.ko: kernel/../../b.ko", "/etc/a.ko:", "a//b.ko:"] {
            let refused = parse_dependencies(text).unwrap_err();
            assert!(matches!(refused, ModulesError::Outside(_)), "{text}: {refused}");
        }
    }

    #[test]
    fn module_folder_includes_its_modules_and_their_dependencies_only() {
        let dependencies = parse_dependencies(DEP).unwrap();
        let selected = select(&dependencies, &paths(&["drivers/vfio"])).unwrap();
        assert_eq!(selected.len(), 3);
        assert!(!selected.contains("kernel/drivers/vfiox/other.ko"));
    }

    #[test]
    fn paths_without_module_are_all_reported() {
        let dependencies = parse_dependencies(DEP).unwrap();
        let absent = select(&dependencies, &paths(&["drivers/vfio", "drivers/nope", "fs/none.ko"]))
            .unwrap_err();
        let missing = ["drivers/nope", "fs/none.ko"].map(str::to_owned);
        assert_eq!(absent, ModulesError::Missing(missing.to_vec()));
    }

    #[test]
    fn compressed_module_and_module_of_dkms_are_selected_by_their_paths() {
        let text = "kernel/drivers/net/a.ko.xz: updates/dkms/b.ko.zst\nupdates/dkms/b.ko.zst:\n\
                    updates/dkms/c.ko:\n";
        let dependencies = parse_dependencies(text).unwrap();
        let chosen = |path: &str| select(&dependencies, &paths(&[path])).map(|found| found.len());
        for (path, count) in [("drivers/net/a.ko", 2), ("kernel/drivers", 2), ("updates", 2)] {
            assert_eq!(chosen(path), Ok(count), "{path}");
        }
        assert_eq!(chosen("updates/dkms/c.ko"), Ok(1));
        assert!(chosen("drivers/net/a").is_err() && chosen("dkms/c.ko").is_err());
    }
}
