//! What an author of overlays does, with the real `meshd`: the commands of docs/overlays.md as they
//! stand there, and the promise that the same input gives the same bytes wherever it is rendered.

use crate::world::{copy_program, stderr};
use meshd_image::catalog::{
    agent::sample_agent,
    image::{AlpineParts, Blob, Contents, FORMAT, ImageKind, ImageManifest, manifest_path},
};
use meshd_types::{Architecture, Digest, ImageName, Timestamp};
use std::{
    fs,
    os::unix::{fs::PermissionsExt as _, process::CommandExt as _},
    path::{Path, PathBuf},
    process::{Command, Output},
};

/// A folder with a copy of the sample site, its overlays and recipes, and `meshd` on the path.
struct Desk {
    dir: tempfile::TempDir,
}

impl Desk {
    fn new() -> Self {
        let desk = Desk { dir: tempfile::tempdir().unwrap() };
        let repository = Path::new(env!("CARGO_MANIFEST_DIR"));
        for folder in ["overlays", "images"] {
            copy(&repository.join(folder), &desk.path(folder));
        }
        // The bytes of programs go into an archive; nothing of this machine may.
        for program in ["mesh-agent", "stage1"] {
            fs::write(desk.path(program), sample_agent(Architecture::X86_64, b"")).unwrap();
        }
        let site = fs::read_to_string(repository.join("site.toml")).unwrap();
        let site = site
            .replace("#binary = \"target/agent/x86_64/mesh-agent\"", "binary = \"mesh-agent\"")
            .replace("\"/var/lib/meshd\"", "\"state\"");
        fs::write(desk.path("site.toml"), site).unwrap();
        fs::create_dir(desk.path("bin")).unwrap();
        copy_program(env!("CARGO_BIN_EXE_meshd"), &desk.path("bin/meshd"));
        fs::set_permissions(desk.dir.path(), fs::Permissions::from_mode(0o755)).unwrap();
        desk
    }

    fn path(&self, path: &str) -> PathBuf {
        self.dir.path().join(path)
    }

    fn command(&self, program: &str) -> Command {
        let mut command = Command::new(program);
        let path = std::env::var("PATH").unwrap_or_default();
        command
            .current_dir(self.dir.path())
            .env("PATH", format!("{}:{path}", self.path("bin").display()));
        command
    }

    /// Runs `meshd` with these words.
    fn meshd(&self, words: &str) -> Output {
        self.command("meshd").args(words.split(' ')).output().unwrap()
    }

    /// The same, and what it printed.
    fn printed(&self, words: &str) -> String {
        let output = self.meshd(words);
        assert!(
            output.status.success(),
            "meshd {words}: {}",
            String::from_utf8_lossy(&output.stderr)
        );
        String::from_utf8(output.stdout).unwrap()
    }

    /// The same, and what it complained of.
    fn refused(&self, words: &str) -> String {
        let output = self.meshd(words);
        assert_eq!(
            output.status.code(),
            Some(1),
            "meshd {words}: {}",
            String::from_utf8_lossy(&output.stdout)
        );
        String::from_utf8(output.stderr).unwrap()
    }

    fn write(&self, path: &str, text: &str) {
        let path = self.path(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    fn append(&self, path: &str, text: &str) {
        let before = fs::read_to_string(self.path(path)).unwrap();
        self.write(path, &(before + text));
    }
}

fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let target = to.join(entry.file_name());
        if entry.file_type().unwrap().is_dir() {
            copy(&entry.path(), &target);
        } else {
            fs::copy(entry.path(), target).unwrap();
        }
    }
}

/// The commands of the tutorial, each with what the document says that it prints.
fn tutorial() -> Vec<(String, Option<String>)> {
    let text =
        fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/overlays.md")).unwrap();
    let mut steps: Vec<(String, Option<String>)> = Vec::new();
    let mut blocks = text.split("```");
    blocks.next();
    while let (Some(block), Some(_between)) = (blocks.next(), blocks.next()) {
        match block.split_once('\n') {
            Some(("sh", commands)) => steps.push((commands.to_owned(), None)),
            Some(("text", printed)) => {
                steps.last_mut().expect("after its command").1 = Some(printed.to_owned())
            }
            other => panic!("a block that is neither: {other:?}"),
        }
    }
    steps
}

#[test]
fn tutorial_commands_produce_a_working_overlay() {
    let desk = Desk::new();
    let steps = tutorial();
    assert!(steps.len() >= 7, "{steps:?}");
    assert!(steps.iter().any(|(_, printed)| printed.is_some()), "{steps:?}");
    for (commands, printed) in steps {
        let output = desk.command("sh").args(["-e", "-c", &commands]).output().unwrap();
        let message = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{commands}\n{message}");
        if let Some(printed) = printed {
            assert_eq!(String::from_utf8_lossy(&output.stdout), printed, "{commands}");
        }
    }
    let shown = desk.printed("overlay show hello");
    assert!(
        shown.contains("/etc/init.d/hello") && shown.contains("0755") && shown.contains("greeting"),
        "{shown}"
    );
    let list = desk.printed("overlay list -o json");
    assert!(list.contains("\"hello\""), "{list}");
}

#[test]
fn overlay_render_is_reproducible_in_any_environment() {
    let render = |desk: &Desk, change: &dyn Fn(&mut Command)| {
        let out = desk.path("out/x.tar.gz");
        fs::create_dir_all(desk.path("out")).unwrap();
        fs::set_permissions(desk.path("out"), fs::Permissions::from_mode(0o777)).unwrap();
        let mut command = desk.command("meshd");
        command.args(["overlay", "render", "--profile", "compute", "--out"]).arg(&out);
        change(&mut command);
        let output = command.output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        fs::read(out).unwrap()
    };
    let one = Desk::new();
    let other = Desk::new();
    let first = render(&one, &|_| {});
    let elsewhere = render(&other, &|command| {
        command
            .env("TZ", "Pacific/Chatham")
            .env("LC_ALL", "tr_TR.UTF-8")
            .env("LANG", "tr_TR.UTF-8");
    });
    assert!(first == elsewhere, "another folder, time zone and language");
    // Copied by somebody whose files nobody else may read, in another order and at another time.
    let umask = "umask 077; cp -r overlays moved; rm -r overlays; mv moved overlays; meshd overlay render --profile compute --out out/x.tar.gz";
    let output = other.command("sh").args(["-e", "-c", umask]).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert!(first == fs::read(other.path("out/x.tar.gz")).unwrap(), "another umask");
    if rustix::process::geteuid().is_root() {
        let nobody = render(&one, &|command| {
            command.uid(65_534).gid(65_534);
        });
        assert!(first == nobody, "another user");
    }
}

#[test]
fn shipped_overlay_renders_to_its_golden_files() {
    let desk = Desk::new();
    let shipped = fs::read_dir(desk.path("overlays")).unwrap().map(|entry| entry.unwrap().path());
    for overlay in shipped.filter(|path| path.is_dir()) {
        let has_golden = ["golden", "golden.systemd"]
            .iter()
            .any(|folder| overlay.join(folder).join("FILES").is_file());
        assert!(has_golden, "{}: meshd overlay golden --update", overlay.display());
    }
    desk.printed("overlay golden");
    desk.append("overlays/motd/rootfs/etc/motd.j2", "one line more\n");
    let output = desk.meshd("overlay golden motd");
    let differs = String::from_utf8(output.stdout).unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(differs.contains("+one line more"), "{differs}");
    desk.printed("overlay golden motd --update");
    desk.printed("overlay golden");
}

#[test]
fn overlay_diff_compares_profiles_and_checkouts_file_by_file() {
    let desk = Desk::new();
    let diff = desk.printed("overlay diff --profile discovery --profile compute");
    assert!(
        diff.contains("added /etc/motd: file 0644 0:0\n--- /dev/null\n+++ /etc/motd"),
        "{diff}"
    );
    copy(&desk.path("overlays"), &desk.path("before"));
    desk.write("overlays/motd/rootfs/etc/motd.j2", "short\n");
    desk.append("overlays/motd/overlay.toml", "[files.\"/etc/motd\"]\nmode = \"0600\"\n");
    let diff = desk.printed("overlay diff --profile compute --against before");
    assert!(diff.contains("changed /etc/motd: file 0644 0:0 -> file 0600 0:0"), "{diff}");
    assert!(diff.contains("-This node has no disk.") && diff.contains("+short"), "{diff}");
    assert_eq!(desk.printed("overlay diff --profile compute --profile compute"), "");
    let json = desk.printed("overlay diff --profile compute --against before -o json");
    assert!(
        json.contains("\"path\": \"/etc/motd\"") && json.contains("\"change\": \"changed\""),
        "{json}"
    );
    let unpacked = "mkdir tree; meshd overlay render --profile compute --out x.tar.gz; tar -xzf x.tar.gz -C tree --no-same-owner";
    assert!(desk.command("sh").args(["-e", "-c", unpacked]).output().unwrap().status.success());
    assert_eq!(desk.printed("overlay diff --profile compute --against tree"), "");
    fs::write(desk.path("tree/etc/motd"), "edited by hand\n").unwrap();
    let diff = desk.printed("overlay diff --profile compute --against tree");
    assert!(diff.contains("-edited by hand") && diff.contains("+short"), "{diff}");
    assert!(desk.refused("overlay diff --profile compute").contains("cannot compare"));
}

#[test]
fn overlay_faults_are_all_reported_by_both_checks() {
    let desk = Desk::new();
    desk.write("overlays/motd/overlay.toml", "description = \"x\"\npackage = [\"htop\"]\n");
    desk.write("overlays/unused/overlay.toml", "description = \"x\"\n");
    desk.write("overlays/unused/rootfs/etc/x.j2", "\n{{ vars.nowhere }}\n");
    desk.write(
        "overlays/nodes/0123abcd/overlay.toml",
        "description = \"x\"\nremove = [\"/etc/absent\"]\n",
    );
    desk.append(
        "site.toml",
        "\n[profiles.other]\nextends = \"discovery\"\noverlays = [\"modt\"]\n",
    );
    for verb in ["check", "overlay check"] {
        let message = desk.refused(verb);
        for wanted in [
            "overlays/motd/overlay.toml:2: package: unknown key\n  hint: did you mean `packages`?",
            "overlays/unused/rootfs/etc/x.j2:2: `vars.nowhere` is not declared",
            "overlays/nodes/0123abcd/overlay.toml:2: removes /etc/absent, which no overlay before nodes/0123abcd brings",
            "profile other: there is no overlay `modt`",
        ] {
            assert!(message.contains(wanted), "{verb}: {wanted}\nnot in\n{message}");
        }
    }
}

#[test]
fn unused_profile_variable_is_a_warning_with_its_line() {
    let desk = Desk::new();
    let lines = fs::read_to_string(desk.path("site.toml")).unwrap().lines().count();
    // `nowhere` is a typing mistake, tuning_hugepages is heard by a profile that extends this one,
    // kvm_ksm lacks its overlay.
    desk.append(
        "site.toml",
        "[profiles.host]\nextends = \"discovery\"\n[profiles.host.vars]\nkvm_ksm = true\ntuning_hugepages = 4\n\
         [profiles.host.vfio]\ndevices = [\"class:0300\"]\n\
         [profiles.tuned]\nextends = \"host\"\noverlays = [\"tuning\", \"vfio\"]\nvars = { tuning_memlok = \"unlimited\" }\n\
         [groups.pair]\nnodes = [\"0123abcd\"]\nvars = { nowhere = 1 }\n",
    );
    let output = desk.meshd("check");
    let message = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.success(), "warnings are no faults: {message}");
    let declared = "no overlay of the profile declares this variable\n  hint: ";
    for wanted in [
        format!(
            "site.toml:{}: profiles.host.vars.kvm_ksm: {declared}overlay kvm-host declares it",
            lines + 4
        ),
        format!(
            "site.toml:{}: profiles.tuned.vars.tuning_memlok: {declared}did you mean `tuning_memlock`?",
            lines + 11
        ),
        format!(
            "site.toml:{}: profiles.host.vfio.devices: no overlay of profile host gives these",
            lines + 7
        ),
        "site.toml: groups.pair.vars.nowhere: no overlay declares this variable".to_owned(),
    ] {
        assert!(message.contains(&wanted), "{wanted}\nnot in\n{message}");
    }
    assert!(
        !message.contains("tuning_hugepages:") && !message.contains("profile tuned gives"),
        "{message}"
    );
    assert_eq!(
        message.matches("warning: ").count(),
        4 + message.matches("is not built").count(),
        "{message}"
    );
}

#[test]
fn taken_reserved_or_unknown_overlay_name_is_refused() {
    let desk = Desk::new();
    assert!(desk.refused("overlay new motd").contains("cannot make overlays/motd: File exists"));
    assert!(desk.refused("overlay new nodes").contains("holds the overlays of single nodes"));
    assert_eq!(desk.meshd("overlay new a/b").status.code(), Some(2));
    assert!(desk.refused("overlay show mtod").contains("did you mean `motd`?"));
    assert!(
        desk.refused("overlay cat --profile compute /etc/mtod")
            .contains("did you mean `/etc/motd`?")
    );
    assert_eq!(
        desk.meshd("overlay cat /etc/motd").status.code(),
        Some(2),
        "of which node or profile?"
    );
}

#[test]
fn overlay_check_names_what_an_image_lacks() {
    let desk = Desk::new();
    let blobs = desk.path("state/blobs");
    let name: ImageName = "alpine-lab".parse().unwrap();
    let blob = Blob { digest: Digest::of(b""), size: 0 };
    let manifest = ImageManifest {
        format: FORMAT,
        name: name.clone(),
        arch: Architecture::X86_64,
        recipe: Digest::of(b"recipe"),
        kernel_release: "6.1.0".to_owned(),
        kernel_package: "linux=6.1".to_owned(),
        os_release: "3.23".to_owned(),
        parts: ImageKind::Alpine(AlpineParts {
            kernel: blob,
            initramfs: blob,
            modloop: blob,
            packages: blob,
        }),
        packages: [("alpine-base".to_owned(), "1-r0".to_owned())].into(),
        built_at: Timestamp::from_millis(0),
        contents: Contents {
            services: [
                "devfs",
                "hostname",
                "killprocs",
                "modules",
                "mount-ro",
                "networking",
                "osclock",
                "sysctl",
                "syslog",
            ]
            .map(str::to_owned)
            .into(),
            modules: ["af_packet", "ipv6", "tun", "vhost_net"].map(str::to_owned).into(),
        },
    };
    let path = manifest_path(&blobs, &name);
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, serde_json::to_vec(&manifest).unwrap()).unwrap();

    let table = desk.printed("overlay check");
    let line =
        |overlay: &str| table.lines().find(|line| line.starts_with(overlay)).unwrap().to_owned();
    assert!(line("base").ends_with("alpine-lab"), "{table}");
    assert!(line("kvm-host").ends_with("alpine-lab"), "its own service is there: {table}");
    let lacks = "alpine-lab (lacks openssh-server service sshd)";
    assert!(line("ssh").ends_with(lacks), "{table}");
    assert!(desk.printed("overlay show ssh").contains(lacks));

    desk.append(
        "site.toml",
        "\n[profiles.host]\nextends = \"discovery\"\noverlays = [\"vfio\", \"ssh\"]\npackages = [\"htop\"]\n",
    );
    let message = desk.refused("overlay check");
    for wanted in [
        "overlays/ssh/overlay.toml: image alpine-lab of profile host has no package openssh-server",
        "overlays/vfio/overlay.toml: image alpine-lab of profile host has no module vfio_pci",
        "overlays/ssh/overlay.toml: image alpine-lab of profile host has no service sshd",
        "profile host: image alpine-lab has no package htop",
    ] {
        assert!(message.contains(wanted), "{wanted}\nnot in\n{message}");
    }
}

#[test]
fn group_overlay_is_checked_with_group_members_and_variables() {
    let desk = Desk::new();
    let group = "\n[groups.cfd]\nnodes = [\"0123abcd\", \"1123abcd\"]\noverlays = [\"mpi\"]\n";
    let vars = "vars = { mpi_group = \"cfd\", mpi_public_key = \"ssh-ed25519 AAAA mpi\" }\n";
    desk.append("site.toml", &format!("{group}{vars}[secrets]\nmpi_key = {{ file = \"key\" }}\n"));
    desk.write("key", "a private key\n");
    fs::set_permissions(desk.path("key"), fs::Permissions::from_mode(0o600)).unwrap();
    desk.printed("check");
    desk.printed("overlay check");
    let site = fs::read_to_string(desk.path("site.toml")).unwrap();
    desk.write(
        "site.toml",
        &site.replace("mpi_group = \"cfd\"", "mpi_group = \"cdf\", mpi_slots = \"many\""),
    );
    let message = desk.refused("check");
    assert!(message.contains("variable `mpi_slots` is of type text, not integer"), "{message}");
    assert!(
        message.contains("overlays/mpi/rootfs/etc/mpi/hostfile.j2:1: `groups[vars.mpi_group]"),
        "{message}"
    );
}

#[test]
fn unusable_agent_fails_check_and_lab_up() {
    let desk = Desk::new();
    let site = fs::read_to_string(desk.path("site.toml")).unwrap();
    let sample = sample_agent(Architecture::X86_64, b"");
    fs::write(desk.path("headless"), &sample[..64]).unwrap();
    fs::write(desk.path("unknown"), [&sample[..18], &[8], &sample[19..]].concat()).unwrap();
    let ran = |args: &[&str], binary: &str| {
        fs::write(desk.path("site.toml"), site.replace("\"mesh-agent\"", &format!("{binary:?}")))
            .unwrap();
        let output = desk.command("meshd").args(args).output().unwrap();
        (output.status.success(), stderr(&output))
    };
    let unusable = [
        ("/bin/ls", "dynamically linked"),
        ("headless", "another program than mesh-agent"),
        ("unknown", "another processor"),
        ("site.toml", "no 64-bit ELF program"),
        ("nothing", "No such file"),
    ];
    for (binary, cause) in unusable {
        for args in [["check"].as_slice(), &["lab", "up", "--nodes", "1", "--dir", "lab"]] {
            let (succeeded, message) = ran(args, binary);
            assert!(
                !succeeded && message.contains("cannot use the agent"),
                "{args:?} {binary}: {message}"
            );
            assert!(
                message.contains(cause) && message.contains("make build"),
                "{args:?} {binary}: {message}"
            );
        }
    }
    assert!(!ran(&["check"], "mesh-agent").1.contains("cannot use"));
    fs::remove_file(desk.path("stage1")).unwrap();
    let (succeeded, message) = ran(&["check"], "mesh-agent");
    assert!(!succeeded && message.contains("cannot use stage 1: No such file"), "{message}");
}
