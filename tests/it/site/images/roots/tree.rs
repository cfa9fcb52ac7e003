//! A small system that no machine could run: a kernel that says its release, modules that gcc
//! compiles and depmod lists, an init, and files of every kind that a root keeps.

use super::{super::mirror::kernel, run};
use rustix::fs::{CWD, XattrFlags, setxattr};
use std::{
    fs::{self, File, Permissions, hard_link},
    io::Write as _,
    os::unix::fs::{FileExt as _, PermissionsExt as _, chown, symlink},
    path::Path,
    process::{Command, Stdio},
};

/// What the kernel says.
pub(super) const RELEASE: &str = "6.1.0-mesh";
/// Time of all files, in seconds.
const TIME: &str = "@1700000000";
/// Size of the sparse file, and the distance of its bytes. A squashfs has blocks of 128 KiB.
pub(super) const SPARSE: (u64, u64) = (12 << 20, 384 << 10);

/// A module as a C program.
pub(super) struct Module {
    /// Path below `kernel/`.
    pub(super) path: &'static str,
    /// The function that it exports, and the one that it needs of another module.
    pub(super) exports: &'static str,
    pub(super) needs: &'static str,
    /// Records of modinfo.
    pub(super) info: &'static [&'static str],
}

/// A NIC with firmware whose driver needs a library, and a driver that no node needs.
const MODULES: [Module; 4] = [
    Module {
        path: "drivers/net/mesh_nic.ko",
        exports: "mesh_nic",
        needs: "mesh_bus",
        info: &[
            "alias=pci:v00001D0Fd0000EC20sv*sd*bc*sc*i*",
            "firmware=vendor/nic.bin",
            "firmware=vendor/packed.bin",
            "firmware=vendor/absent.bin",
            "firmware=../../../etc/shadow",
        ],
    },
    Module {
        path: "drivers/bus/mesh_bus.ko",
        exports: "mesh_bus",
        needs: "mesh_crc",
        info: &["firmware=vendor/bus.bin"],
    },
    Module { path: "lib/mesh_crc.ko", exports: "mesh_crc", needs: "", info: &[] },
    Module {
        path: "drivers/gpu/mesh_gpu.ko",
        exports: "mesh_gpu",
        needs: "mesh_crc",
        info: &["firmware=vendor/gpu.bin"],
    },
];

/// Writes the system into a folder. The user must be root.
pub(super) fn write(tree: &Path) {
    for folder in ["boot", "etc", "tmp", "usr/bin", "usr/sbin", "usr/share", "var/lib"] {
        fs::create_dir_all(tree.join(folder)).unwrap();
    }
    symlink("usr/lib", tree.join("lib")).unwrap();
    symlink("usr/sbin", tree.join("sbin")).unwrap();
    fs::write(tree.join(format!("boot/vmlinuz-{RELEASE}")), kernel(RELEASE)).unwrap();
    fs::write(tree.join("etc/os-release"), "PRETTY_NAME=\"Mesh Linux 1\"\n").unwrap();
    fs::write(tree.join("etc/shadow"), "root:secret:::::::\n").unwrap();
    fs::create_dir_all(tree.join("usr/lib/systemd")).unwrap();
    fs::copy("/bin/true", tree.join("usr/lib/systemd/systemd")).unwrap();
    symlink("../lib/systemd/systemd", tree.join("usr/sbin/init")).unwrap();
    add_modules(tree);
    add_metadata(tree);
    run(Command::new("find").arg(tree).args(["-exec", "touch", "-h", "-d", TIME, "{}", "+"]));
}

fn add_modules(tree: &Path) {
    let firmware = tree.join("usr/lib/firmware/vendor");
    fs::create_dir_all(&firmware).unwrap();
    for name in ["nic", "packed", "bus", "gpu"] {
        fs::write(firmware.join(name).with_extension("bin"), format!("firmware of {name}"))
            .unwrap();
    }
    run(Command::new("zstd").args(["-q", "--rm"]).arg(firmware.join("packed.bin")));
    let modules = tree.join("usr/lib/modules").join(RELEASE);
    for module in &MODULES {
        compile(module, &modules.join("kernel").join(module.path));
    }
    run(Command::new("xz").arg("--check=crc32").arg(modules.join("kernel/lib/mesh_crc.ko")));
    let builtin = ["net/packet/af_packet", "drivers/md/dm-verity", "drivers/block/loop"];
    let builtin = builtin.iter().chain(&["fs/overlayfs/overlay", "fs/squashfs/squashfs"]);
    let builtin: String = builtin.map(|path| format!("kernel/{path}.ko\n")).collect();
    fs::write(modules.join("modules.builtin"), builtin).unwrap();
    fs::write(modules.join("modules.order"), "").unwrap();
    fs::write(modules.join("modules.builtin.modinfo"), "").unwrap();
    run(Command::new("depmod").arg("-b").arg(tree).arg(RELEASE));
}

fn compile(module: &Module, to: &Path) {
    fs::create_dir_all(to.parent().unwrap()).unwrap();
    let records = [&["license=GPL"], module.info].concat().join("\\0");
    let (exports, needs) = (module.exports, module.needs);
    let called = if needs.is_empty() { "0".to_owned() } else { format!("{needs}()") };
    let declared = if needs.is_empty() { String::new() } else { format!("int {needs}(void);") };
    let source = format!(
        "{declared}\nint {exports}(void) {{ return {called}; }}\n\
         __attribute__((section(\"__ksymtab_strings\"), used)) static char e[] = \"{exports}\";\n\
         __attribute__((section(\".modinfo\"), used)) static char i[] = \"{records}\";\n"
    );
    let mut gcc = Command::new("gcc")
        .args(["-x", "c", "-c", "-o"])
        .arg(to)
        .arg("-")
        .stdin(Stdio::piped())
        .spawn()
        .unwrap();
    gcc.stdin.take().unwrap().write_all(source.as_bytes()).unwrap();
    assert!(gcc.wait().unwrap().success(), "{source}");
}

/// Adds files whose metadata a root keeps.
fn add_metadata(tree: &Path) {
    let program = |name: &str, mode: u32, group: u32| {
        let path = tree.join("usr/bin").join(name);
        fs::write(&path, name).unwrap();
        chown(&path, Some(0), Some(group)).unwrap();
        fs::set_permissions(&path, Permissions::from_mode(mode)).unwrap();
        path
    };
    program("su", 0o4755, 0);
    program("mail", 0o2755, 8);
    run(Command::new("setcap").arg("cap_net_raw+ep").arg(program("ping", 0o755, 0)));
    // The set of these capabilities is 0x0a, a newline.
    let capabilities = "cap_dac_override,cap_fowner+ep";
    run(Command::new("setcap").arg(capabilities).arg(program("copy", 0o755, 0)));
    let first = program("first", 0o750, 60_000);
    hard_link(&first, tree.join("usr/bin/second")).unwrap();
    hard_link(&first, tree.join("usr/share/third")).unwrap();
    fs::set_permissions(tree.join("tmp"), Permissions::from_mode(0o1777)).unwrap();
    chown(tree.join("var/lib"), Some(33), Some(34)).unwrap();
    let note = tree.join("etc/two\nlines");
    fs::write(&note, "its name and its attribute have two lines").unwrap();
    setxattr(&note, "user.note", b"first\nsecond\n", XattrFlags::empty()).unwrap();
    setxattr(tree.join("etc"), "user.folder", b"\x00\xff", XattrFlags::empty()).unwrap();
    let folder = tree.join("usr/share").join("n".repeat(120));
    fs::create_dir(&folder).unwrap();
    fs::write(folder.join("m".repeat(200)), "a long name").unwrap();
    symlink("t".repeat(300), folder.join("long")).unwrap();
    let (size, distance) = SPARSE;
    let sparse = File::create(tree.join("var/lib/sparse")).unwrap();
    sparse.set_len(size).unwrap();
    for number in 1..size / distance {
        sparse.write_all_at(format!("number {number}").as_bytes(), number * distance).unwrap();
    }
    File::create(tree.join("var/lib/hole")).unwrap().set_len(1 << 20).unwrap();
    let pipe = tree.join("var/lib/pipe");
    rustix::fs::mkfifoat(CWD, &pipe, rustix::fs::Mode::RUSR).unwrap();
}
