//! `bundle.toml`: the recipe of a bundle. All faults are reported together, with line, key and
//! hint.

use crate::parts::recipe_head::architecture;
use meshd_config::{
    Faults,
    reader::{self, Located, Table},
};
use meshd_types::{Architecture, SafePath};
use std::{
    collections::{BTreeMap, BTreeSet},
    path::Path,
};

/// File name of a recipe.
pub const BUNDLE_FILE: &str = "bundle.toml";
/// Maximum number of packages, programs and files of a recipe.
const MAX_LISTED: usize = 256;

/// A valid recipe.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BundleRecipe {
    pub arch: Architecture,
    pub description: String,
    /// Debian packages of the programs; library packages are found by dependencies.
    pub packages: Vec<String>,
    pub programs: Vec<Program>,
    /// Files that programs open at run time: plug-ins, firmware, data.
    pub files: Vec<BundleFile>,
    /// Environment of the programs. `@/` at the beginning is replaced by the bundle's folder.
    pub environment: BTreeMap<String, String>,
}

/// A command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Program {
    /// Path in its package.
    pub path: SafePath,
    /// Arguments before those of the user; `@/` as in [`BundleRecipe::environment`].
    pub arguments: Vec<String>,
}

impl Program {
    /// Returns the command's name.
    pub fn name(&self) -> &str {
        self.path.relative().rsplit('/').next().unwrap_or_default()
    }
}

/// A file or folder to copy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BundleFile {
    /// Path in its package.
    pub from: SafePath,
    /// Path in the bundle.
    pub to: SafePath,
}

/// Reads `recipe_dir/bundle.toml`.
pub fn load(recipe_dir: &Path) -> Result<BundleRecipe, Faults> {
    let file = recipe_dir.join(BUNDLE_FILE);
    let hint = "a bundle is a folder with a bundle.toml; `meshd bundle list` shows those there are";
    parse(&reader::read_text(&file, hint)?, &file)
}

/// Parses a `bundle.toml`; faults name `file`.
pub fn parse(text: &str, file: &Path) -> Result<BundleRecipe, Faults> {
    let document = reader::parse(text, file)?;
    let recipe = read(&document.root());
    document.finish(recipe)
}

fn read(root: &Table<'_>) -> Option<BundleRecipe> {
    let arch = architecture(root);
    let description =
        root.required("description", root.word("description"), "say in one line what it is for");
    let packages = root.strings("packages");
    for package in packages.iter().filter(|name| !is_package(name)) {
        root.fault_at(package, "is no name of a Debian package", "packages = [\"mpich\"]");
    }
    let packages = root.required(
        "packages",
        (!packages.is_empty()).then_some(packages),
        "packages = [\"mpich\"]",
    );
    let mut programs = Vec::new();
    let mut names = BTreeSet::new();
    for table in &root.tables("programs") {
        let Some(program) = program(table) else { continue };
        if !names.insert(program.name().to_owned()) {
            table.fault(
                "path",
                format!("`{}` is the name of another program too", program.name()),
                "leave one out",
            );
        }
        programs.push(program);
    }
    if programs.is_empty() && !root.has("programs") {
        root.fault("programs", "is required", "[[programs]] path = \"usr/bin/mpiexec.hydra\"");
    }
    let files: Vec<BundleFile> = root.tables("files").iter().filter_map(read_copied_file).collect();
    for (what, count) in [("programs", programs.len()), ("files", files.len())] {
        if count > MAX_LISTED {
            root.fault(what, format!("lists {count}"), format!("at most {MAX_LISTED}"));
        }
    }
    let environment =
        root.table("environment").map(|table| environment(&table)).unwrap_or_default();
    Some(BundleRecipe {
        arch: arch?,
        description: description?.value,
        packages: packages?.into_iter().map(|name| name.value).collect(),
        programs,
        files,
        environment,
    })
}

fn program(table: &Table<'_>) -> Option<Program> {
    let path = table.required(
        "path",
        table.parsed::<SafePath>("path"),
        "path = \"usr/bin/mpiexec.hydra\"",
    );
    let arguments = quotable(table, table.strings("arguments"));
    let program = Program { path: path?.value, arguments };
    // The name is written into a shell script.
    if !program.name().bytes().all(|c| c.is_ascii_alphanumeric() || b"+._-".contains(&c)) {
        let message = format!("the name `{}` has characters that a shell reads", program.name());
        table.fault("path", message, "letters, digits and + . _ - are plain");
    }
    Some(program)
}

fn read_copied_file(table: &Table<'_>) -> Option<BundleFile> {
    let from = table.required("from", table.parsed("from"), "where the package has it");
    let to = table.required("to", table.parsed("to"), "where it goes in the bundle");
    Some(BundleFile { from: from?.value, to: to?.value })
}

fn environment(table: &Table<'_>) -> BTreeMap<String, String> {
    let plain = |name: &str| {
        name.starts_with(|c: char| c.is_ascii_uppercase() || c == '_')
            && name.chars().all(|c| c.is_ascii_uppercase() || c.is_ascii_digit() || c == '_')
    };
    let mut found = BTreeMap::new();
    for name in table.keys() {
        if !plain(&name) {
            table.fault(&name, "is no name of a variable", "write it as QEMU_MODULE_DIR");
        }
        let values = quotable(table, table.string(&name).into_iter().collect());
        found.extend(values.into_iter().map(|value| (name.value.clone(), value)));
    }
    found
}

/// Returns whether a text can be put between single quotes in a shell script.
fn quotable(table: &Table<'_>, words: Vec<Located<String>>) -> Vec<String> {
    for word in words.iter().filter(|word| word.contains('\'') || word.contains(char::is_control)) {
        table.fault_at(
            word,
            "has a quote or a control character",
            "a script of the node carries it; leave that out",
        );
    }
    words.into_iter().map(|word| word.value).collect()
}

/// Returns whether a package name is safe as a file name and as an argument of a command.
pub(super) fn is_package(name: &str) -> bool {
    name.starts_with(|c: char| c.is_ascii_alphanumeric())
        && name.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || "+-.".contains(c))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::parts::tests::assert_faults;

    #[test]
    fn committed_recipes_have_no_faults() {
        let folder =
            Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../..")).join("images/bundles");
        let mut names = Vec::new();
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            let recipe = load(&path).unwrap_or_else(|faults| panic!("{faults}"));
            assert!(!recipe.programs.is_empty());
            names.push(path.file_name().unwrap().to_string_lossy().into_owned());
        }
        names.sort();
        assert_eq!(names, ["crun", "mpi", "qemu"]);
    }

    #[test]
    fn unsafe_or_duplicate_program_name_is_a_fault() {
        let program = |path: &str| format!("[[programs]]\npath = \"{path}\"\n");
        let head = "arch = \"x86_64\"\ndescription = \"d\"\npackages = [\"p\"]\n";
        let text = [head, &program("usr/bin/a"), &program("usr/bin/$(id)"), &program("usr/sbin/a")]
            .concat();
        let faults = parse(&text, Path::new("bundle.toml")).unwrap_err().to_string();
        assert!(faults.contains("bundle.toml:7: programs[1].path: the name `$(id)`"), "{faults}");
        assert!(faults.contains("`a` is the name of another program too"), "{faults}");
    }

    #[test]
    fn recipe_faults_are_all_reported_at_once() {
        let text = "\
arch = \"z80\"
packages = [\"ok\", \"-o x\"]
[[programs]]
path = \"../bin/x\"
arguments = [\"it's\"]
[[files]]
from = \"usr/share/x\"
[environment]
lower = \"x\"
colour = 1
";
        let faults = parse(text, Path::new("bundle.toml")).unwrap_err();
        let expected = [
            (1, "arch"),
            (2, "packages[1]"),
            (4, "programs[0].path"),
            (5, "programs[0].arguments[0]"),
            (9, "environment.lower"),
            (10, "environment.colour"),
        ];
        assert_faults(&faults, &expected, &["description", "files[0].to"]);
    }
}
