//! Fetches the sources of a root as archives.

use super::{
    error::RootFault,
    limits::LIMITS,
    oci::{ImageConfig, Layout},
    read_archive::{Archive, digest_of},
    recipe::{Debian, RootRecipe, SourceSpec},
};
use crate::{
    command::{CommandError, ToolCommand},
    error::{BuildError, failed, io_error},
    work_folder::BuildFolder,
};
use meshd_types::Digest;
use std::{
    collections::BTreeMap,
    fs::{self, File},
    io::Read as _,
    path::{Path, PathBuf},
};

/// Time of the files that mmdebstrap makes, in seconds: 2020. It has to be constant, and a suite
/// does not say the time of its newest package.
const DEBIAN_TIME: &str = "1577836800";
/// First bytes of a compressed archive, and the program that unpacks it.
const COMPRESSIONS: [(&[u8], &str); 3] = [
    (&[0x1f, 0x8b], "gzip"),
    (&[0x28, 0xb5, 0x2f, 0xfd], "zstd"),
    (&[0xfd, b'7', b'z', b'X', b'Z'], "xz"),
];
/// The image in the layout that skopeo writes.
const COPIED: &str = "root";

/// Archives of a source in their order, and the digests that identify the source.
pub(super) struct Fetched {
    pub(super) archives: Vec<Archive>,
    pub(super) digests: BTreeMap<String, Digest>,
    /// Configuration of an OCI image.
    pub(super) config: Option<ImageConfig>,
}

/// Returns the digests by which a source on this machine is found unchanged. `None` if only the
/// build finds out. A suite and an image with a digest change with the recipe only.
pub(super) fn unchanged_digests(
    recipe: &RootRecipe,
) -> Result<Option<BTreeMap<String, Digest>>, RootFault> {
    let one = |name: &str, digest| Some(BTreeMap::from([(name.to_owned(), digest)]));
    Ok(match &recipe.source {
        SourceSpec::Debian(_) | SourceSpec::Registry { .. } => Some(BTreeMap::new()),
        SourceSpec::Tar(path) => one("tar", digest_of(path, &path.display().to_string())?),
        SourceSpec::Oci { path, tag } if path.is_dir() => {
            one("manifest", layout(recipe, path, path).manifest_digest(tag.as_deref())?)
        }
        SourceSpec::Oci { .. } | SourceSpec::Folder(_) => None,
    })
}

/// Fetches the source of a recipe into the work folder.
pub(super) fn fetch(recipe: &RootRecipe, work: &BuildFolder) -> Result<Fetched, BuildError> {
    match &recipe.source {
        SourceSpec::Debian(debian) => fetch_debian(recipe, debian, work),
        SourceSpec::Tar(path) => {
            let name = path.display().to_string();
            let digest = digest_of(path, &name)?;
            let unpacked = unpack(path, &name, &work.path("source.tar"))?;
            let is_plain = unpacked == *path;
            if !is_plain && digest_of(path, &name)? != digest {
                return Err(RootFault::Changed(name).into());
            }
            let digests = BTreeMap::from([("tar".to_owned(), digest)]);
            let digest = is_plain.then_some(digest);
            let archive = Archive { path: unpacked, name, is_layer: false, digest };
            Ok(Fetched { archives: vec![archive], digests, config: None })
        }
        SourceSpec::Folder(folder) => fetch_folder(folder, work),
        SourceSpec::Oci { path, tag } if path.is_dir() => {
            fetch_layers(&layout(recipe, path, path), tag.as_deref(), work)
        }
        SourceSpec::Oci { path, tag } => {
            if let Err(source) = meshd_config::files::open_regular(path) {
                return Err(RootFault::Read { name: path.display().to_string(), source }.into());
            }
            let tag = tag.as_ref().map_or_else(String::new, |tag| format!(":{tag}"));
            copy(recipe, &format!("oci-archive:{}{tag}", path.display()), path, work)
        }
        SourceSpec::Registry { reference, digest } => {
            let mut fetched = copy(recipe, reference, Path::new(reference), work)?;
            fetched.digests.insert("reference".to_owned(), *digest);
            Ok(fetched)
        }
    }
}

fn layout<'a>(recipe: &RootRecipe, folder: &'a Path, name: &Path) -> Layout<'a> {
    Layout { folder, name: name.display().to_string(), arch: recipe.arch }
}

fn fetch_debian(
    recipe: &RootRecipe,
    debian: &Debian,
    work: &BuildFolder,
) -> Result<Fetched, BuildError> {
    let path = work.path("source.tar");
    let mut command = ToolCommand::new("mmdebstrap")
        .args(["--quiet", "--variant=minbase", "--format=tar"])
        // mmdebstrap copies both from this machine.
        .arg("--customize-hook=rm -f \"$1/etc/hostname\" \"$1/etc/resolv.conf\"")
        .arg(format!("--include={}", debian.packages.join(",")))
        .arg(format!("--architectures={}", recipe.arch.facts().debian_name))
        .env("SOURCE_DATE_EPOCH", DEBIAN_TIME);
    if let Some(keyring) = &debian.keyring {
        command = command.arg(format!("--keyring={}", keyring.display()));
    }
    command = command.arg(&debian.suite).arg(&path);
    if let Some(mirror) = &debian.mirror {
        command = command.arg(mirror);
    }
    let hint = "check suite, packages, mirror and keyring, and that the mirror is reachable";
    let what = "install the packages of Debian";
    command.run().map_err(|source| BuildError::Command { what, hint, source })?;
    generated(path, "the archive of mmdebstrap")
}

fn fetch_folder(folder: &Path, work: &BuildFolder) -> Result<Fetched, BuildError> {
    let name = folder.display().to_string();
    fs::read_dir(folder).map_err(|source| RootFault::Read { name: name.clone(), source })?;
    let path = work.path("source.tar");
    let archive = File::create(&path).map_err(io_error("make", &path))?;
    ToolCommand::as_mapped_root("tar")
        .args(["--create", "--numeric-owner", "--sort=name", "--one-file-system", "--format=pax"])
        .args(["--xattrs", "--xattrs-include=*", "--pax-option=delete=atime,delete=ctime"])
        .arg("--directory")
        .arg(folder)
        .arg(".")
        .into_file(archive)
        .map_err(failed("read the folder of the root"))?;
    generated(path, &name)
}

/// Returns an archive that a program of the build made.
fn generated(path: PathBuf, name: &str) -> Result<Fetched, BuildError> {
    let digest = digest_of(&path, name)?;
    let digests = BTreeMap::from([("tree".to_owned(), digest)]);
    let archive = Archive { path, name: name.to_owned(), is_layer: false, digest: Some(digest) };
    Ok(Fetched { archives: vec![archive], digests, config: None })
}

/// Copies an image into a layout, and fetches its layers from there.
fn copy(
    recipe: &RootRecipe,
    reference: &str,
    name: &Path,
    work: &BuildFolder,
) -> Result<Fetched, BuildError> {
    let folder = work.folder("oci")?;
    let hint = "check the reference: `skopeo inspect` reads it";
    // skopeo unpacks an archive beside TMPDIR.
    limited("skopeo", LIMITS.bytes)
        .args(["copy", "--quiet", "--insecure-policy", "--override-os", "linux"])
        .args(["--override-arch", recipe.arch.facts().debian_name, reference])
        .arg(format!("oci:{}:{COPIED}", folder.display()))
        .env("TMPDIR", work.path(""))
        .run()
        .map_err(|source| BuildError::Command { what: "copy the OCI image", hint, source })?;
    fetch_layers(&layout(recipe, &folder, name), Some(COPIED), work)
}

fn fetch_layers(
    layout: &Layout<'_>,
    tag: Option<&str>,
    work: &BuildFolder,
) -> Result<Fetched, BuildError> {
    let image = layout.image(tag)?;
    let mut digests = BTreeMap::from([("manifest".to_owned(), image.manifest)]);
    let mut archives = Vec::new();
    for (number, layer) in (1..).zip(&image.layers) {
        digests.insert(format!("layer {number:03}"), layer.digest);
        let name = format!("layer {} of {}", layer.digest.short(), layout.name);
        let path = unpack(&layer.path, &name, &work.path(&format!("layer{number}.tar")))?;
        archives.push(Archive { path, name, is_layer: true, digest: Some(layer.unpacked) });
    }
    Ok(Fetched { archives, digests, config: Some(image.config) })
}

/// Unpacks a compressed archive. Returns the path of the plain archive.
fn unpack(path: &Path, name: &str, to: &Path) -> Result<PathBuf, BuildError> {
    let unreadable = |source| RootFault::Read { name: name.to_owned(), source };
    let open = || meshd_config::files::open_regular(path).map_err(unreadable);
    let mut magic = Vec::new();
    open()?.take(8).read_to_end(&mut magic).map_err(unreadable)?;
    let Some((_, program)) = COMPRESSIONS.iter().find(|(start, _)| magic.starts_with(start)) else {
        return Ok(path.to_owned());
    };
    let out = File::create(to).map_err(io_error("make", to))?;
    let unpacked = limited(program, LIMITS.bytes).arg("-dc").input(open()?).into_file(out);
    match unpacked {
        Ok(()) => Ok(to.to_owned()),
        Err(_) if fs::metadata(to).is_ok_and(|meta| meta.len() >= LIMITS.bytes) => {
            Err(RootFault::TooLarge(LIMITS).into())
        }
        Err(error @ CommandError::Start { .. }) => Err(failed("unpack an archive")(error)),
        Err(error) => {
            let why = error.to_string();
            Err(RootFault::Archive { name: name.to_owned(), why }.into())
        }
    }
}

/// Returns a command that can write no file of more than `bytes`.
pub(super) fn limited(program: &str, bytes: u64) -> ToolCommand {
    ToolCommand::new("prlimit").arg(format!("--fsize={bytes}")).arg(program)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::root::{
        contents::ContentStore,
        read_archive::{Reader, Used},
        tree::RootTree,
    };
    use meshd_types::Architecture;

    fn tar_of(content: &[u8]) -> Vec<u8> {
        let mut header = tar::Header::new_ustar();
        header.set_size(content.len() as u64);
        header.set_mode(0o644);
        header.set_uid(0);
        header.set_gid(0);
        header.set_mtime(0);
        header.set_cksum();
        let mut builder = tar::Builder::new(Vec::new());
        builder.append_data(&mut header, "etc/motd", content).unwrap();
        builder.into_inner().unwrap()
    }

    #[test]
    fn tar_that_is_cut_or_changes_before_it_is_read_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("root.tar");
        let recipe = RootRecipe {
            arch: Architecture::X86_64,
            description: String::new(),
            source: SourceSpec::Tar(path.clone()),
            modules: Vec::new(),
        };
        let work = BuildFolder::begin(dir.path(), "work").unwrap();
        let mut contents = ContentStore::new(work.folder("contents").unwrap());
        let mut tree = RootTree::new(LIMITS);
        let mut reader = Reader {
            tree: &mut tree,
            contents: &mut contents,
            limits: LIMITS,
            used: Used::default(),
        };
        fs::write(&path, tar_of(b"old")).unwrap();
        let fetched = fetch(&recipe, &work).unwrap();
        reader.add(&fetched.archives[0]).unwrap();
        fs::write(&path, tar_of(b"new")).unwrap();
        let refused = reader.add(&fetched.archives[0]);
        assert!(matches!(&refused, Err(RootFault::Changed(_))), "{refused:?}");
        // The digest of a file that was cut before proves nothing.
        let whole = tar_of(b"new");
        fs::write(&path, &whole[..whole.len() - 512]).unwrap();
        let cut = fetch(&recipe, &work).unwrap();
        let refused = reader.add(&cut.archives[0]);
        assert!(matches!(&refused, Err(RootFault::Archive { .. })), "{refused:?}");
    }
}
