//! LTSP 23.02 of Debian 12 as its manual describes it: `ltsp image` makes a squashfs of a root,
//! `ltsp initrd` and `ltsp kernel` the files of the loader; nodes mount the squashfs by NFS.

use crate::caller::{Caller, MEMORY, SERVER};
use anyhow::Context as _;
use meshd_lab::Rack;
use std::{
    fs,
    os::unix::fs::{PermissionsExt as _, symlink},
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

/// Added to the packages of our image.
const PACKAGES: [&str; 5] = ["busybox-static", "curl", "initramfs-tools", "ltsp", "squashfs-tools"];
/// Name of the image.
const IMAGE: &str = "x86_64";
/// Runs LTSP in the root, which has its server's folders, too. The root is a mount, as `ltsp image`
/// expects of the system that it makes an image of.
const MAKE: &str = r#"
mount --bind "$1" "$1"
mount -t proc proc "$1/proc"
mount -t sysfs sysfs "$1/sys"
mount --rbind /dev "$1/dev"
mkdir -p "$1/srv/tftp" "$1/srv/ltsp"
chroot "$1" ltsp image --backup 0 /
chroot "$1" ltsp initrd
"#;
/// NFS by NFS-Ganesha, with a port mapper, in namespaces of mounts and processes of their own.
const NFS: &str = r#"
mount -t tmpfs none /run
mkdir -p /run/rpcbind /run/ganesha
rpcbind
exec ganesha.nfsd -F -L "$1/ganesha.log" -f "$1/ganesha.conf" -p /run/ganesha.pid
"#;
const GANESHA: &str = "NFS_CORE_PARAM { mount_path_pseudo = true; Enable_NLM = false; Enable_RQUOTA = false; }\n\
    NFSv4 { RecoveryBackend = fs_ng; Grace_Period = 5; }\n";

/// What LTSP made.
pub struct Files {
    /// The folder that nodes mount.
    export: PathBuf,
    www: PathBuf,
}

impl Files {
    /// Installs the root and makes its image, once.
    pub fn prepare(repository: &Path, dir: &Path) -> anyhow::Result<Self> {
        let root = dir.join("root");
        let files = Files { export: root.join("srv/ltsp"), www: dir.join("www") };
        if files.www.is_dir() {
            return Ok(files);
        }
        eprintln!("LTSP: its root and image are built, some minutes");
        fs::create_dir_all(dir)?;
        run(Command::new("rm").args(["-rf", "--one-file-system"]).arg(&root))?;
        let packages = packages(repository)?.join(",");
        run(Command::new("mmdebstrap")
            .args(["--quiet", "--variant=minbase", "--include", &packages, "bookworm"])
            .arg(&root))?;
        add_call(&root)?;
        let made = ["--mount", "--fork", "--kill-child", "--pid", "sh", "-eu", "-c", MAKE, "sh"];
        run(Command::new("unshare").args(made).arg(&root))?;
        let incomplete = dir.join("www.new");
        fs::create_dir_all(&incomplete)?;
        let tftp = root.join("srv/tftp/ltsp");
        fs::copy(tftp.join("ltsp.img"), incomplete.join("ltsp.img"))?;
        for file in ["vmlinuz", "initrd.img"] {
            fs::copy(tftp.join(IMAGE).join(file), incomplete.join(file))?;
        }
        fs::write(incomplete.join("boot.ipxe"), script())?;
        fs::write(incomplete.join("online"), "ok\n")?;
        fs::rename(&incomplete, &files.www)?;
        Ok(files)
    }

    /// Starts dnsmasq, nginx and an NFS server on a machine of the rack's network.
    pub fn serve(&self, rack: &Rack) -> anyhow::Result<Caller> {
        let mut caller = Caller::start(rack, &self.www)?;
        let text = format!(
            "{GANESHA}EXPORT {{ Export_Id = 1; Path = {}; Pseudo = /srv/ltsp; Access_Type = RO; \
             Squash = No_Root_Squash; SecType = sys; FSAL {{ Name = VFS; }} }}\n",
            self.export.display()
        );
        fs::write(caller.folder.join("ganesha.conf"), text)?;
        let mut nfs = Command::new("unshare");
        nfs.args(["--mount", "--pid", "--fork", "--kill-child", "sh", "-eu", "-c", NFS, "sh"]);
        nfs.arg(&caller.folder);
        caller.machine.start(&mut nfs, &caller.folder.join("nfs.log"))?;
        Ok(caller)
    }
}

/// The packages of our Debian image, and those of LTSP.
fn packages(repository: &Path) -> anyhow::Result<Vec<String>> {
    let recipe = fs::read_to_string(repository.join("images/debian-12/image.toml"))?;
    let list = recipe.split_once("packages = [").and_then(|(_, rest)| rest.split_once(']'));
    let (list, _) = list.context("the recipe of debian-12 has no list of packages")?;
    let names = list.split(',').map(|name| name.trim().trim_matches('"')).chain(PACKAGES);
    Ok(names.filter(|name| !name.is_empty()).map(str::to_owned).collect())
}

/// A service of the root that calls when the node is online.
fn add_call(root: &Path) -> anyhow::Result<()> {
    let program = root.join("usr/local/sbin/online");
    fs::write(&program, format!("#!/bin/sh\nexec curl -sS \"http://{SERVER}/online?{MEMORY}\"\n"))?;
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755))?;
    // Its network is that of the initramfs.
    let unit = "[Unit]\nAfter=ltsp.service systemd-logind.service\n\
        [Service]\nType=oneshot\nExecStart=/usr/local/sbin/online\n";
    let units = root.join("etc/systemd/system");
    fs::write(units.join("online.service"), unit)?;
    let wants = units.join("multi-user.target.wants");
    fs::create_dir_all(&wants)?;
    Ok(symlink("../online.service", wants.join("online.service"))?)
}

/// What LTSP's own script for iPXE boots, by HTTP in place of TFTP.
fn script() -> String {
    format!(
        "#!ipxe\n\
         kernel http://{SERVER}/vmlinuz initrd=ltsp.img initrd=initrd.img root=/dev/nfs \
         nfsroot={SERVER}:/srv/ltsp ltsp.image=images/{IMAGE}.img loop.max_part=9 \
         BOOTIF=01-${{mac:hexhyp}} console=ttyS0,115200\n\
         initrd http://{SERVER}/ltsp.img\ninitrd http://{SERVER}/initrd.img\nboot\n"
    )
}

fn run(command: &mut Command) -> anyhow::Result<()> {
    let output = command.stdin(Stdio::null()).output()?;
    anyhow::ensure!(
        output.status.success(),
        "{command:?}: {}",
        String::from_utf8_lossy(&output.stderr)
    );
    Ok(())
}
