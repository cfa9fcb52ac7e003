//! `image.toml` of an image of kind `root`. All faults are reported together, with line, key and
//! hint.

use crate::{
    import::recipe::is_url,
    parts::recipe_head::{self, RECIPE_FILE, section},
};
use meshd_config::{
    Faults,
    reader::{self, Located, Table},
};
use meshd_image::catalog::overlay::is_plain_name;
use meshd_types::{Architecture, Digest, ImageName, SafePath};
use std::path::{Path, PathBuf};

/// Prefix of a reference to a registry.
const REGISTRY: &str = "docker://";

/// A valid recipe.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct RootRecipe {
    pub(super) arch: Architecture,
    pub(super) description: String,
    pub(super) source: RootSource,
    /// Modules or folders that the initramfs contains: paths under `kernel/`, or such as
    /// `updates/dkms`.
    pub(super) modules: Vec<SafePath>,
}

/// Where the root comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum RootSource {
    /// Packages of an image of kind `alpine`.
    Alpine(AlpineSource),
    /// Archives that a tool makes or that somebody made.
    Archives(SourceSpec),
}

/// A source of archives.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum SourceSpec {
    Debian(Debian),
    /// An OCI layout: a folder or an archive. Without a tag it has one image.
    Oci {
        path: PathBuf,
        tag: Option<String>,
    },
    /// A reference to an image in a registry, with its digest.
    Registry {
        reference: String,
        digest: Digest,
    },
    Tar(PathBuf),
    Folder(PathBuf),
}

/// Packages of an image of kind `alpine`, with its kernel and modules.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct AlpineSource {
    /// The image, whose recipe is beside this one.
    pub(super) image: ImageName,
    pub(super) packages: Vec<String>,
}

/// Packages that mmdebstrap installs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Debian {
    pub(super) suite: String,
    pub(super) packages: Vec<String>,
    /// URL; without mirror and sources, mmdebstrap's defaults of the suite.
    pub(super) mirror: Option<String>,
    /// Lines of `sources.list`, beside the mirror.
    pub(super) sources: Vec<String>,
    /// Keys that sign the suite; without one, those of apt on this machine.
    pub(super) keyring: Option<PathBuf>,
}

/// Reads `recipe_dir/image.toml`.
pub(super) fn load(recipe_dir: &Path) -> Result<RootRecipe, Faults> {
    let file = recipe_dir.join(RECIPE_FILE);
    let hint = "an image is a folder with an image.toml; `meshd image list` shows those there are";
    parse(&reader::read_text(&file, hint)?, &file)
}

/// Parses an `image.toml`; faults name `file`.
pub(super) fn parse(text: &str, file: &Path) -> Result<RootRecipe, Faults> {
    let document = reader::parse(text, file)?;
    let recipe = read(&document.root());
    document.finish(recipe)
}

fn read(root: &Table<'_>) -> Option<RootRecipe> {
    recipe_head::kind(root)?;
    let arch = recipe_head::architecture(root);
    let description =
        root.required("description", root.word("description"), "say in one line what the image is");
    let source = section(root, "source", read_source);
    let modules = section(root, "modules", |table| {
        let keep: Vec<SafePath> = table.list("keep").into_iter().map(|at| at.value).collect();
        let hint = "list the drivers of the NICs, such as \"drivers/net/virtio_net.ko\"";
        table.required("keep", (!keep.is_empty()).then_some(keep), hint)
    });
    Some(RootRecipe {
        arch: arch?,
        description: description?.value,
        source: source?,
        modules: modules?,
    })
}

fn read_source(table: &Table<'_>) -> Option<RootSource> {
    const KEYS: [&str; 5] = ["alpine", "debian", "oci", "tar", "dir"];
    let given: Vec<&str> = KEYS.into_iter().filter(|key| table.has(key)).collect();
    let [key] = given[..] else {
        let what = format!("has {} of alpine, debian, oci, tar and dir", given.len());
        table.fault_at(&table.own_position(), what, "write exactly one of them");
        return None;
    };
    let archives = match key {
        "alpine" => {
            return table.table(key).as_ref().and_then(read_alpine).map(RootSource::Alpine);
        }
        "debian" => table.table(key).as_ref().and_then(read_debian).map(SourceSpec::Debian),
        "oci" => read_oci(table),
        "tar" => table.path(key).map(|path| SourceSpec::Tar(path.value)),
        _ => table.path(key).map(|path| SourceSpec::Folder(path.value)),
    };
    archives.map(RootSource::Archives)
}

fn read_alpine(table: &Table<'_>) -> Option<AlpineSource> {
    let image = table.required("image", table.parsed("image"), "image = \"alpine-lab\"");
    let packages = table.strings("packages");
    for package in packages.iter().filter(|package| !is_plain_name(package)) {
        let hint = "write it without version or repository";
        table.fault_at(package, "is no name of an Alpine package", hint);
    }
    let hint = "packages = [\"alpine-base\"]";
    let packages = table.required("packages", (!packages.is_empty()).then_some(packages), hint);
    Some(AlpineSource {
        image: image?.value,
        packages: packages?.into_iter().map(|at| at.value).collect(),
    })
}

fn read_debian(table: &Table<'_>) -> Option<Debian> {
    let suite = table.required("suite", table.word("suite"), "suite = \"bookworm\"");
    if let Some(suite) = suite.as_ref().filter(|suite| !is_plain(suite)) {
        table.fault_at(suite, "is no name of a suite", "suite = \"bookworm\"");
    }
    let packages = table.strings("packages");
    for package in packages.iter().filter(|package| !is_plain(package)) {
        table.fault_at(package, "is no name of a Debian package", "write it without a version");
    }
    let hint = "packages = [\"systemd-sysv\", \"linux-image-amd64\"]";
    let packages = table.required("packages", (!packages.is_empty()).then_some(packages), hint);
    let mirror = table.word("mirror");
    if let Some(mirror) = mirror.as_ref().filter(|mirror| !is_url(mirror)) {
        table.fault_at(mirror, "is no URL of a mirror", "write https://deb.debian.org/debian");
    }
    let sources = table.strings("sources");
    for line in sources.iter().filter(|line| !is_source_line(line)) {
        let hint = "write it as in sources.list: deb [signed-by=FILE] URL SUITE COMPONENT";
        table.fault_at(line, "is no line of a repository", hint);
    }
    let keyring = table.path("keyring");
    if let Some(keyring) = keyring.as_ref().filter(|keyring| !keyring.value.is_file()) {
        let what = format!("{} does not exist", keyring.value.display());
        table.fault_at(keyring, what, "keyring = \"/usr/share/keyrings/NAME.gpg\"");
    }
    Some(Debian {
        suite: suite?.value,
        packages: packages?.into_iter().map(|at| at.value).collect(),
        mirror: mirror.map(|at| at.value),
        sources: sources.into_iter().map(|at| at.value).collect(),
        keyring: keyring.map(|at| at.value),
    })
}

fn read_oci(table: &Table<'_>) -> Option<SourceSpec> {
    let text = table.word("oci")?;
    if let Some(reference) = text.strip_prefix(REGISTRY) {
        return read_registry(table, &text, reference);
    }
    // A tag has no slash, so a colon before one belongs to the path.
    let tag = text.rsplit_once(':').map(|(_, tag)| tag).filter(|tag| !tag.contains('/'));
    if let Some(tag) = tag.filter(|tag| tag.is_empty() || tag.chars().any(|c| !is_tag_char(c))) {
        table.fault_at(&text, format!("`{tag}` is no tag"), "write oci = \"FOLDER:TAG\"");
        return None;
    }
    let path = table.path("oci")?.value;
    let Some(tag) = tag else { return Some(SourceSpec::Oci { path, tag: None }) };
    let name = path.file_name()?.to_str()?.strip_suffix(tag)?.strip_suffix(':')?;
    Some(SourceSpec::Oci { path: path.with_file_name(name), tag: Some(tag.to_owned()) })
}

fn read_registry(table: &Table<'_>, at: &Located<String>, reference: &str) -> Option<SourceSpec> {
    let hint = "write docker://HOST/NAME@sha256:DIGEST; `skopeo inspect` shows the digest";
    let Some((reference, digest)) = parse_registry(reference) else {
        table.fault_at(at, "is no reference with a digest", hint);
        return None;
    };
    Some(SourceSpec::Registry { reference, digest })
}

/// Parses `HOST/NAME@sha256:DIGEST`. Returns the reference for skopeo, and the digest.
pub(super) fn parse_registry(reference: &str) -> Option<(String, Digest)> {
    let (name, digest) = reference.split_once("@sha256:")?;
    let is_name = name.starts_with(|c: char| c.is_ascii_alphanumeric())
        && name.chars().all(|c| is_tag_char(c) || "/:".contains(c));
    let digest: Digest = digest.parse().ok().filter(|_| is_name)?;
    Some((format!("{REGISTRY}{name}@sha256:{digest}"), digest))
}

fn is_tag_char(c: char) -> bool {
    c.is_ascii_alphanumeric() || "._-".contains(c)
}

/// Returns whether a name is safe as an argument and in a list with commas.
fn is_plain(name: &str) -> bool {
    name.starts_with(|c: char| c.is_ascii_alphanumeric())
        && name.chars().all(|c| c.is_ascii_alphanumeric() || "+-.".contains(c))
}

/// Returns whether mmdebstrap takes a text as a repository: one line of `sources.list`.
fn is_source_line(line: &str) -> bool {
    line.starts_with("deb ") && line.chars().all(|c| c.is_ascii_graphic() || c == ' ')
}

#[cfg(test)]
mod tests {
    use super::*;

    fn faults(source: &str) -> String {
        match recipe(source) {
            Ok(recipe) => format!("{:?}", recipe.source),
            Err(faults) => faults.to_string(),
        }
    }

    fn recipe(source: &str) -> Result<RootRecipe, Faults> {
        let text = format!(
            "kind = \"root\"\narch = \"x86_64\"\ndescription = \"x\"\n[source]\n{source}\n[modules]\nkeep = [\"fs\"]\n"
        );
        parse(&text, Path::new("/site/images/lab/image.toml"))
    }

    #[test]
    fn each_source_of_a_root_is_read() {
        let digest = "ab".repeat(32);
        let path = |name: &str| PathBuf::from("/site/images").join(name);
        let debian = Debian {
            suite: "bookworm".into(),
            packages: vec!["systemd-sysv".into()],
            mirror: None,
            sources: vec!["deb http://m/d ./".into()],
            keyring: None,
        };
        let cases = [
            (
                "debian = { suite = \"bookworm\", packages = [\"systemd-sysv\"], \
                 sources = [\"deb http://m/d ./\"] }"
                    .to_owned(),
                SourceSpec::Debian(debian),
            ),
            ("oci = \"/site/images/o\"".to_owned(), SourceSpec::Oci { path: path("o"), tag: None }),
            (
                "oci = \"/site/images/o:v1\"".to_owned(),
                SourceSpec::Oci { path: path("o"), tag: Some("v1".into()) },
            ),
            (
                format!("oci = \"docker://h:5000/n@sha256:{digest}\""),
                SourceSpec::Registry {
                    reference: format!("docker://h:5000/n@sha256:{digest}"),
                    digest: digest.parse().unwrap(),
                },
            ),
            ("tar = \"/site/images/a.tar\"".to_owned(), SourceSpec::Tar(path("a.tar"))),
            ("dir = \"/site/images/tree\"".to_owned(), SourceSpec::Folder(path("tree"))),
        ];
        for (text, source) in cases {
            let expected = RootSource::Archives(source);
            assert_eq!(recipe(&text).expect(&text).source, expected);
        }
    }

    #[test]
    fn packages_of_an_alpine_image_are_a_source() {
        let found = recipe("alpine = { image = \"lab\", packages = [\"openrc\"] }").expect("valid");
        let image = "lab".parse().expect("a name");
        let source = AlpineSource { image, packages: vec!["openrc".into()] };
        assert_eq!(found.source, RootSource::Alpine(source));
    }

    #[test]
    fn root_recipe_without_one_valid_source_is_refused() {
        let cases = [
            ("", "has 0 of alpine, debian, oci, tar and dir"),
            ("tar = \"a\"\ndir = \"b\"", "has 2 of alpine, debian, oci, tar and dir"),
            ("oci = \"docker://h/n:latest\"", "is no reference with a digest"),
            ("oci = \"o:\"", "is no tag"),
            ("debian = { suite = \"--x\", packages = [\"a,b\"] }", "is no name of a suite"),
            ("debian = { suite = \"s\", packages = [\"a,b\"] }", "is no name of a Debian package"),
            ("debian = { suite = \"s\", packages = [\"a\"], mirror = \"-x\" }", "is no URL"),
            ("debian = { suite = \"s\", packages = [\"a\"], sources = [\"http://m\"] }", "no line"),
            ("debian = { suite = \"s\", packages = [\"a\"], keyring = \"/no\" }", "/no does not"),
            ("debian = { suite = \"s\", packages = [\"a\"], size = 1 }", "size"),
            ("alpine = { image = \"../x\", packages = [\"a\"] }", "image"),
            ("alpine = { image = \"x\", packages = [\"--root\"] }", "no name of an Alpine package"),
            ("alpine = { image = \"x\" }", "packages"),
        ];
        for (text, cause) in cases {
            assert!(faults(text).contains(cause), "{text}: {}", faults(text));
        }
    }
}
