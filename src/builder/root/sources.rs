//! Fetches the sources of a root as archives.

use super::{
    archive::read::{Archive, digest_of},
    error::RootFault,
    limits::{LIMITS, Limits},
    oci::{ImageConfig, Layout},
    recipe::{Debian, SourceSpec},
};
use crate::{
    command::{CommandError, ToolCommand},
    error::{BuildError, failed, io_error},
    work_folder::BuildFolder,
};
use meshd_types::{Architecture, Digest};
use rustix::process::Signal;
use std::{
    collections::BTreeMap,
    fs::{self, File},
    io::Read as _,
    os::unix::{fs::MetadataExt as _, process::ExitStatusExt as _},
    path::{Path, PathBuf},
};

/// Time of newer files of an installed tree, in seconds: 2020. It has to be constant, and packages do
/// not say when they were made.
pub(super) const TREE_TIME: &str = "1577836800";
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
    /// Origin of the kernel, `package=version`, if no package of the root brings it.
    pub(super) kernel_package: Option<String>,
}

/// Returns the digests by which a source on this machine is found unchanged. `None` if only the
/// build finds out. A suite and an image with a digest change with the recipe only.
pub(super) fn unchanged_digests(
    source: &SourceSpec,
    arch: Architecture,
) -> Result<Option<BTreeMap<String, Digest>>, RootFault> {
    let one = |name: &str, digest| Some(BTreeMap::from([(name.to_owned(), digest)]));
    Ok(match source {
        SourceSpec::Debian(_) | SourceSpec::Registry { .. } => Some(BTreeMap::new()),
        SourceSpec::Tar(path) => one("tar", digest_of(path, &path.display().to_string())?),
        SourceSpec::Oci { path, tag } if path.is_dir() => {
            one("manifest", layout(arch, path, path).manifest_digest(tag.as_deref())?)
        }
        SourceSpec::Oci { .. } | SourceSpec::Folder(_) => None,
    })
}

/// Fetches a source for an architecture into the work folder.
pub(super) fn fetch(
    source: &SourceSpec,
    arch: Architecture,
    work: &BuildFolder,
) -> Result<Fetched, BuildError> {
    match source {
        SourceSpec::Debian(debian) => fetch_debian(arch, debian, work),
        SourceSpec::Tar(path) => {
            let name = path.display().to_string();
            let digest = digest_of(path, &name)?;
            let unpacked = unpack(path, &name, &work.path("source.tar"), LIMITS)?;
            let is_plain = unpacked == *path;
            if !is_plain && digest_of(path, &name)? != digest {
                return Err(RootFault::Changed(name).into());
            }
            let digests = BTreeMap::from([("tar".to_owned(), digest)]);
            let digest = is_plain.then_some(digest);
            let archive = Archive { path: unpacked, name, is_layer: false, digest };
            Ok(Fetched { archives: vec![archive], digests, config: None, kernel_package: None })
        }
        SourceSpec::Folder(folder) => fetch_folder(folder, work, LIMITS),
        SourceSpec::Oci { path, tag } if path.is_dir() => {
            fetch_layers(&layout(arch, path, path), tag.as_deref(), work)
        }
        SourceSpec::Oci { path, tag } => {
            if let Err(source) = meshd_config::files::open_regular(path) {
                return Err(RootFault::Read { name: path.display().to_string(), source }.into());
            }
            let tag = tag.as_ref().map_or_else(String::new, |tag| format!(":{tag}"));
            copy(arch, &format!("oci-archive:{}{tag}", path.display()), path, work)
        }
        SourceSpec::Registry { reference, digest } => {
            let mut fetched = copy(arch, reference, Path::new(reference), work)?;
            fetched.digests.insert("reference".to_owned(), *digest);
            Ok(fetched)
        }
    }
}

fn layout<'a>(arch: Architecture, folder: &'a Path, name: &Path) -> Layout<'a> {
    Layout { folder, name: name.display().to_string(), arch }
}

fn fetch_debian(
    arch: Architecture,
    debian: &Debian,
    work: &BuildFolder,
) -> Result<Fetched, BuildError> {
    let path = work.path("source.tar");
    let mut command = ToolCommand::new("mmdebstrap")
        // With --quiet, it says that apt failed, and not why.
        .args(["--variant=minbase", "--format=tar"])
        // mmdebstrap copies both from this machine.
        .arg("--customize-hook=rm -f \"$1/etc/hostname\" \"$1/etc/resolv.conf\"")
        .arg(format!("--include={}", debian.packages.join(",")))
        .arg(format!("--architectures={}", arch.facts().debian_name))
        .env("SOURCE_DATE_EPOCH", TREE_TIME);
    if let Some(keyring) = &debian.keyring {
        command = command.arg(format!("--keyring={}", keyring.display()));
    }
    command = command.arg(&debian.suite).arg(&path);
    command = command.args(&debian.mirror).args(&debian.sources);
    let hint = "check suite, packages, mirror and keyring, and that the mirror is reachable";
    let what = "install the packages of Debian";
    command.run().map_err(|source| BuildError::Command { what, hint, source })?;
    generated(path, "the archive of mmdebstrap")
}

fn fetch_folder(folder: &Path, work: &BuildFolder, limits: Limits) -> Result<Fetched, BuildError> {
    let name = folder.display().to_string();
    let unreadable = |source| RootFault::Read { name: name.clone(), source };
    fs::read_dir(folder).map_err(unreadable)?;
    let owner = fs::metadata(folder).map_err(unreadable)?.uid();
    let user = rustix::process::geteuid();
    if !user.is_root() && owner != user.as_raw() {
        return Err(RootFault::ForeignFolder { folder: folder.to_owned(), owner }.into());
    }
    let path = work.path("source.tar");
    let archive = File::create(&path).map_err(io_error("make", &path))?;
    let read = ToolCommand::as_mapped_root("prlimit")
        .arg(format!("--fsize={}", limits.bytes))
        .args(["tar", "--create", "--numeric-owner", "--sort=name", "--one-file-system"])
        .args(["--format=pax", "--pax-option=delete=atime,delete=ctime"])
        .args(["--xattrs", "--xattrs-include=*", "--directory"])
        .arg(folder)
        .arg(".")
        .into_file(archive);
    read.map_err(|error| match is_full(&error, &path, limits) {
        true => RootFault::TooLarge(limits).into(),
        false => failed("read the folder of the root")(error),
    })?;
    generated(path, &name)
}

/// Returns whether a program failed because it may not write more bytes. xz skips zeros, so its
/// file may be shorter.
fn is_full(error: &CommandError, path: &Path, limits: Limits) -> bool {
    let is_signalled = matches!(error, CommandError::Failed { status, .. }
        if status.signal() == Some(Signal::XFSZ.as_raw()));
    is_signalled || fs::metadata(path).is_ok_and(|meta| meta.len() >= limits.bytes)
}

/// Returns an archive that a program of the build made.
fn generated(path: PathBuf, name: &str) -> Result<Fetched, BuildError> {
    let digest = digest_of(&path, name)?;
    let digests = BTreeMap::from([("tree".to_owned(), digest)]);
    let archive = Archive { path, name: name.to_owned(), is_layer: false, digest: Some(digest) };
    Ok(Fetched { archives: vec![archive], digests, config: None, kernel_package: None })
}

/// Copies an image into a layout, and fetches its layers from there.
fn copy(
    arch: Architecture,
    reference: &str,
    name: &Path,
    work: &BuildFolder,
) -> Result<Fetched, BuildError> {
    let folder = work.folder("oci")?;
    let hint = "check the reference: `skopeo inspect` reads it";
    // skopeo unpacks an archive beside TMPDIR.
    limited("skopeo", LIMITS.bytes)
        .args(["copy", "--quiet", "--insecure-policy", "--override-os", "linux"])
        .args(["--override-arch", arch.facts().debian_name, reference])
        .arg(format!("oci:{}:{COPIED}", folder.display()))
        .env("TMPDIR", work.path(""))
        .run()
        .map_err(|source| BuildError::Command { what: "copy the OCI image", hint, source })?;
    fetch_layers(&layout(arch, &folder, name), Some(COPIED), work)
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
        let path = unpack(&layer.path, &name, &work.path(&format!("layer{number}.tar")), LIMITS)?;
        archives.push(Archive { path, name, is_layer: true, digest: Some(layer.unpacked) });
    }
    Ok(Fetched { archives, digests, config: Some(image.config), kernel_package: None })
}

/// Unpacks a compressed archive. Returns the path of the plain archive.
pub(super) fn unpack(
    path: &Path,
    name: &str,
    to: &Path,
    limits: Limits,
) -> Result<PathBuf, BuildError> {
    let unreadable = |source| RootFault::Read { name: name.to_owned(), source };
    let open = || meshd_config::files::open_regular(path).map_err(unreadable);
    let mut magic = Vec::new();
    open()?.take(8).read_to_end(&mut magic).map_err(unreadable)?;
    let Some((_, program)) = COMPRESSIONS.iter().find(|(start, _)| magic.starts_with(start)) else {
        return Ok(path.to_owned());
    };
    let out = File::create(to).map_err(io_error("make", to))?;
    let unpacked = limited(program, limits.bytes).arg("-dc").input(open()?).into_file(out);
    match unpacked {
        Ok(()) => Ok(to.to_owned()),
        Err(error) if is_full(&error, to, limits) => Err(RootFault::TooLarge(limits).into()),
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
        archive::read::{Reader, Used},
        contents::ContentStore,
        tree::RootTree,
    };

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
        let source = SourceSpec::Tar(path.clone());
        let fetch = |work: &BuildFolder| fetch(&source, Architecture::X86_64, work);
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
        let fetched = fetch(&work).unwrap();
        reader.add(&fetched.archives[0]).unwrap();
        fs::write(&path, tar_of(b"new")).unwrap();
        let refused = reader.add(&fetched.archives[0]);
        assert!(matches!(&refused, Err(RootFault::Changed(_))), "{refused:?}");
        // The digest of a file that was cut before proves nothing.
        let whole = tar_of(b"new");
        fs::write(&path, &whole[..whole.len() - 512]).unwrap();
        let cut = fetch(&work).unwrap();
        let refused = reader.add(&cut.archives[0]);
        assert!(matches!(&refused, Err(RootFault::Archive { .. })), "{refused:?}");
    }

    #[test]
    fn source_that_expands_beyond_the_limit_is_refused_when_it_is_reached() {
        let dir = tempfile::tempdir().unwrap();
        let work = BuildFolder::begin(dir.path(), "work").unwrap();
        let limits = Limits { entries: 100, bytes: 1 << 20 };
        let zeros = dir.path().join("zeros");
        File::create(&zeros).unwrap().set_len(64 << 20).unwrap();
        let is_too_large = |error: &BuildError| {
            matches!(error, BuildError::Root { source: RootFault::TooLarge(_), .. })
        };
        for (_, program) in COMPRESSIONS {
            let packed = dir.path().join(program);
            let out = File::create(&packed).unwrap();
            let command = ToolCommand::new(program).arg("-1c").input(File::open(&zeros).unwrap());
            command.into_file(out).unwrap();
            assert!(fs::metadata(&packed).unwrap().len() < limits.bytes, "{program}");
            let to = work.path(program);
            let refused = unpack(&packed, "zeros", &to, limits).unwrap_err();
            assert!(is_too_large(&refused), "{program}: {refused:?}");
            assert!(fs::metadata(to).unwrap().len() <= limits.bytes, "{program}");
        }
        let folder = dir.path().join("tree");
        fs::create_dir(&folder).unwrap();
        File::create(folder.join("sparse")).unwrap().set_len(1 << 40).unwrap();
        let refused = fetch_folder(&folder, &work, limits).map(|fetched| fetched.digests);
        let refused = refused.expect_err("it has 1 TiB");
        assert!(is_too_large(&refused), "{refused:?}");
        assert!(fs::metadata(work.path("source.tar")).unwrap().len() <= limits.bytes);
    }
}
