//! A registry of OCI images: Debian's docker-registry, on a free port of loopback, without TLS.

use std::{
    fs,
    io::{BufRead as _, BufReader},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    thread,
};

/// Beginning of the address in the registry's log.
const LISTENS: &str = "listening on ";

/// A registry that runs until it is dropped.
pub struct Registry {
    folder: PathBuf,
    process: Child,
    /// Address and port.
    pub address: String,
}

impl Registry {
    /// Starts a registry with its files in this folder.
    pub fn start(folder: &Path) -> Self {
        fs::create_dir_all(folder).unwrap();
        let settings = format!(
            "version: 0.1\nstorage: {{filesystem: {{rootdirectory: {}/data}}}}\n\
             http: {{addr: \"127.0.0.1:0\"}}\n",
            folder.display()
        );
        fs::write(folder.join("config.yml"), settings).unwrap();
        let mut process = Command::new("docker-registry")
            .arg("serve")
            .arg(folder.join("config.yml"))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .expect("docker-registry, from `.ci/setup test`");
        let mut log = BufReader::new(process.stderr.take().unwrap()).lines().map_while(Result::ok);
        let address = log.find_map(|line| {
            let address = line.split_once(LISTENS)?.1.split_once('"')?.0;
            Some(address.to_owned())
        });
        let address = address.expect("the registry listens");
        thread::spawn(move || log.for_each(drop));
        // Programs that use the registry without TLS run with this folder as HOME.
        let settings = folder.join(".config/containers");
        fs::create_dir_all(&settings).unwrap();
        let insecure = format!("[[registry]]\nlocation = \"{address}\"\ninsecure = true\n");
        fs::write(settings.join("registries.conf"), insecure).unwrap();
        Registry { folder: folder.to_owned(), process, address }
    }

    /// Returns the home folder whose settings permit this registry without TLS.
    pub fn home(&self) -> &Path {
        &self.folder
    }

    /// Copies an image of skopeo's transports to the registry. Returns the digest of its manifest.
    pub fn push(&self, from: &str, name: &str) -> String {
        let file = self.folder.join("digest");
        let copied = Command::new("skopeo")
            .args(["copy", "--quiet", "--all", "--insecure-policy", "--dest-tls-verify=false"])
            .arg("--digestfile")
            .arg(&file)
            .args([from, &format!("docker://{}/{name}", self.address)])
            .output()
            .unwrap();
        assert!(copied.status.success(), "{}", String::from_utf8_lossy(&copied.stderr));
        fs::read_to_string(file).unwrap().trim().to_owned()
    }

    /// Returns the file of a blob or manifest with this digest.
    pub fn blob(&self, digest: &str) -> PathBuf {
        let hex = digest.strip_prefix("sha256:").expect("a digest");
        let blobs = self.folder.join("data/docker/registry/v2/blobs/sha256");
        blobs.join(&hex[..2]).join(hex).join("data")
    }
}

impl Drop for Registry {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
