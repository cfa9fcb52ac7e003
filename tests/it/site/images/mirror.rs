//! An Alpine mirror on loopback, laid out as the real ones are: releases, repositories, signed
//! indexes, packages of apk v2.

use flate2::{Compression, write::GzEncoder};
use sha1::Digest as _;
use std::{
    fs,
    io::{BufRead as _, BufReader, Write as _},
    net::{SocketAddr, TcpListener, TcpStream},
    path::{Path, PathBuf},
    process::Command,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread::JoinHandle,
};

/// Name of the key that signs the indexes.
pub const KEY: &str = "alpine-test@mirror-1.rsa.pub";
/// The release that the mirror has.
pub const VERSION: &str = "3.23.0";
/// What its kernel says.
pub const RELEASE: &str = "6.18.1-0-lts";

/// A package as a test describes it.
#[derive(Clone, Default)]
pub struct Package {
    pub name: &'static str,
    pub version: &'static str,
    /// Lines such as `D:musl`, after those that every record has.
    pub lines: Vec<&'static str>,
    pub files: Vec<(&'static str, &'static str)>,
}

pub fn package(name: &'static str, version: &'static str, lines: &[&'static str]) -> Package {
    Package { name, version, lines: lines.into(), files: vec![("usr/share/doc", name)] }
}

/// A mirror that runs until it is dropped.
pub struct Mirror {
    pub dir: tempfile::TempDir,
    pub url: String,
    _server: FileServer,
}

/// An HTTP server of the files in a folder, on a free port of loopback, until it is dropped.
pub struct FileServer {
    pub address: SocketAddr,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl FileServer {
    pub fn start(root: PathBuf) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let stop = Arc::new(AtomicBool::new(false));
        let ended = stop.clone();
        let thread = std::thread::spawn(move || serve(&listener, &root, &ended));
        FileServer { address, stop, thread: Some(thread) }
    }
}

impl Drop for FileServer {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::SeqCst);
        let _ = TcpStream::connect(self.address);
        self.thread.take().into_iter().for_each(|thread| drop(thread.join()));
    }
}

impl Mirror {
    /// One whose kernel and modules are of these releases, with these packages in `main` and
    /// `community`.
    pub fn new(kernel: &str, modules: &str, main: &[Package], community: &[Package]) -> Self {
        let dir = tempfile::tempdir().unwrap();
        run(Command::new("openssl")
            .args(["genpkey", "-quiet", "-algorithm", "RSA", "-out"])
            .arg(dir.path().join("key")));
        run(Command::new("openssl")
            .args(["pkey", "-pubout", "-in"])
            .arg(dir.path().join("key"))
            .arg("-out")
            .arg(dir.path().join(KEY)));
        release(dir.path(), kernel, modules);
        repository(dir.path(), "main", main);
        repository(dir.path(), "community", community);
        let server = FileServer::start(dir.path().join("www"));
        let url = format!("http://{}/alpine", server.address);
        Mirror { dir, url, _server: server }
    }

    pub fn file(&self, path: &str) -> PathBuf {
        self.dir.path().join("www/alpine/v3.23").join(path)
    }

    pub fn bundle(&self) -> PathBuf {
        self.file(&format!("releases/x86_64/alpine-netboot-{VERSION}-x86_64.tar.gz"))
    }

    pub fn key(&self) -> PathBuf {
        self.dir.path().join(KEY)
    }

    /// Writes the repository anew, as after a sync.
    pub fn sync(&self, repository_name: &str, packages: &[Package]) {
        fs::remove_dir_all(self.file(repository_name)).unwrap();
        repository(self.dir.path(), repository_name, packages);
    }

    /// Puts a link in the place of a netboot file, or of their folder, with the digest of the
    /// bundle.
    pub fn publish_link(&self, name: &str, target: &Path) {
        let link = self.dir.path().join(name);
        let _ = fs::remove_file(&link).or_else(|_| fs::remove_dir_all(&link));
        std::os::unix::fs::symlink(target, &link).unwrap();
        pack(self.dir.path());
    }

    /// Writes kernel and modules anew, with their digest.
    pub fn publish(&self, kernel: &str, modules: &str) {
        release(self.dir.path(), kernel, modules);
    }
}

fn run(command: &mut Command) {
    let output = command.output().unwrap();
    assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
}

fn serve(listener: &TcpListener, root: &Path, stop: &AtomicBool) {
    std::thread::scope(|scope| {
        for stream in listener.incoming() {
            if stop.load(Ordering::SeqCst) {
                return;
            }
            let stream = stream.unwrap();
            scope.spawn(move || answer(&stream, root));
        }
    });
}

fn answer(mut stream: &TcpStream, root: &Path) {
    let mut lines = BufReader::new(stream).lines();
    let Some(Ok(first)) = lines.next() else { return };
    // The rest of the head, so that closing is no reset.
    lines.map_while(Result::ok).take_while(|line| !line.is_empty()).for_each(drop);
    let path = first.split(' ').nth(1).unwrap_or("/").trim_start_matches('/').to_owned();
    assert!(!path.contains(".."), "{path}");
    let (status, body) = match fs::read(root.join(&path)) {
        Ok(body) => ("200 OK", body),
        Err(_) => ("404 Not Found", b"no".to_vec()),
    };
    // A digest has no stated size: it ends with the connection.
    let length = if path.ends_with(".sha512") {
        String::new()
    } else {
        format!("Content-Length: {}\r\n", body.len())
    };
    let head = format!("HTTP/1.1 {status}\r\n{length}Connection: close\r\n\r\n");
    let _ = stream.write_all(head.as_bytes()).and_then(|()| stream.write_all(&body));
}

/// The head of a bzImage.
pub fn kernel(release: &str) -> Vec<u8> {
    let mut bytes = vec![0; 2048];
    bytes[0x1f1] = 1;
    bytes[0x1f4..0x1f8].copy_from_slice(&64u32.to_le_bytes());
    bytes[0x202..0x206].copy_from_slice(b"HdrS");
    bytes[0x20e..0x210].copy_from_slice(&0x200u16.to_le_bytes());
    bytes[0x400..0x400 + release.len()].copy_from_slice(release.as_bytes());
    bytes
}

/// Alpine's three netboot files in a folder.
pub fn netboot(folder: &Path, kernel_release: &str, modules_release: &str) {
    let modules = folder.join("tree/modules").join(modules_release);
    fs::create_dir_all(&modules).unwrap();
    fs::write(modules.join("modules.dep"), "").unwrap();
    fs::write(folder.join("vmlinuz-lts"), kernel(kernel_release)).unwrap();
    fs::write(folder.join("initramfs-lts"), gzip(b"070701")).unwrap();
    let squash = ["-noappend", "-no-progress", "-quiet", "-mkfs-time", "0", "-all-time", "0"];
    run(Command::new("mksquashfs")
        .arg(folder.join("tree"))
        .arg(folder.join("modloop-lts"))
        .args(squash));
    fs::remove_dir_all(folder.join("tree")).unwrap();
}

/// Packs `boot` as the netboot bundle, with its digest.
fn pack(dir: &Path) {
    let out = dir.join("www/alpine/v3.23/releases/x86_64");
    let bundle = out.join(format!("alpine-netboot-{VERSION}-x86_64.tar.gz"));
    run(Command::new("tar").arg("-C").arg(dir).arg("-czf").arg(&bundle).arg("boot"));
    let hex = hex(&sha2::Sha512::digest(fs::read(&bundle).unwrap()));
    let name = bundle.file_name().unwrap().to_string_lossy().into_owned();
    fs::write(out.join(format!("{name}.sha512")), format!("{hex}  {name}\n")).unwrap();
}

fn release(dir: &Path, kernel_release: &str, modules_release: &str) {
    let boot = dir.join("boot");
    let out = dir.join("www/alpine/v3.23/releases/x86_64");
    for folder in [&boot, &out] {
        let _ = fs::remove_dir_all(folder);
        fs::create_dir_all(folder).unwrap();
    }
    netboot(&boot, kernel_release, modules_release);
    pack(dir);
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

/// A tar archive, with or without its end, as a gzip member.
fn member(files: &[(String, Vec<u8>)], ends: bool) -> Vec<u8> {
    let mut builder = tar::Builder::new(Vec::new());
    for (name, bytes) in files {
        let mut header = tar::Header::new_ustar();
        header.set_mode(0o644);
        header.set_size(bytes.len() as u64);
        builder.append_data(&mut header, name, &bytes[..]).unwrap();
    }
    let mut tar = builder.into_inner().unwrap();
    tar.truncate(tar.len() - if ends { 0 } else { 1024 });
    gzip(&tar)
}

/// A package as abuild makes it, and its record: signature, control and data members.
fn build(package: &Package) -> (Vec<u8>, String) {
    let Package { name, version, lines, files } = package;
    let data: Vec<_> =
        files.iter().map(|(path, text)| ((*path).to_owned(), text.as_bytes().to_vec())).collect();
    let data = member(&data, true);
    let info = format!(
        "pkgname = {name}\npkgver = {version}\narch = x86_64\ndatahash = {}\n",
        hex(&sha2::Sha256::digest(&data))
    );
    let control = member(&[(".PKGINFO".to_owned(), info.into_bytes())], false);
    let signature = member(&[(format!(".SIGN.RSA.{KEY}"), b"not looked at".to_vec())], false);
    let bytes = [&signature[..], &control, &data].concat();
    let sum = base64(&sha1::Sha1::digest(&control));
    let more: String = lines.iter().map(|line| format!("{line}\n")).collect();
    let record = format!(
        "C:Q1{sum}\nP:{name}\nV:{version}\nA:x86_64\nS:{}\nI:1\nT:for tests\nt:1700000000\n{more}\n",
        bytes.len()
    );
    (bytes, record)
}

fn base64(bytes: &[u8]) -> String {
    const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut out = String::new();
    for chunk in bytes.chunks(3) {
        let bits = (0..3)
            .fold(0u32, |bits, at| bits << 8 | u32::from(chunk.get(at).copied().unwrap_or(0)));
        for at in 0..4 {
            let digit = ALPHABET[(bits >> (18 - 6 * at) & 63) as usize];
            out.push(if at <= chunk.len() { char::from(digit) } else { '=' });
        }
    }
    out
}

fn repository(dir: &Path, name: &str, packages: &[Package]) {
    let out = dir.join("www/alpine/v3.23").join(name).join("x86_64");
    fs::create_dir_all(&out).unwrap();
    let mut index = String::new();
    for package in packages {
        let (bytes, record) = build(package);
        fs::write(out.join(format!("{}-{}.apk", package.name, package.version)), bytes).unwrap();
        index += &record;
    }
    let body = member(
        &[
            ("DESCRIPTION".to_owned(), b"v3.23".to_vec()),
            ("APKINDEX".to_owned(), index.into_bytes()),
        ],
        true,
    );
    let signed = dir.join("signed");
    let signature = dir.join("signature");
    fs::write(&signed, &body).unwrap();
    // SHA-1, as Alpine's own builders still sign.
    run(Command::new("openssl")
        .args(["dgst", "-sha1", "-sign"])
        .arg(dir.join("key"))
        .arg("-out")
        .arg(&signature)
        .arg(&signed));
    let head = member(&[(format!(".SIGN.RSA.{KEY}"), fs::read(&signature).unwrap())], false);
    fs::write(out.join("APKINDEX.tar.gz"), [head, body].concat()).unwrap();
}
