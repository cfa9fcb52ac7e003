//! A container image of a registry that wants TLS and a login: the registry of Debian.

use crate::{
    kit::{
        redfish::{htpasswd, make_certificate},
        web_image::write_layout,
    },
    world::{World, program::Program, stderr},
};
use std::{
    fs,
    path::PathBuf,
    process::{Command, Output},
};

const REGISTRY: &str = "127.0.0.1:5000";
const PASSWORD: &str = "correct horse";

/// A registry in the network of the central node, with one image.
struct Registry<'w> {
    world: &'w World,
    folder: PathBuf,
    /// Digest of the manifest.
    digest: String,
    _server: Program,
}

impl<'w> Registry<'w> {
    fn start(world: &'w World) -> Self {
        let folder = world.path("registry");
        fs::create_dir_all(folder.join("data")).unwrap();
        make_certificate(&folder);
        fs::write(folder.join("htpasswd"), htpasswd("meshd", PASSWORD)).unwrap();
        let at = folder.display();
        let config = format!(
            "version: 0.1\nstorage: {{filesystem: {{rootdirectory: {at}/data}}}}\n\
             http: {{addr: {REGISTRY}, tls: {{certificate: {at}/cert.pem, key: {at}/key.pem}}}}\n\
             auth: {{htpasswd: {{realm: test, path: {at}/htpasswd}}}}\n"
        );
        fs::write(folder.join("config.yml"), config).unwrap();
        let config = folder.join("config.yml").display().to_string();
        let server = Program::start(world, &world.central, "docker-registry", &["serve", &config]);
        server.says("listening on", 1);
        let mut registry =
            Registry { world, folder: folder.clone(), digest: String::new(), _server: server };
        let login = ["login", "--username", "meshd", "--password", PASSWORD, REGISTRY];
        registry.skopeo(&login);
        let layout = format!("oci:{}:latest", write_layout(&folder));
        let digest = folder.join("digest").display().to_string();
        let image = format!("docker://{REGISTRY}/site/web:latest");
        registry.skopeo(&["copy", "--insecure-policy", "--digestfile", &digest, &layout, &image]);
        registry.digest = fs::read_to_string(digest).unwrap();
        registry
    }

    /// Runs a program in the network of the registry, with its certificate and the login if it
    /// `is_trusted`.
    fn run(&self, command: &mut Command, is_trusted: bool) -> Output {
        let login = if is_trusted { "login.json" } else { "none.json" };
        command.env("REGISTRY_AUTH_FILE", self.folder.join(login));
        if is_trusted {
            command.env("SSL_CERT_FILE", self.folder.join("ca.pem"));
        }
        self.world.central.inside(|| command.output()).unwrap().unwrap()
    }

    fn skopeo(&self, args: &[&str]) {
        let output = self.run(Command::new("skopeo").args(args), true);
        assert!(output.status.success(), "{args:?}: {}", stderr(&output));
    }

    fn import(&self, digest: &str, is_trusted: bool) -> Output {
        let source = format!("docker://{REGISTRY}/site/web@{digest}");
        let import = ["image", "import", "web", "--container", &source, "--arch", "x86_64"];
        self.run(&mut self.world.cli(&import), is_trusted)
    }
}

#[test]
fn container_image_of_a_registry_is_imported_by_digest_over_verified_tls() {
    let world = World::new("auto");
    let registry = Registry::start(&world);
    let refused = |digest: &str, is_trusted, why: &str| {
        let refused = registry.import(digest, is_trusted);
        let text = stderr(&refused);
        assert!(!refused.status.success() && text.contains(why), "{text}");
        assert!(text.contains("skopeo inspect") && !text.contains(PASSWORD), "{text}");
    };
    refused(&registry.digest, false, "certificate signed by unknown authority");
    refused(&format!("sha256:{}", "0".repeat(64)), true, "manifest unknown");
    assert_eq!(world.json(&["volume", "list", "-o", "json"]).as_array().unwrap().len(), 0);

    let imported = registry.import(&registry.digest, true);
    assert!(imported.status.success(), "{}", stderr(&imported));
    let volumes = world.json(&["volume", "list", "-o", "json"]);
    assert_eq!((&volumes[0]["name"], &volumes[0]["kind"]), (&"web".into(), &"squashfs".into()));
    let file = format!("state/blobs/volumes/{}.json", volumes[0]["digest"].as_str().unwrap());
    let info = fs::read_to_string(world.path(&file)).unwrap();
    let manifest = registry.digest.trim_start_matches("sha256:");
    assert!(info.contains(manifest) && info.contains("/bin/httpd"), "{info}");
}
