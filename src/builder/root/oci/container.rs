//! Imports an OCI image as the image of containers: a squashfs volume with its configuration.

use super::ImageConfig;
use crate::root::{
    Source,
    error::RootFault,
    filesystem,
    inspect::Root,
    newest, read_source,
    recipe::{SourceSpec, parse_registry},
    sources,
};
use crate::{
    command::{CONTAINER_TOOLS, require_mapped_namespaces, require_tools},
    error::{BuildError, io_error},
    progress::{BuildStep, Progress, report_step},
    volumes::{ContainerImage, VolumeError, VolumeInfo, Volumes},
    work_folder::BuildFolder,
};
use meshd_types::{Architecture, Digest, ParseError, Timestamp, VolumeFileName};
use std::{collections::BTreeMap, path::PathBuf, str::FromStr};

/// Where the image of a container comes from: `oci:DIR[:TAG]`, `oci-archive:FILE[:TAG]` or
/// `docker://HOST/NAME@sha256:DIGEST`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ContainerSource(SourceSpec);

impl FromStr for ContainerSource {
    type Err = ParseError;

    fn from_str(text: &str) -> Result<Self, ParseError> {
        let hint = "write oci:DIR, oci-archive:FILE or docker://HOST/NAME@sha256:DIGEST";
        let error = |what: &str| ParseError::of_text(text, what, hint);
        if let Some(reference) = text.strip_prefix("docker://") {
            let (reference, digest) = parse_registry(reference)
                .ok_or_else(|| error("is not a reference with a digest"))?;
            return Ok(ContainerSource(SourceSpec::Registry { reference, digest }));
        }
        let place = text.strip_prefix("oci:").or_else(|| text.strip_prefix("oci-archive:"));
        let place = place.filter(|place| !place.is_empty());
        let place = place.ok_or_else(|| error("is not a source of an image"))?;
        // A tag has no slash, so a colon before one belongs to the path.
        let (path, tag) = match place.rsplit_once(':') {
            Some((path, tag)) if !tag.contains('/') => (path, Some(tag.to_owned())),
            _ => (place, None),
        };
        if tag.as_ref().is_some_and(String::is_empty) || path.is_empty() {
            return Err(error("is not a source of an image"));
        }
        Ok(ContainerSource(SourceSpec::Oci { path: PathBuf::from(path), tag }))
    }
}

/// An import of the image of containers.
#[derive(Clone, Debug)]
pub struct ContainerImport {
    pub name: VolumeFileName,
    pub source: ContainerSource,
    pub arch: Architecture,
    pub blobs_dir: PathBuf,
    pub work_dir: PathBuf,
    pub now: Timestamp,
}

/// Why an image of containers is not imported.
#[derive(Debug, thiserror::Error)]
pub enum ContainerImportError {
    #[error(transparent)]
    Build(#[from] BuildError),
    #[error("cannot import image `{name}`")]
    Source { name: VolumeFileName, source: RootFault },
    #[error(transparent)]
    Volume(#[from] VolumeError),
}

// An import has no image.toml, which the hints of a build name.
meshd_types::hints!(ContainerImportError {
    ContainerImportError::Source { source: RootFault::NoTag { .. }, .. } => "name one of these: --container oci:DIR:TAG";
    ContainerImportError::Source { source: RootFault::Images { .. }, .. } => "name one by its tag, --container oci:DIR:TAG, or its architecture, --arch";
    ContainerImportError::Source { source: RootFault::Architecture { .. }, .. } => "name its architecture with --arch, or import another image";
    ContainerImportError::Source { source: RootFault::Read { .. }, .. } => "check the path after --container, and copy the image again";
    @source ContainerImportError::Source { source, .. } => source;
    @source ContainerImportError::Build(source) => source;
    @source ContainerImportError::Volume(source) => source;
});

/// Imports an OCI image: its layers become one squashfs, which is added to the volumes.
///
/// # Errors
/// The image is refused as the root of a node is; its user does not exist; the name is taken. No
/// file is half-written.
pub fn import_container(
    import: &ContainerImport,
    progress: &dyn Progress,
) -> Result<VolumeInfo, ContainerImportError> {
    let work = begin(import)?;
    let made = make_image(import, &work, progress);
    let (file, image) = made.map_err(|error| match error {
        BuildError::Root { source, .. } => {
            ContainerImportError::Source { name: import.name.clone(), source }
        }
        error => ContainerImportError::Build(error),
    })?;
    let volumes = Volumes::new(&import.blobs_dir);
    Ok(volumes.add_container_image(&file, import.name.clone(), image, import.now)?)
}

/// Checks what the import needs, and begins it.
fn begin(import: &ContainerImport) -> Result<BuildFolder, BuildError> {
    require_tools(&CONTAINER_TOOLS)?;
    require_mapped_namespaces()?;
    if let SourceSpec::Oci { path, .. } = &import.source.0 {
        std::fs::metadata(path).map_err(io_error("read the image", path))?;
    }
    BuildFolder::begin(&import.work_dir, &format!("container-{}", import.name))
}

/// Makes the squashfs, and describes the image.
fn make_image(
    import: &ContainerImport,
    work: &BuildFolder,
    progress: &dyn Progress,
) -> Result<(PathBuf, ContainerImage), BuildError> {
    let fetched = report_step(progress, BuildStep::FetchRoot, || {
        sources::fetch(&import.source.0, import.arch, work)
    })?;
    let Source { fetched, tree, contents } = read_source(fetched, work, progress)?;
    let root = Root { tree: &tree, contents: &contents, arch: import.arch };
    let missing = |part: &str| {
        let why = format!("it has no {part}");
        BuildError::from(RootFault::Oci { name: import.name.to_string(), why })
    };
    let manifest = fetched.digests.get("manifest").copied().ok_or_else(|| missing("manifest"))?;
    let config = fetched.config.ok_or_else(|| missing("configuration"))?;
    let image = describe(manifest, &config, &root, import)?;
    let file = report_step(progress, BuildStep::Squashfs, || {
        filesystem::make_squashfs(&tree, &contents, newest(&tree), work)
    })?;
    Ok((file, image))
}

/// Returns the configuration with the numbers of its user.
fn describe(
    manifest: Digest,
    config: &ImageConfig,
    root: &Root<'_>,
    import: &ContainerImport,
) -> Result<ContainerImage, BuildError> {
    let user = config.user.as_deref().unwrap_or_default();
    let passwd = root.text("etc/passwd")?.unwrap_or_default();
    let group = root.text("etc/group")?.unwrap_or_default();
    let (uid, gid) = resolve_user(user, &passwd, &group).ok_or_else(|| {
        let shown: String = user.chars().take(100).collect();
        let why = format!("its user `{}` is not in /etc/passwd", shown.escape_debug());
        RootFault::Oci { name: import.name.to_string(), why }
    })?;
    let variables = config.env.iter().flatten();
    let env = variables.map(|text| text.split_once('=').unwrap_or((text, "")));
    let env: BTreeMap<String, String> =
        env.map(|(name, value)| (name.to_owned(), value.to_owned())).collect();
    let working_dir = config.working_dir.as_deref().unwrap_or_default();
    Ok(ContainerImage {
        manifest,
        arch: import.arch,
        entrypoint: config.entrypoint.clone().unwrap_or_default(),
        cmd: config.cmd.clone().unwrap_or_default(),
        env,
        working_dir: format!("/{}", working_dir.trim_start_matches('/')),
        uid,
        gid,
    })
}

/// Returns user ID and group ID of `USER[:GROUP]`, each a number or a name of the image. Without a
/// group, the group of the user.
fn resolve_user(user: &str, passwd: &str, group: &str) -> Option<(u32, u32)> {
    if user.is_empty() {
        return Some((0, 0));
    }
    let (user, wanted) = match user.split_once(':') {
        Some((user, group)) => (user, Some(group)),
        None => (user, None),
    };
    let fields = |line: &str| -> Vec<String> { line.split(':').map(str::to_owned).collect() };
    let number = |fields: &[String], index: usize| fields.get(index)?.parse::<u32>().ok();
    let uid: Option<u32> = user.parse().ok();
    let is_user = |entry: &Vec<String>| match uid {
        Some(uid) => number(entry, 2) == Some(uid),
        None => entry.first().is_some_and(|name| name == user),
    };
    let entry = passwd.lines().map(fields).find(is_user);
    let uid = uid.or_else(|| number(entry.as_ref()?, 2))?;
    let gid = match wanted {
        None => entry.and_then(|entry| number(&entry, 3)).unwrap_or(0),
        Some(wanted) => wanted.parse().ok().or_else(|| {
            let mut groups = group.lines().map(fields);
            number(&groups.find(|entry| entry.first().is_some_and(|name| name == wanted))?, 2)
        })?,
    };
    Some((uid, gid))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{progress::Quiet, root::tests::write_layout};
    use meshd_types::Hint as _;

    #[test]
    fn source_of_a_container_image_is_parsed_or_refused() {
        let oci = |path: &str, tag: Option<&str>| {
            let tag = tag.map(str::to_owned);
            ContainerSource(SourceSpec::Oci { path: PathBuf::from(path), tag })
        };
        assert_eq!("oci:/a/b".parse(), Ok(oci("/a/b", None)));
        assert_eq!("oci:/a/b:v1".parse(), Ok(oci("/a/b", Some("v1"))));
        assert_eq!("oci-archive:x:1/y.tar".parse(), Ok(oci("x:1/y.tar", None)));
        let digest = "ab".repeat(32);
        let text = format!("docker://h:5000/n@sha256:{digest}");
        let registry = SourceSpec::Registry {
            reference: text.clone(),
            digest: digest.parse().expect("a digest"),
        };
        assert_eq!(text.parse(), Ok(ContainerSource(registry)));
        for text in ["", "oci:", "oci:/a:", "docker://h/n:latest", "/a", "docker-archive:/a"] {
            let error = text.parse::<ContainerSource>().expect_err(text).to_string();
            assert!(error.contains("oci-archive:FILE"), "{error}");
        }
    }

    #[test]
    fn failed_import_names_the_option_that_corrects_it() {
        let dir = tempfile::tempdir().expect("a folder");
        let layout = dir.path().join("layout");
        let layer = write_layout(&layout, "amd64", b"a layer");
        let import = |tag: &str, arch| {
            let source = format!("oci:{}{tag}", layout.display()).parse().expect("a source");
            let [blobs_dir, work_dir] = ["blobs", "work"].map(|name| dir.path().join(name));
            let name = "web".parse().expect("a name");
            let now = Timestamp::EPOCH;
            let import = ContainerImport { name, source, arch, blobs_dir, work_dir, now };
            let error = import_container(&import, &Quiet).expect_err("refused");
            error.hint().expect("a hint")
        };
        assert!(import(":v2", Architecture::X86_64).contains("--container oci:DIR:TAG"));
        assert!(import(":v1", Architecture::Aarch64).contains("--arch"));
        std::fs::remove_file(layer).expect("removed");
        let hint = import("", Architecture::X86_64);
        assert!(hint.contains("--container") && !hint.contains("image.toml"), "{hint}");
    }

    #[test]
    fn user_of_an_image_is_a_number_or_a_name_of_its_files() {
        let passwd = "root:x:0:0::/:/bin/sh\nweb:x:33:34::/:\nbroken\n";
        let group = "root:x:0:\nstaff:x:50:web\n";
        for (user, ids) in [
            ("", Some((0, 0))),
            ("web", Some((33, 34))),
            ("33", Some((33, 34))),
            ("1000", Some((1000, 0))),
            ("1000:7", Some((1000, 7))),
            ("web:staff", Some((33, 50))),
            ("none", None),
            ("web:none", None),
            ("-1", None),
        ] {
            assert_eq!(resolve_user(user, passwd, group), ids, "{user}");
        }
    }
}
