//! Plans the content of each package of the repository. Pure.

use super::{
    installed::{Node, Package},
    recipe::{ExtraPackage, FileEdit, Packages, Restore},
};
use meshd_types::SafePath;
use std::collections::{BTreeMap, BTreeSet};

/// A package to create.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PackagePlan {
    pub name: String,
    pub version: String,
    /// Arguments of `apk mkpkg --info`.
    pub info: Vec<(&'static str, String)>,
    pub files: Files,
    /// Kind of script -> file name in the database's script archive.
    pub scripts: BTreeMap<String, String>,
    /// Paths of its trigger.
    pub triggers: Vec<String>,
}

/// Source of a package's files.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Files {
    /// The source's tree, according to the database.
    Tree {
        folders: Vec<Node>,
        /// Files with their edits.
        files: Vec<(Node, Option<Restore>)>,
    },
    /// A folder of the recipe.
    Recipe(SafePath),
    None,
}

/// Mismatch between recipe and source.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PlanError {
    /// A package of the recipe is not installed in the source.
    #[error("packages.leave_out names `{0}`, which the source does not have")]
    NoSuchPackage(String),
    /// No package owns a file that the recipe restores.
    #[error("packages.restore names `{0}`, which belongs to no package that is kept")]
    NoSuchFile(SafePath),
    /// The source has a package that the recipe adds.
    #[error("packages.extra names `{0}`, which the source has")]
    Twice(String),
    /// The file belongs to another user than root, which an unprivileged build cannot create.
    #[error(
        "package `{package}` gives {path} to {}:{}, and only root's files can be made again",
        .owner.0, .owner.1
    )]
    Owner {
        package: String,
        path: SafePath,
        /// User and group ID.
        owner: (u32, u32),
    },
}

meshd_types::hints!(PlanError {
    PlanError::NoSuchPackage(_) => "take it out of the recipe";
    PlanError::NoSuchFile(_) => "take it out of the recipe";
    PlanError::Twice(_) => "take it out of the recipe";
    PlanError::Owner { .. } => "add the package to packages.leave_out";
});

/// Letters of the database and the corresponding names of `apk mkpkg`.
const INFO: [(char, &str); 16] = [
    ('P', "name"),
    ('V', "version"),
    ('A', "arch"),
    ('T', "description"),
    ('U', "url"),
    ('L', "license"),
    ('o', "origin"),
    ('m', "maintainer"),
    ('t', "build-time"),
    ('c', "repo-commit"),
    ('D', "depends"),
    ('p', "provides"),
    ('r', "replaces"),
    ('i', "install-if"),
    ('k', "provider-priority"),
    ('q', "replaces-priority"),
];

/// Plans all packages. `scripts` are the file names of the script archive, `triggers` the
/// database's trigger file.
pub fn plan(
    installed: &[Package],
    recipe: &Packages,
    arch: &str,
    scripts: &[String],
    triggers: &str,
) -> Result<Vec<PackagePlan>, PlanError> {
    let names: BTreeSet<&str> = installed.iter().map(Package::name).collect();
    if let Some(name) = recipe.leave_out.iter().find(|name| !names.contains(name.as_str())) {
        return Err(PlanError::NoSuchPackage(name.clone()));
    }
    if let Some(extra) = recipe.extra.iter().find(|extra| names.contains(extra.name.as_str())) {
        return Err(PlanError::Twice(extra.name.clone()));
    }
    let packages: Vec<&Package> = installed
        .iter()
        .filter(|package| !recipe.leave_out.iter().any(|name| name == package.name()))
        .collect();
    let owned: BTreeSet<&SafePath> =
        packages.iter().flat_map(|package| &package.files).map(|file| &file.path).collect();
    if let Some(restore) = recipe.restore.iter().find(|restore| !owned.contains(&restore.path)) {
        return Err(PlanError::NoSuchFile(restore.path.clone()));
    }
    let mut plans = packages
        .iter()
        .map(|package| plan_installed(package, &recipe.restore, scripts, triggers))
        .collect::<Result<Vec<_>, _>>()?;
    plans.extend(recipe.extra.iter().map(|extra| plan_extra(extra, arch)));
    Ok(plans)
}

fn plan_installed(
    package: &Package,
    restores: &[Restore],
    scripts: &[String],
    triggers: &str,
) -> Result<PackagePlan, PlanError> {
    if let Some(node) =
        package.folders.iter().chain(&package.files).find(|node| node.owner != (0, 0))
    {
        let path = node.path.clone();
        let owner = node.owner;
        return Err(PlanError::Owner { package: package.name().to_owned(), path, owner });
    }
    let files = package.files.iter().map(|file| {
        let restore = restores.iter().find(|restore| restore.path == file.path);
        (file.clone(), restore.cloned())
    });
    let identity = package.identity().map(|sum| sum.to_hex());
    // Scripts are named `<name>-<version>.X1<checksum>.<kind>`.
    let mark = identity.map(|hex| format!(".X1{hex}."));
    let own = scripts.iter().filter_map(|file| {
        let (_, kind) = file.split_once(mark.as_deref()?)?;
        Some((kind.to_owned(), file.clone()))
    });
    let watched =
        triggers.lines().find_map(|line| line.strip_prefix(package.field('C'))?.strip_prefix(' '));
    Ok(PackagePlan {
        name: package.name().to_owned(),
        version: package.version().to_owned(),
        info: INFO
            .iter()
            .filter_map(|(letter, key)| Some((*key, package.fields.get(letter)?.clone())))
            .collect(),
        files: Files::Tree { folders: package.folders.clone(), files: files.collect() },
        scripts: own.collect(),
        triggers: watched.unwrap_or("").split_whitespace().map(str::to_owned).collect(),
    })
}

fn plan_extra(extra: &ExtraPackage, arch: &str) -> PackagePlan {
    let info = [
        ("name", extra.name.clone()),
        ("version", extra.version.clone()),
        ("arch", arch.to_owned()),
        ("description", extra.description.clone()),
        ("depends", extra.depends.join(" ")),
    ];
    PackagePlan {
        name: extra.name.clone(),
        version: extra.version.clone(),
        info: info.into_iter().filter(|(_, value)| !value.is_empty()).collect(),
        files: extra.files.clone().map_or(Files::None, Files::Recipe),
        scripts: BTreeMap::new(),
        triggers: Vec::new(),
    }
}

/// Applies an edit to a file's content; `None` for a link.
pub fn restore_text(edit: &FileEdit, content: &str) -> Option<String> {
    match edit {
        FileEdit::Content(text) => Some(text.clone()),
        FileEdit::Link(_) => None,
        FileEdit::Edit { drop_lines, replace } => {
            let lines = content
                .split_inclusive('\n')
                .filter(|line| !drop_lines.iter().any(|d| line.starts_with(d.as_str())));
            let text: String = lines.collect();
            Some(replace.iter().fold(text, |text, (find, put)| text.replace(find.as_str(), put)))
        }
    }
}

/// Applies all patches; the text of each must occur exactly once.
///
/// # Errors
/// Number of occurrences, and the text.
pub fn apply_patches(
    mut text: String,
    patches: &[super::recipe::Patch],
) -> Result<String, (usize, String)> {
    for patch in patches {
        match text.matches(&patch.find).count() {
            1 => text = text.replacen(&patch.find, &patch.replace, 1),
            times => return Err((times, patch.find.clone())),
        }
    }
    Ok(text)
}
