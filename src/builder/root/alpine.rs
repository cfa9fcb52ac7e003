//! A root of Alpine: the packages of an image of kind `alpine` are installed when the root is built,
//! by the apk and with the keys of that image's initramfs, as its init does at every boot.

use super::{
    archive::read::{Archive, digest_of},
    error::RootFault,
    limits::LIMITS,
    recipe::AlpineSource,
    sources::{Fetched, TREE_TIME, unpack},
};
use crate::{
    alpine::BuildRequest,
    command::ToolCommand,
    error::{BuildError, failed, io_error},
    parts::recipe_head,
    progress::Progress,
    work_folder::BuildFolder,
};
use meshd_image::catalog::image::{AlpineParts, ImageKind, ImageManifest, blob_path};
use meshd_model::image_kind::ImageKindName;
use meshd_types::{Architecture, Digest};
use std::{
    collections::BTreeMap,
    fs::{self, File},
    io::Read as _,
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
};

/// Installs packages in a root below the unpacked initramfs `$1`. apk runs scripts of packages in
/// mount namespaces of their own, and needs mount points for that: `/` is one.
const INSTALL: &str = r#"
base=$1
shift
mount --rbind "$base" "$base"
for device in null zero full random urandom; do
	: >"$base/sysroot/dev/$device"
	mount --bind "/dev/$device" "$base/sysroot/dev/$device"
done
exec env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin chroot "$base" "$@"
"#;
/// Arguments of apk before the packages, inside the initramfs.
const APK: [&str; 10] = [
    "/sbin/apk",
    "add",
    "--root",
    "/sysroot",
    "--initdb",
    "--no-network",
    "--no-cache",
    "--no-progress",
    "--repository",
    "/packages",
];
/// Users that packages add have the day of the build in the third field of their line (shadow(5)).
const WITHOUT_DAYS: &str = r"s/^([^:]*:[^:]*):[0-9]+:/\1::/";
/// Left out of the root: places of devices, and files with the time of the build.
const LEFT_OUT: [&str; 5] =
    ["dev/*", "var/log/apk.log", "etc/shadow-", "etc/passwd-", "etc/group-"];
/// Folder of firmware in a modloop.
const FIRMWARE: &str = "firmware";
/// Name of the digest that identifies the image of kind `alpine`: its version.
const IMAGE: &str = "image";
/// Zeros at the end of a blob, at most.
const MAX_PADDING: u64 = 3;

/// Builds the image of kind `alpine` that a root takes its packages from, unless it is up to date. Its
/// current version stays.
pub(super) fn build_image(
    request: &BuildRequest,
    source: &AlpineSource,
    progress: &dyn Progress,
) -> Result<ImageManifest, BuildError> {
    let recipe_dir = request.recipe_dir.with_file_name(source.image.as_str());
    if recipe_head::kind_of(&recipe_dir) != ImageKindName::Alpine {
        return Err(RootFault::NotAlpine(source.image.clone()).into());
    }
    let name = source.image.clone();
    crate::build(&BuildRequest { recipe_dir, name, promote: false, ..request.clone() }, progress)
}

/// Returns the digest by which a root is found unchanged.
pub(super) fn digests(image: &ImageManifest) -> BTreeMap<String, Digest> {
    BTreeMap::from([(IMAGE.to_owned(), image.version())])
}

/// Installs the packages of a recipe from an image of kind `alpine`.
pub(super) fn fetch(
    source: &AlpineSource,
    image: &ImageManifest,
    arch: Architecture,
    blobs_dir: &Path,
    work: &BuildFolder,
) -> Result<Fetched, BuildError> {
    let parts = parts_with(source, image, arch)?;
    let blob = |digest: &Digest| blob_path(blobs_dir, digest);
    let base = work.mapped_folder("alpine")?;
    let base = base.path();
    for (name, part) in [("initramfs", parts.initramfs), ("packages", parts.packages)] {
        let archive = unpack_blob(&blob(&part.digest), name, work)?;
        ToolCommand::as_mapped_root("prlimit")
            .arg(format!("--fsize={}", LIMITS.bytes))
            .args(["cpio", "--extract", "--make-directories", "--no-absolute-filenames"])
            .args(["--preserve-modification-time", "--quiet"])
            .current_dir(base)
            .input(File::open(&archive).map_err(io_error("open", &archive))?)
            .run()
            .map_err(failed("unpack the initramfs and the packages of Alpine"))?;
    }
    install(source, base)?;
    ToolCommand::as_mapped_root("prlimit")
        .arg(format!("--fsize={}", LIMITS.bytes))
        .args(["unsquashfs", "-quiet", "-no-progress", "-no-xattrs", "-dest"])
        .arg(base.join("modloop"))
        .arg(blob(&parts.modloop.digest))
        .run()
        .map_err(failed("unpack the modules of Alpine"))?;

    let sysroot = base.join("sysroot");
    // With a merged /usr, /lib is a link.
    let is_merged = sysroot.join("lib").is_symlink();
    let lib = if is_merged { "usr/lib" } else { "lib" };
    let boot = work.folder("kernel")?;
    let release = image.kernel_release.as_str();
    let kernel = format!("vmlinuz-{release}");
    let copied = fs::copy(blob(&parts.kernel.digest), boot.join(&kernel))
        .and_then(|_| fs::set_permissions(boot.join(&kernel), fs::Permissions::from_mode(0o644)));
    copied.map_err(io_error("write", &boot))?;
    let modules = base.join("modloop/modules");
    let firmware = modules.join(FIRMWARE).is_dir().then_some((FIRMWARE, lib));
    let in_modules = format!("{lib}/modules");
    let archives = [
        archive("packages", &sysroot, &[(".", "")], work)?,
        archive(
            "modules",
            &modules,
            &Vec::from_iter([(release, &*in_modules)].into_iter().chain(firmware)),
            work,
        )?,
        archive("kernel", &boot, &[(&*kernel, "boot")], work)?,
    ];
    Ok(Fetched {
        archives: archives.into(),
        digests: digests(image),
        config: None,
        kernel_package: Some(image.kernel_package.clone()),
    })
}

/// Returns the parts of the image, which must have all packages of the recipe.
fn parts_with<'a>(
    source: &AlpineSource,
    image: &'a ImageManifest,
    arch: Architecture,
) -> Result<&'a AlpineParts, RootFault> {
    let ImageKind::Alpine(parts) = &image.parts else {
        return Err(RootFault::NotAlpine(image.name.clone()));
    };
    if image.arch != arch {
        let what = format!("image {}", image.name);
        return Err(RootFault::Architecture {
            what,
            found: image.arch.to_string(),
            expected: arch,
        });
    }
    let absent = source.packages.iter().filter(|package| !image.packages.contains_key(*package));
    let absent: Vec<String> = absent.cloned().collect();
    if absent.is_empty() {
        return Ok(parts);
    }
    Err(RootFault::NoPackages { image: image.name.clone(), packages: absent })
}

/// Unpacks a compressed blob. zstd refuses the zeros at its end.
fn unpack_blob(blob: &Path, name: &str, work: &BuildFolder) -> Result<PathBuf, BuildError> {
    let size = fs::metadata(blob).map_err(io_error("read", blob))?.len();
    let plain = work.path(&format!("{name}.cpio"));
    let mut padding = 0;
    loop {
        let path = work.path(&format!("{name}.blob"));
        let mut file = File::create(&path).map_err(io_error("make", &path))?;
        let bytes = File::open(blob).map_err(io_error("open", blob))?;
        std::io::copy(&mut bytes.take(size - padding), &mut file)
            .map_err(io_error("write", &path))?;
        match unpack(&path, name, &plain, LIMITS) {
            Err(BuildError::Root { source: RootFault::Archive { .. }, .. })
                if padding < MAX_PADDING && padding < size =>
            {
                padding += 1;
            }
            unpacked => return unpacked,
        }
    }
}

fn install(source: &AlpineSource, base: &Path) -> Result<(), BuildError> {
    let keys = base.join("sysroot/etc/apk");
    for folder in [&keys, &base.join("sysroot/dev")] {
        let made = ToolCommand::as_mapped_root("mkdir").arg("--parents").arg(folder).run();
        made.map_err(failed("make a folder of the root"))?;
    }
    ToolCommand::as_mapped_root("cp")
        .arg("--archive")
        .args([base.join("etc/apk/keys"), keys])
        .run()
        .map_err(failed("copy the keys of Alpine"))?;
    ToolCommand::as_mapped_root("prlimit")
        .arg(format!("--fsize={}", LIMITS.bytes))
        .args(["unshare", "--mount", "sh", "-euc", INSTALL, "sh"])
        .arg(base)
        .args(APK)
        .args(&source.packages)
        .run()
        .map_err(|source| {
            let hint = "build on a machine of the image's architecture, and see what apk says";
            BuildError::Command { what: "install the packages of Alpine", hint, source }
        })?;
    // In the root, so that no link of a package leads out of it.
    ToolCommand::as_mapped_root("chroot")
        .arg(base.join("sysroot"))
        .args(["/bin/sed", "-i", "-E", WITHOUT_DAYS, "/etc/shadow"])
        .run()
        .map_err(failed("write the accounts of the root"))
}

/// Archives names in a folder, each with the folder of the root that it gets into. New files have
/// one time.
fn archive(
    name: &str,
    folder: &Path,
    names: &[(&str, &str)],
    work: &BuildFolder,
) -> Result<Archive, BuildError> {
    let path = work.path(&format!("{name}.tar"));
    let file = File::create(&path).map_err(io_error("make", &path))?;
    let placed = names.iter().filter(|(_, into)| !into.is_empty());
    // `S`: targets of symbolic links stay.
    let transforms = placed.map(|(name, into)| format!("--transform=s,^{name},{into}/&,S"));
    ToolCommand::as_mapped_root("prlimit")
        .arg(format!("--fsize={}", LIMITS.bytes))
        .args(["tar", "--create", "--numeric-owner", "--sort=name", "--one-file-system"])
        .args(["--format=pax", "--pax-option=delete=atime,delete=ctime", "--clamp-mtime"])
        .arg(format!("--mtime=@{TREE_TIME}"))
        .args(LEFT_OUT.map(|path| format!("--exclude=./{path}")))
        .args(["--xattrs", "--xattrs-include=*"])
        .args(transforms)
        .arg("--directory")
        .arg(folder)
        .args(names.iter().map(|(name, _)| name))
        .into_file(file)
        .map_err(failed("read what apk installed"))?;
    let digest = digest_of(&path, name)?;
    Ok(Archive { path, name: name.to_owned(), is_layer: false, digest: Some(digest) })
}
