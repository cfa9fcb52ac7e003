//! A container image with a web server. umoci writes it: an OCI writer that is not ours.

use std::{fs, os::unix::fs::symlink, path::Path, process::Command};

/// Writes an OCI layout with busybox as a web server. Returns its path; its tag is `latest`.
pub fn write_layout(folder: &Path) -> String {
    let tree = folder.join("tree");
    for name in ["bin", "etc", "srv", "tmp"] {
        fs::create_dir_all(tree.join(name)).unwrap();
    }
    fs::copy("/bin/busybox", tree.join("bin/busybox")).unwrap();
    for name in ["sh", "httpd"] {
        symlink("busybox", tree.join("bin").join(name)).unwrap();
    }
    fs::write(tree.join("srv/hello"), "hello from a container\n").unwrap();
    let layout = folder.join("layout").display().to_string();
    let image = format!("{layout}:latest");
    let umoci = |args: &[&str]| {
        let output =
            Command::new("umoci").args(args).output().expect("umoci, from `.ci/setup test`");
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{args:?}: {errors}");
    };
    umoci(&["init", "--layout", &layout]);
    umoci(&["new", "--image", &image]);
    umoci(&["insert", "--image", &image, tree.to_str().unwrap(), "/"]);
    let config = [
        ["--config.entrypoint", "/bin/httpd"],
        ["--config.cmd", "-f"],
        ["--config.cmd", "-p"],
        ["--config.cmd", "80"],
        ["--config.cmd", "-h"],
        ["--config.cmd", "/srv"],
        ["--config.env", "PATH=/bin"],
        ["--config.user", "1000:1000"],
    ];
    let config: Vec<&str> = config.iter().flatten().copied().collect();
    umoci(&[&["config", "--image", &image], config.as_slice()].concat());
    layout
}
