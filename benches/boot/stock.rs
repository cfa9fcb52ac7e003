//! Stock Alpine netboot as its wiki describes it: dnsmasq answers firmware, nginx has kernel,
//! initramfs, modloop, packages and apkovl.

use crate::caller::{Caller, MEMORY, SERVER};
use anyhow::Context as _;
use meshd_builder::{BuildRequest, Quiet, build};
use meshd_image::catalog::image::{ImageKind, blob_path, load_image};
use meshd_lab::Rack;
use std::{
    fs::{self, File},
    os::unix::fs::{PermissionsExt as _, symlink},
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

/// The initramfs as Alpine's release builder makes it for its netboot bundle, in place of the
/// recipe's own section.
const INITRAMFS: &str = r#"[initramfs]
features = ["base", "network", "dhcp", "squashfs", "virtio", "nvme", "https"]
modules = []
files = []
compression = "gzip"
level = 9

"#;
/// What Alpine's init enables on a netbooted machine, and the network, by runlevel.
const SERVICES: [(&str, &[&str]); 4] = [
    ("sysinit", &["devfs", "dmesg", "mdev", "hwdrivers", "modloop"]),
    ("boot", &["modules", "sysctl", "hostname", "bootmisc", "syslog", "hwclock", "networking"]),
    ("default", &["firstboot", "online"]),
    ("shutdown", &["mount-ro", "killprocs", "savecache"]),
];

/// The folder that nginx serves.
pub struct Files {
    www: PathBuf,
}

impl Files {
    /// Builds the stock image and lays its parts out.
    pub fn prepare(repository: &Path, blobs: &Path, dir: &Path) -> anyhow::Result<Self> {
        let name = "alpine-stock".parse().expect("a plain name");
        let request = BuildRequest {
            recipe_dir: recipe(repository, dir)?,
            name,
            blobs_dir: blobs.to_owned(),
            keys_dir: dir.join("keys"),
            cache_dir: blobs.join("cache"),
            work_dir: blobs.join("work"),
            promote: true,
            refresh: false,
        };
        eprintln!("image alpine-stock: built, if it is not yet");
        let manifest = build(&request, &Quiet).context("build the stock image")?;
        load_image(blobs, &manifest.name)?;
        let www = dir.join("www");
        let _ = fs::remove_dir_all(&www);
        fs::create_dir_all(&www)?;
        let ImageKind::Alpine(parts) = &manifest.parts else {
            panic!("a stock Alpine boots the parts of an Alpine image")
        };
        for (part, blob) in
            [("vmlinuz", parts.kernel), ("initramfs", parts.initramfs), ("modloop", parts.modloop)]
        {
            fs::copy(blob_path(blobs, &blob.digest), www.join(part))?;
        }
        unpack(&blob_path(blobs, &parts.packages.digest), &www)?;
        apkovl(dir, &www.join("bench.apkovl.tar.gz"))?;
        fs::write(www.join("boot.ipxe"), script())?;
        fs::write(www.join("online"), "ok\n")?;
        Ok(Files { www })
    }

    /// Starts dnsmasq and nginx on a machine of the rack's network.
    pub fn serve(&self, rack: &Rack) -> anyhow::Result<Caller> {
        Caller::start(rack, &self.www)
    }
}

/// The lab image's recipe with Alpine's own initramfs: same kernel, modules and packages.
fn recipe(repository: &Path, dir: &Path) -> anyhow::Result<PathBuf> {
    let lab = repository.join("images/alpine-lab");
    let own = dir.join("images/alpine-stock");
    let _ = fs::remove_dir_all(&own);
    fs::create_dir_all(&own)?;
    run(Command::new("cp").arg("-a").arg(format!("{}/.", lab.display())).arg(&own))?;
    let text = fs::read_to_string(lab.join("image.toml"))?;
    let begin = text.find("[initramfs]").context("the lab's recipe has no [initramfs]")?;
    let end = text.find("[modloop]").context("the lab's recipe has no [modloop]")?;
    fs::write(own.join("image.toml"), [&text[..begin], INITRAMFS, &text[end..]].concat())?;
    Ok(own)
}

fn script() -> String {
    format!(
        "#!ipxe\n\
         kernel http://{SERVER}/vmlinuz initrd=initramfs modules=loop,squashfs console=ttyS0,115200 panic=10 ip=dhcp \
         alpine_repo=http://{SERVER}/packages modloop=http://{SERVER}/modloop \
         apkovl=http://{SERVER}/bench.apkovl.tar.gz\n\
         initrd --name initramfs http://{SERVER}/initramfs\nboot\n"
    )
}

/// The overlay that a stock node needs to have a network and to say that it is there.
fn apkovl(dir: &Path, out: &Path) -> anyhow::Result<()> {
    let root = dir.join("apkovl");
    let _ = fs::remove_dir_all(&root);
    let service = format!(
        "#!/sbin/openrc-run\ndepend() {{\n\tneed networking\n\tafter firstboot\n}}\nstart() {{\n\
         \tebegin \"Calling home\"\n\twget -q -O /dev/null \"http://{SERVER}/online?{MEMORY}\"\n\teend $?\n}}\n"
    );
    let files = [
        ("etc/apk/world", "alpine-base\nbusybox-mdev-openrc\n".to_owned()),
        ("etc/apk/repositories", format!("http://{SERVER}/packages\n")),
        ("etc/hostname", "stock\n".to_owned()),
        (
            "etc/network/interfaces",
            "auto lo\niface lo inet loopback\nauto eth0\niface eth0 inet dhcp\n".to_owned(),
        ),
        ("etc/init.d/online", service),
    ];
    for (path, text) in files {
        let path = root.join(path);
        fs::create_dir_all(path.parent().expect("a file lies in a folder"))?;
        fs::write(&path, text)?;
    }
    fs::set_permissions(root.join("etc/init.d/online"), fs::Permissions::from_mode(0o755))?;
    for (level, services) in SERVICES {
        let folder = root.join("etc/runlevels").join(level);
        fs::create_dir_all(&folder)?;
        for service in services {
            symlink(format!("/etc/init.d/{service}"), folder.join(service))?;
        }
    }
    run(Command::new("tar")
        .args(["--owner=0", "--group=0", "-czf"])
        .arg(out)
        .arg("-C")
        .arg(&root)
        .arg("etc"))
}

/// Takes the packages out of their initrd.
fn unpack(initrd: &Path, www: &Path) -> anyhow::Result<()> {
    let plain = www.join("packages.cpio");
    let gzip = Command::new("gzip")
        .arg("-dc")
        .stdin(File::open(initrd)?)
        .stdout(File::create(&plain)?)
        .status()?;
    anyhow::ensure!(gzip.success(), "gzip failed");
    let cpio = Command::new("cpio")
        .args(["-idm", "--quiet"])
        .current_dir(www)
        .stdin(File::open(&plain)?)
        .status()?;
    anyhow::ensure!(cpio.success(), "cpio failed");
    Ok(fs::remove_file(plain)?)
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
