//! `image.toml` of an imported image.

use crate::parts::recipe_head::{self, RECIPE_FILE, section};
use meshd_config::{
    Fault, Faults,
    reader::{self, Table},
};
use meshd_types::{Architecture, Digest, SafePath};
use std::path::{Path, PathBuf};

/// Section of `image.toml` that marks an imported image.
pub const SECTION: &str = "mirror";
/// Maximum number of packages of a recipe, without their dependencies.
const MAX_INSTALL: usize = 512;

/// A valid recipe.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ImportRecipe {
    pub arch: Architecture,
    pub description: String,
    pub mirror: Mirror,
    pub netboot: Netboot,
    /// Packages to install; dependencies are added.
    pub install: Vec<String>,
}

/// An Alpine mirror.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mirror {
    /// URL without a slash at the end.
    pub url: String,
    /// Branch of Alpine, such as `v3.23`.
    pub branch: String,
    /// Repositories of the branch, such as `main`.
    pub repositories: Vec<String>,
    /// Files of trusted public keys in the recipe's folder, named as the signatures name them.
    pub keys: Vec<SafePath>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Netboot {
    /// Release of Alpine, such as `3.23.6`.
    pub version: String,
    /// Kernel flavor, such as `lts`.
    pub flavor: String,
    /// Pinned digest of the bundle, in place of the one that the mirror publishes.
    pub sha256: Option<Digest>,
}

impl Mirror {
    /// Returns the URL of Alpine's netboot bundle.
    pub fn bundle(&self, netboot: &Netboot, arch: Architecture) -> String {
        let url = &self.url;
        let branch = &self.branch;
        let version = &netboot.version;
        format!("{url}/{branch}/releases/{arch}/alpine-netboot-{version}-{arch}.tar.gz")
    }

    /// Returns the URL of a repository's file.
    pub fn file(&self, repository: &str, arch: Architecture, file: &str) -> String {
        format!("{}/{}/{repository}/{arch}/{file}", self.url, self.branch)
    }
}

/// Returns whether the recipe in this folder describes an imported image. Returns false for an
/// unreadable recipe; loading reports why.
pub fn is_import(recipe_dir: &Path) -> bool {
    let file = recipe_dir.join(RECIPE_FILE);
    let Ok(text) = reader::read_text(&file, "") else { return false };
    let Ok(document) = reader::parse(&text, &file) else { return false };
    document.root().has(SECTION)
}

/// Reads `recipe_dir/image.toml` of an imported image.
pub fn load(recipe_dir: &Path) -> Result<ImportRecipe, Faults> {
    let file = recipe_dir.join(RECIPE_FILE);
    let hint = "an image is a folder with an image.toml; `meshd image list` shows those there are";
    let recipe = parse(&reader::read_text(&file, hint)?, &file)?;
    let absent: Vec<Fault> = recipe
        .key_files(recipe_dir)
        .into_iter()
        .filter(|key| !key.is_file())
        .map(|key| {
            let message = format!("names the key {}, which is not there", key.display());
            Fault::of_file(
                &file,
                message,
                "put Alpine's public key there; its name is the one in the signatures",
            )
        })
        .collect();
    if absent.is_empty() { Ok(recipe) } else { Err(Faults(absent)) }
}

impl ImportRecipe {
    /// Returns the paths of the trusted keys.
    pub fn key_files(&self, recipe_dir: &Path) -> Vec<PathBuf> {
        self.mirror.keys.iter().map(|key| recipe_dir.join(key.relative())).collect()
    }
}

/// Parses an `image.toml`; faults name `file`.
pub fn parse(text: &str, file: &Path) -> Result<ImportRecipe, Faults> {
    let document = reader::parse(text, file)?;
    let recipe = read(&document.root());
    document.finish(recipe)
}

fn read(root: &Table<'_>) -> Option<ImportRecipe> {
    recipe_head::require_alpine(root);
    let arch = recipe_head::architecture(root);
    let description =
        root.required("description", root.word("description"), "say in one line what the image is");
    let mirror = section(root, SECTION, mirror);
    let netboot = section(root, "netboot", netboot);
    let install = section(root, "packages", install);
    Some(ImportRecipe {
        arch: arch?,
        description: description?.value,
        mirror: mirror?,
        netboot: netboot?,
        install: install?,
    })
}

fn mirror(table: &Table<'_>) -> Option<Mirror> {
    let hint = "url = \"https://dl-cdn.alpinelinux.org/alpine\"";
    let url = table.required("url", table.word("url"), hint);
    if let Some(url) = url.as_ref().filter(|url| !is_url(url)) {
        table.fault_at(url, "is no URL of a mirror", hint);
    }
    let branch = word(table, "branch", "branch = \"v3.23\"");
    let repositories = table.strings("repositories");
    for repository in repositories.iter().filter(|name| !is_word(name)) {
        table.fault_at(
            repository,
            "is no name of a repository",
            "repositories = [\"main\", \"community\"]",
        );
    }
    let present = (!repositories.is_empty()).then_some(repositories);
    let repositories =
        table.required("repositories", present, "repositories = [\"main\", \"community\"]");
    let keys = table.list::<SafePath>("keys");
    let keys = table.required(
        "keys",
        (!keys.is_empty()).then_some(keys),
        "list Alpine's public keys, in this folder",
    );
    Some(Mirror {
        url: url?.value.trim_end_matches('/').to_owned(),
        branch: branch?,
        repositories: repositories?.into_iter().map(|name| name.value).collect(),
        keys: keys?.into_iter().map(|key| key.value).collect(),
    })
}

fn netboot(table: &Table<'_>) -> Option<Netboot> {
    let version = word(table, "version", "version = \"3.23.0\"");
    let flavor = word(table, "flavor", "flavor = \"lts\"");
    let sha256 = table.parsed("sha256").map(|digest| digest.value);
    Some(Netboot { version: version?, flavor: flavor?, sha256 })
}

fn install(table: &Table<'_>) -> Option<Vec<String>> {
    let list = table.strings("install");
    for word in list
        .iter()
        .filter(|word| word.starts_with(['-', '!']) || word.contains(char::is_whitespace))
    {
        table.fault_at(
            word,
            "is no name of a package",
            "write openssh, or openssh>=10 for certain versions",
        );
    }
    if list.len() > MAX_INSTALL {
        table.fault(
            "install",
            format!("lists {} packages", list.len()),
            format!("at most {MAX_INSTALL}"),
        );
    }
    let present = (!list.is_empty()).then_some(list);
    let list = table.required(
        "install",
        present,
        "install = [\"alpine-base\"], and what overlays ask for",
    )?;
    let names = |word: &str| word.split(['<', '>', '=', '~']).next() == Some("alpine-base");
    if !list.iter().any(|word| names(word)) {
        table.fault(
            "install",
            "lacks alpine-base, which Alpine's init installs",
            "add \"alpine-base\"",
        );
    }
    Some(list.into_iter().map(|word| word.value).collect())
}

/// Parses a required word that becomes a part of a URL and of a file name.
fn word(table: &Table<'_>, key: &str, hint: &str) -> Option<String> {
    let word = table.required(key, table.word(key), hint)?;
    if !is_word(&word) {
        table.fault_at(&word, "has characters that no mirror has in it", hint);
    }
    Some(word.value)
}

fn is_word(text: &str) -> bool {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-._".contains(c);
    text.starts_with(|c: char| c.is_ascii_alphanumeric())
        && text.chars().all(plain)
        && !text.contains("..")
}

/// Returns whether a URL is safe as an argument of curl, which expands braces and brackets.
pub fn is_url(text: &str) -> bool {
    let rest = text.strip_prefix("https://").or_else(|| text.strip_prefix("http://"));
    let plain = |c: char| c.is_ascii_alphanumeric() || "-._~:/%+@".contains(c);
    rest.is_some_and(|rest| {
        rest.starts_with(|c: char| c.is_ascii_alphanumeric()) && rest.chars().all(plain)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::parts::tests::assert_faults;

    #[test]
    fn committed_recipe_has_no_faults_and_uses_alpine_mirror_urls() {
        let dir =
            Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../..")).join("images/alpine-lts");
        assert!(is_import(&dir) && !is_import(&dir.with_file_name("alpine-lab")));
        let recipe = load(&dir).unwrap_or_else(|faults| panic!("{faults}"));
        let bundle = recipe.mirror.bundle(&recipe.netboot, recipe.arch);
        let start =
            "https://dl-cdn.alpinelinux.org/alpine/v3.23/releases/x86_64/alpine-netboot-3.23.";
        assert!(bundle.starts_with(start) && bundle.ends_with("-x86_64.tar.gz"), "{bundle}");
        let index = recipe.mirror.file("main", recipe.arch, "APKINDEX.tar.gz");
        assert_eq!(
            index,
            "https://dl-cdn.alpinelinux.org/alpine/v3.23/main/x86_64/APKINDEX.tar.gz"
        );
    }

    #[test]
    fn recipe_faults_are_all_reported_at_once() {
        let text = "\
arch = \"z80\"
[mirror]
url = \"ftp://x/{a,b}\"
branch = \"../v3\"
repositories = [\"main\", \"-x\"]
[netboot]
version = \"3.23/0\"
sha256 = \"12\"
mirrors = 1
[packages]
install = [\"a b\", \"openssh\"]
";
        let faults = parse(text, Path::new("image.toml")).unwrap_err();
        let expected = [
            (1, "arch"),
            (3, "mirror.url"),
            (4, "mirror.branch"),
            (5, "mirror.repositories[1]"),
            (7, "netboot.version"),
            (8, "netboot.sha256"),
            (9, "netboot.mirrors"),
            (11, "packages.install[0]"),
            (11, "packages.install"),
        ];
        assert_faults(
            &faults,
            &expected,
            &["description", "mirror.keys", "netboot.flavor", "lacks alpine-base"],
        );
    }
}
