//! Faults of a root and of its sources.

use super::limits::Limits;
use meshd_types::{Architecture, Digest, ImageName};
use std::{io, path::PathBuf};

/// Why an image of kind `root` cannot be built from its sources.
#[derive(Debug, thiserror::Error)]
pub enum RootFault {
    #[error("source {} lies in the recipe's folder", .0.display())]
    SourceInRecipe(PathBuf),
    /// Its owners have no number in the user namespace of the build.
    #[error("folder {} belongs to user {owner}, not to the user who builds", .folder.display())]
    ForeignFolder { folder: PathBuf, owner: u32 },
    #[error("cannot read {name}")]
    Read { name: String, source: io::Error },
    #[error("{name} is not an archive: {why}")]
    Archive { name: String, why: String },
    #[error("{name} has SHA-256 {found} instead of {stated}")]
    WrongDigest { name: String, found: Digest, stated: Digest },
    /// It would be recorded under the digest of its former content.
    #[error("{0} changed while it was read")]
    Changed(String),
    #[error("{name} has {found} bytes instead of {stated}")]
    WrongSize { name: String, found: u64, stated: u64 },
    #[error("{name} is no OCI image: {why}")]
    Oci { name: String, why: String },
    #[error("{name} has {count} images for {arch} instead of one")]
    Images { name: String, count: usize, arch: Architecture },
    #[error("{name} has no image `{tag}`; it has {known}")]
    NoTag { name: String, tag: String, known: String },
    #[error("`{path}` in {name} {why}")]
    Path { name: String, path: String, why: &'static str },
    #[error("the sources have more than {} files", .0.entries)]
    TooMany(Limits),
    #[error("the sources expand to more than {} bytes", .0.bytes)]
    TooLarge(Limits),
    #[error("the paths of the root pass more than {} names and links", .0.passed_names())]
    TooManyNames(Limits),
    #[error("the root is {size} bytes as a squashfs, more than {most}")]
    SquashfsTooLarge { size: u64, most: u64 },
    #[error("the root has no kernel: /boot has no vmlinuz-RELEASE")]
    NoKernel,
    #[error("the root has {} kernels: {}", .0.len(), .0.join(", "))]
    SeveralKernels(Vec<String>),
    #[error("the kernel /boot/{file} {why}")]
    Kernel { file: String, why: String },
    #[error("the root has no modules for its kernel: /lib/modules/{0}/modules.dep does not exist")]
    NoModules(String),
    #[error("the kernel has no module `{0}`, which every node needs to mount its root")]
    NoModule(&'static str),
    #[error("modules and firmware of the initramfs have more than {0} bytes")]
    ModulesTooLarge(u64),
    #[error("image {0} is not of kind alpine")]
    NotAlpine(ImageName),
    #[error("image {image} has no package {}", .packages.join(", "))]
    NoPackages { image: ImageName, packages: Vec<String> },
    #[error("the root has no program /sbin/init")]
    NoInit,
    #[error("{what} is built for {found} instead of {expected}")]
    Architecture { what: String, found: String, expected: Architecture },
    #[error("veritysetup printed no root hash")]
    NoRootHash,
}

meshd_types::hints!(RootFault {
    RootFault::SourceInRecipe(_) => "move it out of that folder, whose files are the recipe";
    RootFault::ForeignFolder { .. } => "build as root, or archive the folder as root and write tar = \"FILE\"";
    RootFault::Read { .. } => "correct [source] in image.toml";
    RootFault::Archive { .. } => "make the archive again; tar, and tar in gzip, zstd or xz are known";
    RootFault::WrongDigest { .. } => "copy the image again";
    RootFault::Changed(_) => "build the image again when nothing writes it";
    RootFault::WrongSize { .. } => "copy the image again";
    RootFault::Oci { .. } => "make it with umoci, skopeo or buildah";
    RootFault::Images { .. } => "name one by its tag, oci = \"FOLDER:TAG\", or correct `arch` in image.toml";
    RootFault::NoTag { .. } => "write oci = \"FOLDER:TAG\"";
    RootFault::Path { .. } => "remove the entry from the source";
    RootFault::TooMany(_) => "remove files from the root";
    RootFault::TooLarge(_) => "remove files from the root";
    RootFault::TooManyNames(_) => "remove chains of symbolic links";
    RootFault::SquashfsTooLarge { .. } => "remove files from the root";
    RootFault::NoKernel => "install a kernel package, such as linux-image-amd64";
    RootFault::SeveralKernels(_) => "remove all but one kernel package";
    RootFault::Kernel { .. } => "install the kernel package again";
    RootFault::NoModules(release) => "install the modules, and run `depmod {release}` in the root";
    RootFault::NoModule(_) => "install a kernel with squashfs, overlayfs, loop and dm-verity";
    RootFault::ModulesTooLarge(_) => "list fewer modules in image.toml";
    RootFault::NotAlpine(_) => "name an image whose packages Alpine's apk installs, such as alpine-lab";
    RootFault::NoPackages { image, .. } => "add it to images/{image}/image.toml, or remove it here";
    RootFault::NoInit => "install an init, such as systemd-sysv";
    RootFault::Architecture { .. } => "correct `arch` in image.toml, or the source";
    RootFault::NoRootHash => "check the version of cryptsetup-bin";
});
