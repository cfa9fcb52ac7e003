//! Overlays of the tests' own, beside copies of the real ones.

use std::{
    fs,
    path::{Path, PathBuf},
};

/// Begins what the overlay `peek` writes to the serial port, and ends it.
pub const PEEK_BEGIN: &str = "PEEK-BEGIN";
pub const PEEK_END: &str = "PEEK-END";

/// Looks at the node from inside: waits until the agent has used its token, then searches for what
/// is left of it. The token stays in a variable of the shell (`echo` is built in), so it is in no
/// command line and no environment.
pub const LOOK: &str = r#"
read_token() {
	token=$(sed -n 's/.*"token": *"\([^"]*\)".*/\1/p' /etc/meshd/boot.json)
}

peek() {
	tries=0
	while grep -q '"token"' /etc/meshd/boot.json && [ "$tries" -lt 120 ]; do
		sleep 1
		tries=$((tries + 1))
	done
	echo "PEEK-BEGIN"
	echo "PEEK-MODE $(stat -c %a /etc/meshd/boot.json)"
	echo "PEEK-CMDLINE $(cat /proc/cmdline)"
	echo "PEEK-MOTD $(head -n 1 /etc/motd)"
	if [ -n "$token" ]; then
		echo "PEEK-TOKEN seen"
		# Plain files only: a pipe in /run would be read for ever.
		places="$(find /etc /root /run /tmp /var -type f) $(echo /proc/[0-9]*/cmdline /proc/[0-9]*/environ)"
		echo "PEEK-LEFT $(echo "$token" | grep -lF -f - $places 2>/dev/null | tr '\n' ' ')"
	else
		echo "PEEK-TOKEN none"
	fi
	echo "PEEK-END"
}
"#;
const OPENRC_HEAD: &str = "#!/sbin/openrc-run
description=\"tells the serial port what a user of this node could see\"

depend() {
	before mesh-agent
}
";
const OPENRC_START: &str = "
start() {
	read_token
	peek >/dev/ttyS0 2>&1 &
}
";

/// A folder with the real overlays and `peek`.
pub fn with_peek(dir: &Path) -> PathBuf {
    with_service(dir, "peek", &format!("{OPENRC_HEAD}{LOOK}{OPENRC_START}"))
}

/// A folder with the real overlays and one of this name that starts one service.
pub fn with_service(dir: &Path, name: &str, script: &str) -> PathBuf {
    let overlays = dir.join("overlays");
    copy(&Path::new(env!("CARGO_MANIFEST_DIR")).join("overlays"), &overlays);
    let own = overlays.join(name);
    let manifest = format!(
        "description = \"looks at the node from inside\"\n\n[services]\ndefault = [\"{name}\"]\n\n[files.\"/etc/init.d/{name}\"]\nmode = \"0755\"\n"
    );
    fs::create_dir_all(own.join("rootfs/etc/init.d")).expect("made");
    fs::write(own.join("overlay.toml"), manifest).expect("written");
    fs::write(own.join("rootfs/etc/init.d").join(name), script).expect("written");
    overlays
}

/// Why mesh-init does not start a node with an overlay of [`add_refused`].
pub const REFUSAL: &str = "make /.modloop.img: File exists (os error 17)";

/// Adds an overlay with a file where mesh-init stores the modloop.
pub fn add_refused(overlays: &Path, name: &str) {
    let rootfs = overlays.join(name).join("rootfs");
    fs::create_dir_all(&rootfs).expect("made");
    fs::write(rootfs.join(".modloop.img"), "x").expect("written");
    let manifest = overlays.join(name).join("overlay.toml");
    fs::write(manifest, "description = \"stops the boot\"\n").expect("written");
}

/// The lines of the newest whole look, by their first word.
pub fn peeked(serial: &str, word: &str) -> String {
    let look = serial.rsplit_once(PEEK_BEGIN).map(|(_, look)| look).unwrap_or_default();
    let line =
        look.lines().find_map(|line| line.split_once(&format!("{word} ")).map(|(_, rest)| rest));
    line.unwrap_or_else(|| panic!("the node wrote no {word}")).trim().to_owned()
}

pub fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).expect("made");
    for entry in fs::read_dir(from).expect("readable") {
        let entry = entry.expect("readable");
        let target = to.join(entry.file_name());
        if entry.file_type().expect("known").is_dir() {
            copy(&entry.path(), &target);
        } else {
            fs::copy(entry.path(), target).expect("copied");
        }
    }
}
