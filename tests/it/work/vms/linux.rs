//! A Linux guest: the kernel of the lab's image, Debian's static busybox, and a shell on the serial
//! port, on a CD that isolinux boots.

use super::central::done;
use crate::world::World;
use meshd_image::catalog::image::{blob_path, load_manifest};
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

/// The kernel of the lab's image, which `meshd lab image` builds.
fn kernel() -> PathBuf {
    let repository = Path::new(env!("CARGO_MANIFEST_DIR"));
    let blobs =
        env::var_os("MESHD_E2E_BLOBS").map_or_else(|| repository.join(".lab/blobs"), PathBuf::from);
    let manifest = load_manifest(&blobs, &"alpine-lab".parse().unwrap());
    let manifest = manifest
        .unwrap_or_else(|error| panic!("{error}; build the image: target/debug/meshd lab image"));
    blob_path(&blobs, &manifest.parts.part("kernel").unwrap().digest)
}

fn initramfs(dir: &Path) {
    let root = dir.join("root");
    for folder in ["bin", "dev"] {
        fs::create_dir_all(root.join(folder)).unwrap();
    }
    fs::copy("/bin/busybox", root.join("bin/busybox")).unwrap();
    fs::write(root.join("init"), INIT).unwrap();
    fs::set_permissions(root.join("init"), fs::Permissions::from_mode(0o755)).unwrap();
    let archive = "cd \"$1\" && find . | cpio --quiet -o -H newc >\"$2\"";
    run(Command::new("sh").args(["-c", archive, "sh"]).arg(&root).arg(dir.join("cd/initrd")));
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
