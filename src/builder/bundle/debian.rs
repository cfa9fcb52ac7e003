//! Fetches Debian packages with apt, verifies and unpacks them.

use super::{BundleFault, recipe::is_package};
use crate::{
    command::ToolCommand,
    error::{BuildError, failed},
    parts::fetch,
};
use std::{
    collections::{BTreeMap, BTreeSet},
    path::{Path, PathBuf},
};

/// Maximum number of packages of one bundle.
const MAX_PACKAGES: usize = 400;

/// Packages, unpacked into one tree.
pub(super) struct Tree<'a> {
    cache: &'a Path,
    scratch: &'a Path,
    root: PathBuf,
    /// Name -> version.
    pub(super) packages: BTreeMap<String, String>,
    /// Dependencies that are not unpacked yet.
    depends: BTreeSet<String>,
    /// Names without a package in apt, such as virtual packages.
    absent: BTreeSet<String>,
}

impl<'a> Tree<'a> {
    pub(super) fn new(cache: &'a Path, scratch: &'a Path, root: PathBuf) -> Self {
        Tree {
            cache,
            scratch,
            root,
            packages: BTreeMap::new(),
            depends: BTreeSet::new(),
            absent: BTreeSet::new(),
        }
    }

    pub(super) fn root(&self) -> &Path {
        &self.root
    }

    /// Adds the packages of the recipe.
    pub(super) fn add(&mut self, names: &[String]) -> Result<(), BuildError> {
        self.unpack(names)?;
        match names.iter().find(|name| !self.packages.contains_key(*name)) {
            Some(name) => Err(BundleFault::NoPackage(name.clone()).into()),
            None => Ok(()),
        }
    }

    /// Adds the direct dependencies of the packages. Returns false if all dependencies are
    /// unpacked.
    pub(super) fn add_dependencies(&mut self) -> Result<bool, BuildError> {
        let next = std::mem::take(&mut self.depends);
        let new = |name: &String| !self.packages.contains_key(name) && !self.absent.contains(name);
        let next: Vec<String> = next.into_iter().filter(new).collect();
        Ok(!next.is_empty() && self.unpack(&next)?)
    }

    /// Fetches and unpacks the packages that apt has. Returns false if apt has none of them.
    fn unpack(&mut self, names: &[String]) -> Result<bool, BuildError> {
        if self.packages.len() + names.len() > MAX_PACKAGES {
            return Err(BundleFault::TooMany(MAX_PACKAGES).into());
        }
        let records = fetch::records(names);
        let debs = fetch::debians(&records, self.cache, self.scratch)?;
        let found = !records.is_empty();
        for (record, deb) in records.into_iter().zip(debs) {
            ToolCommand::new("dpkg-deb")
                .arg("-x")
                .arg(&deb)
                .arg(&self.root)
                .run()
                .map_err(failed("unpack a package"))?;
            let fields = ToolCommand::new("dpkg-deb")
                .arg("-f")
                .arg(&deb)
                .args(["Pre-Depends", "Depends"])
                .output();
            let fields = fields.map_err(failed("read a package's dependencies"))?;
            self.depends.extend(dependencies(&fields));
            self.packages.insert(record.name, record.version);
        }
        self.absent.extend(names.iter().filter(|name| !self.packages.contains_key(*name)).cloned());
        Ok(found)
    }
}

/// Returns the first alternative of each dependency, without versions.
fn dependencies(fields: &str) -> Vec<String> {
    let lists = fields.lines().filter_map(|line| line.split_once(": ")).map(|(_, list)| list);
    let words = lists.flat_map(|list| list.split(',')).filter_map(|one| one.split('|').next());
    let names = words.filter_map(|word| word.trim().split([' ', '(', ':']).next());
    // The names become arguments of apt.
    names.filter(|name| is_package(name)).map(str::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dependency_alternatives_resolve_to_first_and_invalid_are_skipped() {
        let fields =
            "Pre-Depends: libc6 (>= 2.34)\nDepends: hwloc-nox | hwloc, python3:any (>= 3), libz1\n";
        assert_eq!(dependencies(fields), ["libc6", "hwloc-nox", "python3", "libz1"]);
        assert_eq!(dependencies(""), [""; 0]);
        assert_eq!(dependencies("Depends: -o=Dir::Etc=/tmp, ${misc:Depends}, libz1\n"), ["libz1"]);
    }
}
