//! A Linux guest: the kernel of the lab's image, Debian's static busybox, and a shell on the serial
//! port, on a CD that isolinux boots.

use super::central::done;
use crate::world::World;
use meshd_image::catalog::image::{ImageManifest, blob_path, load_manifest};
use std::{
    env, fs,
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
    process::Command,
};

/// What the shell shows when it waits for a command.
pub const PROMPT: &str = "guest> ";

const INIT: &str = "#!/bin/busybox sh
/bin/busybox --install -s /bin
mount -t devtmpfs dev /dev
export PS1='guest> '
exec setsid -c sh </dev/ttyS0 >/dev/ttyS0 2>&1
";
const ISOLINUX: &str = "DEFAULT x\nLABEL x\n KERNEL vmlinuz\n APPEND initrd=initrd console=ttyS0 quiet panic=1 tsc=unstable\n";

fn run(command: &mut Command) {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
}

fn blobs() -> PathBuf {
    let repository = Path::new(env!("CARGO_MANIFEST_DIR"));
    env::var_os("MESHD_E2E_BLOBS").map_or_else(|| repository.join(".lab/blobs"), PathBuf::from)
}

/// The lab's image, which `meshd lab image` builds.
fn image() -> ImageManifest {
    load_manifest(&blobs(), &"alpine-lab".parse().unwrap())
        .unwrap_or_else(|error| panic!("{error}; build the image: target/debug/meshd lab image"))
}

/// The kernel of the lab's image: Debian's.
pub fn kernel() -> PathBuf {
    blob_path(&blobs(), &image().parts.part("kernel").unwrap().digest)
}

/// Unpacks modules of that kernel into a root, from the package that the image was built from, and
/// writes their dependencies.
pub fn unpack_modules(root: &Path, names: &[&str]) {
    let package = image().kernel_package;
    let file = format!("{}_amd64.deb", package.replace('=', "_"));
    // The shell splits the members, and expands none.
    let unpack = "dpkg-deb --fsys-tarfile \"$1\" | tar -x -C \"$2\" --wildcards $3";
    let members: Vec<String> = names.iter().map(|name| format!("*/{name}.ko")).collect();
    let mut command = Command::new("sh");
    command.args(["-f", "-c", unpack, "sh"]).arg(blobs().join("cache").join(file)).arg(root);
    run(command.arg(members.join(" ")));
    run(Command::new("depmod").arg("-b").arg(root).arg(image().kernel_release));
}

/// Packs a root as an initramfs.
pub fn pack_initramfs(root: &Path, initramfs: &Path) {
    let archive = "cd \"$1\" && find . | cpio --quiet -o -H newc >\"$2\"";
    run(Command::new("sh").args(["-c", archive, "sh"]).arg(root).arg(initramfs));
}

fn initramfs(dir: &Path) {
    let root = dir.join("root");
    for folder in ["bin", "dev"] {
        fs::create_dir_all(root.join(folder)).unwrap();
    }
    fs::copy("/bin/busybox", root.join("bin/busybox")).unwrap();
    fs::write(root.join("init"), INIT).unwrap();
    fs::set_permissions(root.join("init"), fs::Permissions::from_mode(0o755)).unwrap();
    pack_initramfs(&root, &dir.join("cd/initrd"));
}

/// Makes the CD, adds it to the volumes, and returns the vm.toml of a machine that boots it.
pub fn file(world: &World, name: &str) -> String {
    let dir = tempfile::tempdir().unwrap();
    let cd = dir.path().join("cd");
    fs::create_dir_all(&cd).unwrap();
    fs::copy(kernel(), cd.join("vmlinuz")).unwrap();
    fs::copy("/usr/lib/ISOLINUX/isolinux.bin", cd.join("isolinux.bin")).unwrap();
    fs::copy("/usr/lib/syslinux/modules/bios/ldlinux.c32", cd.join("ldlinux.c32")).unwrap();
    fs::write(cd.join("isolinux.cfg"), ISOLINUX).unwrap();
    initramfs(dir.path());
    let iso = world.path("linux.iso");
    let mut make = Command::new("genisoimage");
    make.args([
        "-quiet",
        "-R",
        "-b",
        "isolinux.bin",
        "-c",
        "boot.cat",
        "-no-emul-boot",
        "-boot-load-size",
        "4",
    ]);
    run(make.arg("-boot-info-table").arg("-o").arg(&iso).arg(&cd));
    let digest = done(world, &["volume", "add", iso.to_str().unwrap()]);
    format!(
        "name = \"{name}\"\nvcpus = 1\nmemory = \"256M\"\nallow_tcg = true\n\
         [[volume]]\nname = \"cd\"\nformat = \"iso\"\ndigest = \"{}\"\n",
        digest.trim()
    )
}

/// Orders a machine that boots the CD.
pub fn create(world: &World, name: &str) {
    let file = world.path(&format!("{name}.toml"));
    fs::write(&file, self::file(world, name)).unwrap();
    done(world, &["vm", "create", "--start", "-f", file.to_str().unwrap()]);
}
