//! Equal sources give equal bytes: at another time, with another time zone and umask, and built by
//! another user.

use super::{RootSite, run, sources::write_sources};
use meshd_image::catalog::image::RootParts;
use std::{fs, path::Path, process::Command};

/// A user of every Debian system, without subordinate users.
const USER: &str = "nobody";

/// Returns the command as that user, to whom these numbers are subordinate. The files that say so
/// are seen in a mount namespace only.
fn as_user(site: &RootSite, command: &Command, subordinate: &str) -> Command {
    let file = site.path("subordinate");
    fs::write(&file, subordinate).unwrap();
    run(Command::new("chown").args(["-R", USER]).arg(site.path("")));
    let script = "for list in subuid subgid; do mount --bind \"$0\" /etc/$list; done
                  exec setpriv --reuid=nobody --regid=nogroup --clear-groups -- \"$@\"";
    let mut user = Command::new("unshare");
    user.args(["--mount", "sh", "-ec", script]).arg(file);
    user.arg(command.get_program()).args(command.get_args());
    user
}

fn assert_same(one: &RootParts, other: &RootParts) {
    assert_eq!(one.kernel, other.kernel);
    assert_eq!(one.modules, other.modules);
    assert_eq!((one.root, &one.verity), (other.root, &other.verity));
    assert_eq!(one.nic_drivers, other.nic_drivers);
}

fn recipe(site: &RootSite, tar: &Path) {
    site.recipe("root", &format!("tar = {tar:?}"));
}

#[test]
fn build_at_another_time_with_another_umask_gives_the_same_bytes() {
    let (one, other) = (RootSite::new(), RootSite::new());
    let (_, tar) = write_sources(&one);
    for site in [&one, &other] {
        recipe(site, &tar);
    }
    let first = one.build("root");
    let build = other.command("root");
    // The clock of the second build is a year ahead.
    let mut shell = Command::new("sh");
    shell.args(["-ec", "umask 077; exec faketime -f '+1y' \"$@\"", "sh"]);
    shell.arg(build.get_program()).args(build.get_args()).env("TZ", "Pacific/Auckland");
    run(shell.env("NO_FAKE_STAT", "1"));
    assert_same(&first, &other.parts("root"));
}

#[test]
fn user_with_subordinate_users_builds_the_same_bytes_as_root() {
    let (one, other) = (RootSite::new(), RootSite::new());
    let (_, tar) = write_sources(&one);
    recipe(&one, &tar);
    let as_root = one.build("root");
    let copy = other.path("root.tar");
    fs::copy(&tar, &copy).unwrap();
    recipe(&other, &copy);
    run(&mut as_user(&other, &other.command("root"), "nobody:200000:65536\n"));
    assert_same(&as_root, &other.parts("root"));
    let left = fs::read_dir(other.path("blobs/work")).unwrap().count();
    assert_eq!(left, 1, "the lock");
}

#[test]
fn user_without_subordinate_users_or_with_a_folder_of_root_is_refused() {
    let site = RootSite::new();
    let (folder, tar) = write_sources(&site);
    recipe(&site, &tar);
    let refused = site.refused(&mut as_user(&site, &site.command("root"), ""));
    assert!(refused.contains("needs subordinate users"), "{refused}");
    assert!(refused.contains("/etc/subuid"), "{refused}");
    site.recipe("root", &format!("dir = {folder:?}"));
    let mut build = as_user(&site, &site.command("root"), "nobody:200000:65536\n");
    run(Command::new("chown").arg("0:0").arg(&folder));
    let refused = site.refused(&mut build);
    assert!(refused.contains("belongs to user 0, not to the user who builds"), "{refused}");
    // A number beyond those that are subordinate cannot be set.
    run(Command::new("chown").arg(USER).arg(&folder));
    recipe(&site, &tar);
    let refused = site.refused(&mut as_user(&site, &site.command("root"), "nobody:200000:1000\n"));
    assert!(refused.contains("cannot make the tree of the root"), "{refused}");
    assert!(refused.contains("60000"), "{refused}");
}
