//! `image.toml`: the recipe of an image that is built. All faults are reported together, with line, key and hint.

use meshd_config::{
    Fault, Faults,
    reader::{self, At, Table},
};
use meshd_types::{Arch, Digest, SafePath};
use std::path::Path;

/// The file in a recipe's folder.
pub const RECIPE_FILE: &str = "image.toml";

/// A recipe, checked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Recipe {
    /// What the image runs on.
    pub arch: Arch,
    /// One line for people.
    pub description: String,
    /// Where the userland comes from.
    pub source: WheelSource,
    /// Where the kernel comes from.
    pub kernel: Kernel,
    /// Paths under `kernel/` that the modloop keeps: a module, or a folder.
    pub modules: Vec<SafePath>,
    pub initramfs: Initramfs,
    /// Compression of the modloop.
    pub modloop: Compression,
    /// The package repository.
    pub packages: Packages,
}

/// A wheel that carries a root filesystem.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WheelSource {
    /// What pip is asked for: `name==version`.
    pub pip: String,
    /// File name of the wheel.
    pub wheel: SafePath,
    /// Digest of the wheel.
    pub sha256: Digest,
    /// The qcow2 inside the wheel, an ext4 filesystem without a partition table.
    pub member: SafePath,
}

/// A Debian package that holds a kernel, or depends on the one that does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Kernel {
    pub package: String,
    /// An exact version; `None` takes the newest.
    pub version: Option<String>,
}

/// How the initramfs is made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Initramfs {
    /// Features of mkinitfs.
    pub features: Vec<String>,
    /// Modules beside those of the features, as in [`Recipe::modules`].
    pub modules: Vec<SafePath>,
    /// Files of the userland beside those of the features: absolute, with globs.
    pub files: Vec<String>,
    /// Files of the recipe.
    pub add: Vec<Added>,
    /// Changes to Alpine's init.
    pub patches: Vec<Patch>,
    pub compression: Compression,
}

/// A file of the recipe's folder that goes into the initramfs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Added {
    /// Where it lies in the recipe's folder.
    pub from: SafePath,
    pub to: SafePath,
}

/// One change to Alpine's init. `find` occurs exactly once there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Patch {
    /// The text that goes.
    pub find: String,
    /// The text that comes.
    pub replace: String,
}

/// An algorithm and its level.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Compression {
    pub algorithm: Algorithm,
    /// 1 to 19.
    pub level: u8,
}

/// What both the kernel and the tools know.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Algorithm {
    Gzip,
    /// Zstandard: quicker to unpack.
    Zstd,
}

/// How the repository is made from the installed database.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Packages {
    /// Installed packages that the repository does without.
    pub leave_out: Vec<String>,
    /// Files that are brought back to what their package says.
    pub restore: Vec<Restore>,
    /// Packages that the source lacks.
    pub extra: Vec<Extra>,
}

/// How one file that the source's maker changed is brought back.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Restore {
    /// The file, relative to the root.
    pub path: SafePath,
    pub how: How,
    /// The result need not have the database's checksum; the recipe says why.
    pub differs: bool,
}

/// What is done to a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum How {
    /// Lines that begin with one of these are taken out, and of each pair the first text is replaced by the second.
    Edit {
        /// Beginnings of lines.
        drop_lines: Vec<String>,
        replace: Vec<(String, String)>,
    },
    /// The whole content.
    Content(String),
    /// A symbolic link with this target.
    Link(String),
}

/// A package that the source lacks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Extra {
    pub name: String,
    pub version: String,
    /// One line for people.
    pub description: String,
    pub depends: Vec<String>,
    /// A folder of the recipe that holds its files; none for a package that only depends.
    pub files: Option<SafePath>,
}

/// Reads `recipe_dir/image.toml`.
///
/// # Errors
/// All faults of the file, or the one why it cannot be read.
pub fn load(recipe_dir: &Path) -> Result<Recipe, Faults> {
    let file = recipe_dir.join(RECIPE_FILE);
    let text =
        reader::read_text(&file, "an image is a folder with an image.toml; `meshd image list` shows those there are")?;
    let recipe = parse(&text, &file)?;
    let added = recipe.initramfs.add.iter().map(|add| &add.from);
    let missing: Vec<Fault> = added
        .chain(recipe.packages.extra.iter().filter_map(|extra| extra.files.as_ref()))
        .filter(|path| !recipe_dir.join(path.relative()).exists())
        .map(|path| {
            Fault::of_file(
                &file,
                format!("names `{}`, which is not there", path.relative()),
                "paths begin at the recipe's folder",
            )
        })
        .collect();
    if missing.is_empty() { Ok(recipe) } else { Err(Faults(missing)) }
}

/// Reads the text of an `image.toml`; `file` is what faults name.
///
/// # Errors
/// All faults.
pub fn parse(text: &str, file: &Path) -> Result<Recipe, Faults> {
    let document = reader::parse(text, file)?;
    let recipe = read_recipe(&document.root());
    document.finish(recipe)
}

fn read_recipe(root: &Table<'_>) -> Option<Recipe> {
    let arch = root.required("arch", root.parsed("arch"), "arch = \"x86_64\"");
    let description = root.required("description", root.word("description"), "say in one line what the image is");
    // Every section is read before any is missed, so that all faults come at once.
    let source = section(root, "source", read_source);
    let kernel = section(root, "kernel", read_kernel);
    let modules = section(root, "modules", |table| {
        let keep = values(table.list("keep"));
        table.required("keep", (!keep.is_empty()).then_some(keep), "list the modules that nodes need")
    });
    let initramfs = section(root, "initramfs", read_initramfs);
    let modloop = section(root, "modloop", read_compression);
    let packages = section(root, "packages", read_packages);
    Some(Recipe {
        arch: arch?.value,
        description: description?.value,
        source: source?,
        kernel: kernel?,
        modules: modules?,
        initramfs: initramfs?,
        modloop: modloop?,
        packages: packages?,
    })
}

fn section<T>(root: &Table<'_>, key: &str, read: impl FnOnce(&Table<'_>) -> Option<T>) -> Option<T> {
    let table = root.table(key);
    read(&root.required(key, table, format!("add the section [{key}]"))?)
}

fn values<T>(list: Vec<At<T>>) -> Vec<T> {
    list.into_iter().map(|at| at.value).collect()
}

fn read_source(table: &Table<'_>) -> Option<WheelSource> {
    let pip = table.required("pip", table.word("pip"), "pip = \"name==version\"");
    if let Some(pip) = pip.as_ref().filter(|pip| !pip.contains("==") || pip.starts_with('-')) {
        table.fault_at(pip, "names no exact version", "write name==version; the digest holds for one version only");
    }
    let wheel = table.required("wheel", table.parsed("wheel"), "the file name that pip downloads");
    let sha256 = table.required("sha256", table.parsed("sha256"), "`sha256sum` of the wheel");
    let member = table.required("member", table.parsed("member"), "the qcow2 inside the wheel");
    Some(WheelSource { pip: pip?.value, wheel: wheel?.value, sha256: sha256?.value, member: member?.value })
}

fn read_kernel(table: &Table<'_>) -> Option<Kernel> {
    let package = table.required("package", table.word("package"), "package = \"linux-image-amd64\"");
    if let Some(package) = package.as_ref().filter(|package| !is_package(package)) {
        table.fault_at(package, "is no name of a Debian package", "package = \"linux-image-amd64\"");
    }
    let version = table.required("version", table.word("version"), "version = \"newest\", or an exact one")?.value;
    Some(Kernel { package: package?.value, version: (version != "newest").then_some(version) })
}

/// A name of a package: safe as a file name and as an argument of a command.
fn is_package(name: &str) -> bool {
    name.starts_with(|c: char| c.is_ascii_alphanumeric())
        && name.chars().all(|c| c.is_ascii_alphanumeric() || "+-._".contains(c))
}

fn read_initramfs(table: &Table<'_>) -> Option<Initramfs> {
    let files = table.strings("files");
    for file in files.iter().filter(|file| !file.starts_with('/') || file.contains(char::is_whitespace)) {
        table.fault_at(file, "is no absolute path", "write it as /sbin/apk; globs are allowed");
    }
    let features = table.strings("features");
    for feature in features.iter().filter(|feature| !is_package(feature)) {
        table.fault_at(feature, "is no feature of mkinitfs", "see /etc/mkinitfs/features.d");
    }
    let add = table.tables("add").into_iter().filter_map(|add| {
        let from = add.required("from", add.parsed("from"), "a file in the recipe's folder");
        let to = add.required("to", add.parsed("to"), "where it goes in the initramfs");
        Some(Added { from: from?.value, to: to?.value })
    });
    let add = add.collect();
    let patches = table.tables("patch").into_iter().filter_map(|patch| {
        let find = patch.required("find", patch.word("find"), "text that occurs once in Alpine's init");
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
    let algorithm = table.required("compression", table.choice("compression", &words), "compression = \"zstd\"");
    let level = table.required("level", table.integer("level", 1..=19), "level = 15")?;
    let algorithm = algorithm?.value;
    if algorithm == Algorithm::Gzip && level.value > 9 {
        table.fault_at(&level, "gzip has no such level", "write 1 to 9");
    }
    Some(Compression { algorithm, level: u8::try_from(level.value).ok()? })
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
    let replace = table.strings("replace").into_iter().filter_map(|pair| match pair.split_once(" => ") {
        Some((find, put)) if !find.is_empty() => Some((find.to_owned(), put.to_owned())),
        _ => {
            table.fault_at(&pair, "is no replacement", "write `old text => new text`");
            None
        }
    });
    let replace: Vec<_> = replace.collect();
    let (content, link) = (table.string("content"), table.word("link"));
    let differs = table.word("differs").is_some();
    let edits = !drop_lines.is_empty() || !replace.is_empty();
    let how = match (edits, content, link) {
        (true, None, None) => How::Edit { drop_lines, replace },
        (false, Some(content), None) => How::Content(content.value),
        (false, None, Some(link)) => How::Link(link.value),
        _ => {
            let hint = "give drop_lines and replace, or content, or link";
            table.fault_at(&table.here(), "must say one way to bring the file back", hint);
            return None;
        }
    };
    Some(Restore { path: path?.value, how, differs })
}

fn read_extra(table: &Table<'_>) -> Option<Extra> {
    let name = table.required("name", table.word("name"), "the package's name");
    let version = table.required("version", table.word("version"), "version = \"1.0-r0\"");
    let description = table.required("description", table.word("description"), "one line for people");
    for value in [&name, &version].into_iter().flatten().filter(|value| !is_package(value)) {
        table.fault_at(value, "has characters that no package has", "use letters, digits, `+`, `-`, `.`, `_`");
    }
    let depends = values(table.strings("depends"));
    let files = table.parsed("files").map(|at| at.value);
    Some(Extra { name: name?.value, version: version?.value, description: description?.value, depends, files })
}
