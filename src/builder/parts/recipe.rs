//! `image.toml`: the recipe of an image that is built. All faults are reported together, with line,
//! key and hint.

use super::recipe_head::{self, RECIPE_FILE, section};
use meshd_config::{
    Fault, Faults,
    reader::{self, Located, Table},
};
use meshd_types::{Architecture, Digest, SafePath};
use std::path::Path;

/// A valid recipe.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Recipe {
    pub arch: Architecture,
    pub description: String,
    pub source: WheelSource,
    pub kernel: Kernel,
    /// Paths under `kernel/` that the modloop contains: modules or folders.
    pub modules: Vec<SafePath>,
    pub initramfs: Initramfs,
    pub modloop: Compression,
    pub packages: Packages,
}

/// A wheel that contains a root filesystem.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WheelSource {
    /// Requirement for pip: `name==version`.
    pub pip: String,
    pub wheel: SafePath,
    pub sha256: Digest,
    /// The qcow2 in the wheel: an ext4 filesystem without a partition table.
    pub member: SafePath,
}

/// A Debian package that contains a kernel, or a meta package that depends on a kernel package.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Kernel {
    pub package: String,
    /// Exact version; `None` selects the newest.
    pub version: Option<String>,
}

/// Recipe of the initramfs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Initramfs {
    pub features: Vec<String>,
    /// Modules in addition to those of the features, as in [`Recipe::modules`].
    pub modules: Vec<SafePath>,
    /// Userland files in addition to those of the features: absolute, with globs.
    pub files: Vec<String>,
    /// Files of the recipe.
    pub add: Vec<InitramfsFile>,
    /// Patches of Alpine's init.
    pub patches: Vec<Patch>,
    pub compression: Compression,
}

/// A file of the recipe for the initramfs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InitramfsFile {
    /// Path in the recipe's folder.
    pub from: SafePath,
    pub to: SafePath,
}

/// A patch of Alpine's init. `find` occurs exactly once in it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Patch {
    pub find: String,
    pub replace: String,
}

/// Compression algorithm and level.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Compression {
    pub algorithm: Algorithm,
    /// 1 to 19.
    pub level: u8,
}

/// Algorithms that both kernel and tools support.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Algorithm {
    Gzip,
    /// Zstandard: faster to unpack.
    Zstd,
}

/// Package repository, created from the installed database.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Packages {
    /// Installed packages to omit.
    pub leave_out: Vec<String>,
    /// Files to restore to the content of their package.
    pub restore: Vec<Restore>,
    /// Packages to add.
    pub extra: Vec<ExtraPackage>,
}

/// Restoration of one file that the source's maker changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Restore {
    /// Path relative to the root.
    pub path: SafePath,
    pub edit: FileEdit,
    /// The result may differ from the database's checksum; the recipe explains why.
    pub differs: bool,
}

/// Edit of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FileEdit {
    /// Removes lines with one of these prefixes, and replaces the first text of each pair by the
    /// second.
    Edit {
        /// Prefixes of lines.
        drop_lines: Vec<String>,
        replace: Vec<(String, String)>,
    },
    /// Sets the whole content.
    Content(String),
    /// Creates a symbolic link to this target.
    Link(String),
}

/// A package to add.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExtraPackage {
    pub name: String,
    pub version: String,
    pub description: String,
    pub depends: Vec<String>,
    /// Folder of the recipe with its files; none for a package that only has dependencies.
    pub files: Option<SafePath>,
}

/// Reads `recipe_dir/image.toml`.
pub fn load(recipe_dir: &Path) -> Result<Recipe, Faults> {
    let file = recipe_dir.join(RECIPE_FILE);
    let hint = "an image is a folder with an image.toml; `meshd image list` shows those there are";
    let recipe = parse(&reader::read_text(&file, hint)?, &file)?;
    let added = recipe.initramfs.add.iter().map(|add| &add.from);
    let missing: Vec<Fault> = added
        .chain(recipe.packages.extra.iter().filter_map(|extra| extra.files.as_ref()))
        .filter(|path| !recipe_dir.join(path.relative()).exists())
        .map(|path| {
            let message = format!("names `{}`, which is not there", path.relative());
            Fault::of_file(&file, message, "paths begin at the recipe's folder")
        })
        .collect();
    if missing.is_empty() { Ok(recipe) } else { Err(Faults(missing)) }
}

/// Parses an `image.toml`; faults name `file`.
pub fn parse(text: &str, file: &Path) -> Result<Recipe, Faults> {
    let document = reader::parse(text, file)?;
    let recipe = read_recipe(&document.root());
    document.finish(recipe)
}

fn read_recipe(root: &Table<'_>) -> Option<Recipe> {
    recipe_head::require_alpine(root);
    let arch = recipe_head::architecture(root);
    let description =
        root.required("description", root.word("description"), "say in one line what the image is");
    // Parse every section before requiring any, so that all faults are reported together.
    let source = section(root, "source", read_source);
    let kernel = section(root, "kernel", read_kernel);
    let modules = section(root, "modules", |table| {
        let keep = values(table.list("keep"));
        table.required(
            "keep",
            (!keep.is_empty()).then_some(keep),
            "list the modules that nodes need",
        )
    });
    let initramfs = section(root, "initramfs", read_initramfs);
    let modloop = section(root, "modloop", read_compression);
    let packages = section(root, "packages", read_packages);
    Some(Recipe {
        arch: arch?,
        description: description?.value,
        source: source?,
        kernel: kernel?,
        modules: modules?,
        initramfs: initramfs?,
        modloop: modloop?,
        packages: packages?,
    })
}

fn values<T>(list: Vec<Located<T>>) -> Vec<T> {
    list.into_iter().map(|at| at.value).collect()
}

fn read_source(table: &Table<'_>) -> Option<WheelSource> {
    let pip = table.required("pip", table.word("pip"), "pip = \"name==version\"");
    if let Some(pip) = pip.as_ref().filter(|pip| !pip.contains("==") || pip.starts_with('-')) {
        table.fault_at(
            pip,
            "names no exact version",
            "write name==version; the digest holds for one version only",
        );
    }
    let wheel = table.required("wheel", table.parsed("wheel"), "the file name that pip downloads");
    let sha256 = table.required("sha256", table.parsed("sha256"), "`sha256sum` of the wheel");
    let member = table.required("member", table.parsed("member"), "the qcow2 inside the wheel");
    Some(WheelSource {
        pip: pip?.value,
        wheel: wheel?.value,
        sha256: sha256?.value,
        member: member?.value,
    })
}

fn read_kernel(table: &Table<'_>) -> Option<Kernel> {
    let package =
        table.required("package", table.word("package"), "package = \"linux-image-amd64\"");
    if let Some(package) = package.as_ref().filter(|package| !is_package(package)) {
        table.fault_at(
            package,
            "is no name of a Debian package",
            "package = \"linux-image-amd64\"",
        );
    }
    let version = table
        .required("version", table.word("version"), "version = \"newest\", or an exact one")?
        .value;
    Some(Kernel { package: package?.value, version: (version != "newest").then_some(version) })
}

/// Returns whether a package name is safe as a file name and as an argument of a command.
fn is_package(name: &str) -> bool {
    name.starts_with(|c: char| c.is_ascii_alphanumeric())
        && name.chars().all(|c| c.is_ascii_alphanumeric() || "+-._".contains(c))
}

fn read_initramfs(table: &Table<'_>) -> Option<Initramfs> {
    let files = table.strings("files");
    for file in
        files.iter().filter(|file| !file.starts_with('/') || file.contains(char::is_whitespace))
    {
        table.fault_at(file, "is no absolute path", "write it as /sbin/apk; globs are allowed");
    }
    let features = table.strings("features");
    for feature in features.iter().filter(|feature| !is_package(feature)) {
        table.fault_at(feature, "is no feature of mkinitfs", "see /etc/mkinitfs/features.d");
    }
    let add = table.tables("add").into_iter().filter_map(|add| {
        let from = add.required("from", add.parsed("from"), "a file in the recipe's folder");
        let to = add.required("to", add.parsed("to"), "where it goes in the initramfs");
        Some(InitramfsFile { from: from?.value, to: to?.value })
    });
    let add = add.collect();
    let patches = table.tables("patch").into_iter().filter_map(|patch| {
        let find =
            patch.required("find", patch.word("find"), "text that occurs once in Alpine's init");
        let replace = patch.required("replace", patch.string("replace"), "what comes in its place");
        patch.required("why", patch.word("why"), "say why Alpine's init is changed");
        Some(Patch { find: find?.value, replace: replace?.value })
    });
    let patches = patches.collect();
    let modules = values(table.list("modules"));
    Some(Initramfs {
        features: values(features),
        modules,
        files: values(files),
        add,
        patches,
        compression: read_compression(table)?,
    })
}

fn read_compression(table: &Table<'_>) -> Option<Compression> {
    let words = [("gzip", Algorithm::Gzip), ("zstd", Algorithm::Zstd)];
    let algorithm = table.required(
        "compression",
        table.choice("compression", &words),
        "compression = \"zstd\"",
    );
    let level = table.required("level", table.integer("level", 1..=19u8), "level = 15")?;
    let algorithm = algorithm?.value;
    if algorithm == Algorithm::Gzip && level.value > 9 {
        table.fault_at(&level, "gzip has no such level", "write 1 to 9");
    }
    Some(Compression { algorithm, level: level.value })
}

fn read_packages(table: &Table<'_>) -> Option<Packages> {
    let leave_out = values(table.strings("leave_out"));
    let restore: Vec<_> = table.tables("restore").iter().map(read_restore).collect();
    let extra: Vec<_> = table.tables("extra").iter().map(read_extra).collect();
    Some(Packages {
        leave_out,
        restore: restore.into_iter().collect::<Option<_>>()?,
        extra: extra.into_iter().collect::<Option<_>>()?,
    })
}

fn read_restore(table: &Table<'_>) -> Option<Restore> {
    let path = table.required("path", table.parsed("path"), "path = \"etc/passwd\"");
    let drop_lines = values(table.strings("drop_lines"));
    let replace =
        table.strings("replace").into_iter().filter_map(|pair| match pair.split_once(" => ") {
            Some((find, put)) if !find.is_empty() => Some((find.to_owned(), put.to_owned())),
            _ => {
                table.fault_at(&pair, "is no replacement", "write `old text => new text`");
                None
            }
        });
    let replace: Vec<_> = replace.collect();
    let content = table.string("content");
    let link = table.word("link");
    let differs = table.word("differs").is_some();
    let edits = !drop_lines.is_empty() || !replace.is_empty();
    let edit = match (edits, content, link) {
        (true, None, None) => FileEdit::Edit { drop_lines, replace },
        (false, Some(content), None) => FileEdit::Content(content.value),
        (false, None, Some(link)) => FileEdit::Link(link.value),
        _ => {
            let hint = "give drop_lines and replace, or content, or link";
            table.fault_at(&table.own_position(), "must say one way to bring the file back", hint);
            return None;
        }
    };
    Some(Restore { path: path?.value, edit, differs })
}

fn read_extra(table: &Table<'_>) -> Option<ExtraPackage> {
    let name = table.required("name", table.word("name"), "the package's name");
    let version = table.required("version", table.word("version"), "version = \"1.0-r0\"");
    let description =
        table.required("description", table.word("description"), "one line for people");
    for value in [&name, &version].into_iter().flatten().filter(|value| !is_package(value)) {
        table.fault_at(
            value,
            "has characters that no package has",
            "use letters, digits, `+`, `-`, `.`, `_`",
        );
    }
    let depends = values(table.strings("depends"));
    let files = table.parsed("files").map(|at| at.value);
    Some(ExtraPackage {
        name: name?.value,
        version: version?.value,
        description: description?.value,
        depends,
        files,
    })
}
