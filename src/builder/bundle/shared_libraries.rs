//! Resolves shared libraries with the loader of the packages.

use super::BundleFault;
use crate::command::ToolCommand;
use meshd_types::Architecture;
use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
};

/// Library folders of a package tree.
pub(super) struct Libraries {
    folders: Vec<PathBuf>,
    /// File name of the loader.
    pub(super) loader: &'static str,
}

/// Library -> path, and missing libraries with the program that needs them.
pub(super) type LibrarySearch = (BTreeMap<String, PathBuf>, BTreeSet<String>);

impl Libraries {
    /// Returns the library folders of an unpacked tree.
    pub(super) fn new(tree: &Path, architecture: Architecture) -> Self {
        let facts = architecture.facts();
        let folders = ["lib", "usr/lib"].map(|lib| tree.join(lib).join(facts.multiarch)).into();
        Libraries { folders, loader: facts.glibc_loader }
    }

    /// Returns the loader, if its package is unpacked.
    pub(super) fn loader_path(&self) -> Option<PathBuf> {
        self.folders.iter().map(|folder| folder.join(self.loader)).find(|path| path.is_file())
    }

    /// Resolves the libraries of programs and plug-ins.
    pub(super) fn resolve(&self, programs: &[PathBuf]) -> Result<LibrarySearch, BundleFault> {
        let found = self.resolve_with(programs, &BTreeSet::new())?;
        // A package may have a private library folder, to which RUNPATH of its programs points.
        let private = found
            .1
            .iter()
            .filter_map(|absent| self.private_folder(absent.split(' ').next()?))
            .collect::<BTreeSet<_>>();
        if private.is_empty() { Ok(found) } else { self.resolve_with(programs, &private) }
    }

    /// Returns the only sub-folder of the library folders that contains a library.
    fn private_folder(&self, library: &str) -> Option<PathBuf> {
        let below = self
            .folders
            .iter()
            .flat_map(|folder| fs::read_dir(folder).into_iter().flatten().flatten());
        let mut found =
            below.map(|entry| entry.path()).filter(|folder| folder.join(library).is_file());
        found.next().filter(|_| found.next().is_none())
    }

    fn resolve_with(
        &self,
        programs: &[PathBuf],
        private: &BTreeSet<PathBuf>,
    ) -> Result<LibrarySearch, BundleFault> {
        let (mut found_libraries, mut absent) = LibrarySearch::default();
        let Some(loader) = self.loader_path() else {
            absent.insert(format!("{} (which every program needs)", self.loader));
            return Ok((found_libraries, absent));
        };
        let path = self
            .folders
            .iter()
            .chain(private)
            .map(|folder| folder.display().to_string())
            .collect::<Vec<_>>()
            .join(":");
        for program in programs {
            let run = ToolCommand::new(&loader)
                .args(["--inhibit-cache", "--library-path", &path, "--list"])
                .arg(program);
            // The loader must not use libraries of this host.
            let listed = run.env("LD_LIBRARY_PATH", "").output();
            let text =
                listed.map_err(|source| BundleFault::List { path: program.clone(), source })?;
            let name = program.file_name().unwrap_or_default().to_string_lossy();
            for (library, path) in text.lines().filter_map(parse) {
                match path.filter(|path| self.folders.iter().any(|folder| path.starts_with(folder)))
                {
                    Some(path) => drop(found_libraries.insert(library.to_owned(), path.to_owned())),
                    None => drop(absent.insert(format!("{library} (which {name} needs)"))),
                }
            }
        }
        Ok((found_libraries, absent))
    }
}

/// Parses `libz.so.1 => /tree/lib/libz.so.1 (0x..)`, or `=> not found`. Loader and vDSO have no
/// arrow.
fn parse(line: &str) -> Option<(&str, Option<&Path>)> {
    let (library, path) = line.trim().split_once(" => ")?;
    let path = path.rsplit_once(" (").map_or(path, |(path, _)| path);
    // An absolute path is the loader by its well-known name.
    (!library.starts_with('/')).then_some((library, path.starts_with('/').then(|| Path::new(path))))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn private_library_is_found_unless_ambiguous() {
        let tree = tempfile::tempdir().unwrap();
        let libraries = Libraries::new(tree.path(), Architecture::X86_64);
        let folder = libraries.folders[1].clone();
        for path in ["swtpm/libswtpm.so.0", "one/libtwice.so", "two/libtwice.so"] {
            fs::create_dir_all(folder.join(path).parent().unwrap()).unwrap();
            fs::write(folder.join(path), "").unwrap();
        }
        assert_eq!(libraries.private_folder("libswtpm.so.0"), Some(folder.join("swtpm")));
        assert_eq!(
            (libraries.private_folder("libtwice.so"), libraries.private_folder("libnone.so")),
            (None, None)
        );
    }

    #[test]
    fn ldd_output_line_is_found_missing_or_ignored() {
        let found = parse("\tlibz.so.1 => /t/lib/libz.so.1 (0x00007f)");
        assert_eq!(found, Some(("libz.so.1", Some(Path::new("/t/lib/libz.so.1")))));
        assert_eq!(parse("\tlibx.so.2 => not found"), Some(("libx.so.2", None)));
        assert_eq!(parse("\tlinux-vdso.so.1 (0x00007ffd)"), None);
        assert_eq!(parse("\t/lib64/ld-linux-x86-64.so.2 => /t/lib/ld.so (0x1)"), None);
    }
}
