//! `modules.dep` and `modules.alias` of a kernel release (modules.dep(5)), and the order in which
//! modules are loaded. Pure and total.

use super::pattern::matches;
use meshd_types::SafePath;
use std::collections::{BTreeMap, BTreeSet};

/// The modules of an initramfs.
#[derive(Debug, Default)]
pub struct ModuleIndex {
    modules: BTreeMap<String, ModuleFile>,
    /// Pattern and name of the module.
    aliases: Vec<(String, String)>,
}

/// A module.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModuleFile {
    /// Path below `/lib/modules/RELEASE`.
    pub path: SafePath,
    /// Names of the modules that it needs.
    needs: Vec<String>,
}

/// Suffixes of module files. The kernel decompresses all but the first.
const SUFFIXES: [&str; 4] = [".ko", ".ko.gz", ".ko.xz", ".ko.zst"];

impl ModuleFile {
    /// Returns true if the kernel must decompress the file.
    pub fn is_compressed(&self) -> bool {
        !self.path.relative().ends_with(SUFFIXES[0])
    }
}

impl ModuleIndex {
    /// Parses the contents of both files. Lines that name no module are ignored.
    pub fn parse(dependencies: &str, aliases: &str) -> Self {
        let modules = dependencies.lines().filter_map(module).collect();
        let alias = |line: &str| {
            let mut words = line.split_ascii_whitespace();
            if words.next()? != "alias" {
                return None;
            }
            Some((words.next()?.to_owned(), kernel_name(words.next()?)))
        };
        ModuleIndex { modules, aliases: aliases.lines().filter_map(alias).collect() }
    }

    /// Returns the names of the modules of an alias, each once: several may drive one device.
    pub fn with_alias(&self, alias: &str) -> BTreeSet<&str> {
        self.aliases
            .iter()
            .filter(|(pattern, _)| matches(pattern, alias))
            .map(|(_, module)| module.as_str())
            .collect()
    }

    /// Returns a module and all modules that it needs, dependencies first. Empty if the initramfs
    /// has no such module: then it is built into the kernel, or missing. A cycle ends.
    pub fn load_order(&self, name: &str) -> Vec<(&str, &ModuleFile)> {
        let mut order = Vec::new();
        let mut visited = BTreeSet::new();
        let Some((name, module)) = self.modules.get_key_value(&kernel_name(name)) else {
            return order;
        };
        // A stack of modules with the number of their dependencies that are done.
        let mut stack = vec![(name, module, 0)];
        visited.insert(name);
        while let Some((name, module, done)) = stack.pop() {
            let Some(needed) = module.needs.get(done) else {
                order.push((name.as_str(), module));
                continue;
            };
            stack.push((name, module, done + 1));
            if let Some((name, module)) = self.modules.get_key_value(needed)
                && visited.insert(name)
            {
                stack.push((name, module, 0));
            }
        }
        order
    }

    /// Returns true if the initramfs has a module.
    pub fn contains(&self, name: &str) -> bool {
        self.modules.contains_key(&kernel_name(name))
    }
}

fn module(line: &str) -> Option<(String, ModuleFile)> {
    let (path, needs) = line.split_once(':')?;
    let needs = needs.split_ascii_whitespace().filter_map(name_of).collect();
    Some((name_of(path)?, ModuleFile { path: SafePath::new(path).ok()?, needs }))
}

/// The name of the module in a file.
fn name_of(path: &str) -> Option<String> {
    let file = path.rsplit('/').next()?;
    let name = SUFFIXES.iter().find_map(|suffix| file.strip_suffix(suffix))?;
    (!name.is_empty()).then(|| kernel_name(name))
}

/// The kernel's spelling of a name.
fn kernel_name(name: &str) -> String {
    name.replace('-', "_")
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const DEPENDENCIES: &str = "kernel/drivers/md/dm-verity.ko: kernel/drivers/md/dm-bufio.ko kernel/drivers/md/dm-mod.ko\n\
        kernel/drivers/md/dm-bufio.ko: kernel/drivers/md/dm-mod.ko\n\
        kernel/drivers/md/dm-mod.ko:\n\
        kernel/drivers/net/virtio_net.ko.xz: kernel/drivers/net/net_failover.ko.xz\n\
        kernel/drivers/net/net_failover.ko.xz:\n\
        junk\n../../etc/evil.ko:\n";
    const ALIASES: &str = "# Aliases\n\
        alias virtio:d00000001v* virtio_net\n\
        alias crypto-sha256 sha256-generic\n\
        alias crypto-sha256 sha256_ssse3\nalias broken\n";

    fn names(index: &ModuleIndex, name: &str) -> Vec<String> {
        index.load_order(name).into_iter().map(|(name, _)| name.to_owned()).collect()
    }

    #[test]
    fn dependencies_come_first() {
        let index = ModuleIndex::parse(DEPENDENCIES, ALIASES);
        assert_eq!(names(&index, "dm-verity"), ["dm_mod", "dm_bufio", "dm_verity"]);
        assert_eq!(names(&index, "virtio_net"), ["net_failover", "virtio_net"]);
        assert!(names(&index, "ext4").is_empty());
        assert!(!index.contains("evil"), "a path outside is no module");
        assert!(index.load_order("virtio_net")[1].1.is_compressed());
        assert!(!index.load_order("dm_mod")[0].1.is_compressed());
    }

    #[test]
    fn alias_names_all_its_modules() {
        let index = ModuleIndex::parse(DEPENDENCIES, ALIASES);
        let of = |alias| index.with_alias(alias).into_iter().collect::<Vec<_>>();
        assert_eq!(of("virtio:d00000001v00001AF4"), ["virtio_net"]);
        assert_eq!(of("crypto-sha256"), ["sha256_generic", "sha256_ssse3"]);
        assert!(of("pci:v0").is_empty());
    }

    #[test]
    fn cycle_of_dependencies_ends() {
        let index = ModuleIndex::parse("a.ko: b.ko\nb.ko: a.ko c.ko\nc.ko: c.ko\n", "");
        assert_eq!(names(&index, "a"), ["c", "b", "a"]);
    }

    proptest! {
        #[test]
        fn every_module_follows_what_it_needs(edges in proptest::collection::vec((0u8..20, 0u8..20), 0..60)) {
            // Edges from higher to lower numbers have no cycle.
            let edges = edges.iter().filter(|(from, to)| from > to);
            let mut needs = BTreeMap::<u8, Vec<u8>>::new();
            (0..20).for_each(|number| { needs.insert(number, Vec::new()); });
            edges.for_each(|(from, to)| needs.entry(*from).or_default().push(*to));
            let text: String = needs.iter().map(|(from, to)| {
                let to: String = to.iter().map(|to| format!(" m{to}.ko")).collect();
                format!("m{from}.ko:{to}\n")
            }).collect();
            let order = names(&ModuleIndex::parse(&text, ""), "m19");
            let at = |number: u8| order.iter().position(|name| *name == format!("m{number}"));
            for (from, to) in needs.iter().flat_map(|(from, to)| to.iter().map(move |to| (*from, *to))) {
                if let Some(from) = at(from) {
                    prop_assert!(at(to).is_some_and(|to| to < from));
                }
            }
        }

        #[test]
        fn index_of_any_text_never_panics(dependencies in "[a-c:./\n -]{0,200}", aliases in "[a-c* \n]{0,100}") {
            let index = ModuleIndex::parse(&dependencies, &aliases);
            let _ = index.load_order("a");
            let _ = index.with_alias("abc");
        }
    }
}
