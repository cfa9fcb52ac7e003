//! Images of kind `root`: built from each source with the real programs, and read with others than
//! meshd. No machine boots here; `tests/debian` has that.
//!
//! | module | what it holds |
//! | --- | --- |
//! | `bounds` | sources that expand too far are refused |
//! | `debian` | mirror, keys and newer packages of Debian sources |
//! | `layers` | images of OCI registries, layers and architectures |
//! | `same_bytes` | equal sources give equal bytes, for each user, at each time |
//! | `sources` | each source gives the same root, with all metadata, and its modules |
//! | `tree` | a system that no machine could run |

mod bounds;
mod debian;
mod layers;
mod same_bytes;
mod sources;
mod tree;

use crate::world::stderr;
use meshd_image::catalog::image::{ImageKind, RootParts, blob_path, load_manifest};
use meshd_types::Digest;
use std::{
    fs,
    os::unix::fs::symlink,
    path::{Path, PathBuf},
    process::{Command, Output},
};
use tempfile::TempDir;

/// Prints every path of a folder outside of `boot` with its metadata, attributes and content. Of a
/// squashfs, getfattr says that files without attributes do not support them.
const LISTING: &str = r#"
cd "$1"
find . -mindepth 1 -path './boot/*' -prune -o -type p -o \
    \( -type d -printf '%P %y %m %U %G %T@\0' -o -printf '%P %y %m %U %G %T@ %n %s %l\0' \) |
    LC_ALL=C sort -z
find . -path './boot/*' -prune -o -print0 | LC_ALL=C sort -z |
    { xargs -0 getfattr --no-dereference --dump --match='^(user|security)\.' --encoding=hex 2>/dev/null || :; }
find . -path './boot/*' -prune -o -type f -print0 | LC_ALL=C sort -z | xargs -0 sha256sum
"#;

/// Runs a program that succeeds, and returns what it prints.
fn run(command: &mut Command) -> String {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    assert!(output.status.success(), "{command:?}: {}", stderr(&output));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// Lists a system by the programs of [`LISTING`].
fn listing(system: &Path) -> String {
    run(Command::new("sh").args(["-ec", LISTING, "sh"]).arg(system))
}

/// Runs a script in a folder where Linux has mounted a squashfs.
fn in_mounted(squashfs: &Path, script: &str) -> String {
    let dir = tempfile::tempdir().unwrap();
    let mount = format!("mount -t squashfs -o loop,ro \"$0\" \"$1\"\n{script}");
    run(Command::new("unshare")
        .args(["--mount", "sh", "-ec", &mount])
        .arg(squashfs)
        .arg(dir.path()))
}

/// A site with recipes of kind `root`.
struct RootSite(TempDir);

impl RootSite {
    fn new() -> Self {
        let site = RootSite(tempfile::tempdir().unwrap());
        fs::create_dir_all(site.path("images")).unwrap();
        let overlays = Path::new(env!("CARGO_MANIFEST_DIR")).join("overlays");
        symlink(overlays, site.path("overlays")).unwrap();
        let text = format!(
            "[site]\nname = \"roots\"\nstate_dir = {:?}\nblobs_dir = {:?}\n\
             [net]\ninterface = \"lo\"\naddress = \"127.0.0.1\"\n[dhcp]\nmode = \"off\"\n\
             [defaults]\nprofile = \"plain\"\n[profiles.plain]\nimage = \"root\"\n",
            site.path("state"),
            site.path("blobs")
        );
        fs::write(site.path("site.toml"), text).unwrap();
        site
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// Writes the recipe of an image with this source.
    fn recipe(&self, image: &str, source: &str) {
        let folder = self.path("images").join(image);
        fs::create_dir_all(&folder).unwrap();
        let text = format!(
            "kind = \"root\"\narch = \"x86_64\"\ndescription = \"for tests\"\n\
             [source]\n{source}\n[modules]\nkeep = [\"drivers/net\"]\n"
        );
        fs::write(folder.join("image.toml"), text).unwrap();
    }

    fn meshd(&self, args: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_meshd"));
        command.arg("--site").arg(self.path("site.toml")).args(args);
        command
    }

    /// Returns the command that builds an image.
    fn command(&self, image: &str) -> Command {
        self.meshd(&["image", "build", image])
    }

    /// Builds an image.
    fn build(&self, image: &str) -> RootParts {
        run(&mut self.command(image));
        self.parts(image)
    }

    /// Returns the parts of the current version of an image.
    fn parts(&self, image: &str) -> RootParts {
        let manifest = load_manifest(&self.path("blobs"), &image.parse().unwrap()).unwrap();
        match manifest.parts {
            ImageKind::Root(parts) => parts,
            ImageKind::Alpine(_) => panic!("{image} is of kind root"),
        }
    }

    /// Writes a recipe, and returns the error of its build. The build leaves no files.
    fn refusal(&self, source: &str) -> String {
        self.recipe("refused", source);
        self.refused(&mut self.command("refused"))
    }

    fn refused(&self, command: &mut Command) -> String {
        let output: Output = command.output().unwrap();
        let text = stderr(&output);
        assert_eq!(output.status.code(), Some(1), "{text}");
        let work = fs::read_dir(self.path("blobs/work")).into_iter().flatten();
        let left = work.map(|entry| entry.unwrap().path()).find(|path| path.is_dir());
        assert_eq!(left, None, "{text}");
        text
    }

    fn blob(&self, digest: &Digest) -> PathBuf {
        blob_path(&self.path("blobs"), digest)
    }
}
