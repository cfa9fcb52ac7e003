//! Plans the content of each package of the repository. Pure.

use super::{
    installed::{Node, Package},
    recipe::{Extra, How, Packages, Restore},
};
use meshd_types::SafePath;
use std::collections::{BTreeMap, BTreeSet};

/// One package as it will be made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PackagePlan {
    pub name: String,
    pub version: String,
    /// What `apk mkpkg --info` is told.
    pub info: Vec<(&'static str, String)>,
    /// Where its files come from.
    pub files: Files,
    /// Kind of script -> file name in the database's script archive.
    pub scripts: BTreeMap<String, String>,
    /// Paths that its trigger watches.
    pub triggers: Vec<String>,
}

/// Where the files of a package come from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Files {
    /// From the source's tree, as the database says.
    Tree {
        folders: Vec<Node>,
        /// Files, with what is done to each.
        files: Vec<(Node, Option<Restore>)>,
    },
    /// A folder of the recipe.
    Recipe(SafePath),
    /// No files at all.
    None,
}

/// Why the recipe does not fit the source.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PlanError {
    /// The recipe names a package that is not installed in the source.
    #[error("packages.leave_out names `{0}`, which the source does not have; take it out of the recipe")]
    NoSuchPackage(String),
    /// The recipe brings back a file that no package owns.
    #[error("packages.restore names `{0}`, which belongs to no package that is kept; take it out of the recipe")]
    NoSuchFile(SafePath),
    /// The recipe adds a package that the source has.
    #[error("packages.extra names `{0}`, which the source has; take it out of the recipe")]
    Twice(String),
    /// A file that is not root's cannot be made by an unprivileged build.
    #[error(
        "package `{package}` gives {path} to {}:{}; only root's files can be made again; add the package to packages.leave_out",
        .owner.0, .owner.1
    )]
    Owner {
        package: String,
        path: SafePath,
        /// User and group.
        owner: (u32, u32),
    },
}

/// Letters of the database and the names that `apk mkpkg` has for them.
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

/// Plans every package. `scripts` are the file names of the script archive, `triggers` the database's trigger file.
///
/// # Errors
/// The first way in which the recipe does not fit the source.
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
    let kept: Vec<&Package> =
        installed.iter().filter(|package| !recipe.leave_out.iter().any(|name| name == package.name())).collect();
    let owned: BTreeSet<&SafePath> = kept.iter().flat_map(|package| &package.files).map(|file| &file.path).collect();
    if let Some(restore) = recipe.restore.iter().find(|restore| !owned.contains(&restore.path)) {
        return Err(PlanError::NoSuchFile(restore.path.clone()));
    }
    let mut plans = kept
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
    if let Some(node) = package.folders.iter().chain(&package.files).find(|node| node.owner != (0, 0)) {
        let (path, owner) = (node.path.clone(), node.owner);
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
    let watched = triggers.lines().find_map(|line| line.strip_prefix(package.field('C'))?.strip_prefix(' '));
    Ok(PackagePlan {
        name: package.name().to_owned(),
        version: package.version().to_owned(),
        info: INFO.iter().filter_map(|(letter, key)| Some((*key, package.fields.get(letter)?.clone()))).collect(),
        files: Files::Tree { folders: package.folders.clone(), files: files.collect() },
        scripts: own.collect(),
        triggers: watched.unwrap_or("").split_whitespace().map(str::to_owned).collect(),
    })
}

fn plan_extra(extra: &Extra, arch: &str) -> PackagePlan {
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

/// What a file's content becomes by its rule; `None` for a link.
pub fn restored(how: &How, content: &str) -> Option<String> {
    match how {
        How::Content(text) => Some(text.clone()),
        How::Link(_) => None,
        How::Edit { drop_lines, replace } => {
            let kept =
                content.split_inclusive('\n').filter(|line| !drop_lines.iter().any(|d| line.starts_with(d.as_str())));
            let text: String = kept.collect();
            Some(replace.iter().fold(text, |text, (find, put)| text.replace(find.as_str(), put)))
        }
    }
}

/// Puts each patch in; the text that it replaces occurs exactly once.
///
/// # Errors
/// How often the text of a patch occurs, and the text.
pub fn patched(mut text: String, patches: &[super::recipe::Patch]) -> Result<String, (usize, String)> {
    for patch in patches {
        match text.matches(&patch.find).count() {
            1 => text = text.replacen(&patch.find, &patch.replace, 1),
            times => return Err((times, patch.find.clone())),
        }
    }
    Ok(text)
}
