//! A BMC that speaks Redfish: `sushy-emulator`, with a certificate and a login.

use super::python_tools;
use std::{fs, path::Path, process::Command};

/// Makes an authority, `ca.pem`, and a certificate for 127.0.0.1, `cert.pem`. Returns the SHA-256 of
/// the certificate.
pub fn make_certificate(folder: &Path) -> String {
    let openssl = |words: &str| {
        let output = Command::new("openssl").args(words.split(' ')).current_dir(folder).output();
        output_of(output.unwrap())
    };
    let key = "-newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes";
    openssl(&format!("req -x509 {key} -days 30 -subj /CN=bmcs -keyout ca.key -out ca.pem"));
    openssl(&format!("req -new {key} -subj /CN=bmc -keyout key.pem -out request.pem"));
    fs::write(folder.join("extensions"), "subjectAltName=IP:127.0.0.1\n").unwrap();
    openssl(
        "x509 -req -in request.pem -CA ca.pem -CAkey ca.key -days 30 -extfile extensions -out cert.pem",
    );
    let text = openssl("x509 -in cert.pem -noout -fingerprint -sha256");
    text.trim().split('=').nth(1).unwrap().to_owned()
}

/// Returns the command of an emulator at port 8001 of 127.0.0.1, with the certificate in this
/// folder, the user `meshd`, and further lines of its configuration, which replace earlier ones.
pub fn emulator(folder: &Path, password: &str, more: &str) -> Command {
    let python = python_tools().join("bin/python");
    let hash = "import bcrypt, sys; print('meshd:' + bcrypt.hashpw(sys.argv[1].encode(), bcrypt.gensalt(4)).decode())";
    let hash = Command::new(python).args(["-c", hash, password]).output().unwrap();
    fs::write(folder.join("htpasswd"), output_of(hash)).unwrap();
    fs::create_dir_all(folder.join("state")).unwrap();
    let at = folder.display();
    let config = format!(
        "SUSHY_EMULATOR_FAKE_DRIVER = True\nSUSHY_EMULATOR_LISTEN_IP = '127.0.0.1'\nSUSHY_EMULATOR_LISTEN_PORT = 8001\n\
         SUSHY_EMULATOR_SSL_CERT = '{at}/cert.pem'\nSUSHY_EMULATOR_SSL_KEY = '{at}/key.pem'\n\
         SUSHY_EMULATOR_AUTH_FILE = '{at}/htpasswd'\nSUSHY_EMULATOR_STATE_DIR = '{at}/state'\n{more}"
    );
    fs::write(folder.join("sushy.conf"), config).unwrap();
    let mut emulator = Command::new(python_tools().join("bin/sushy-emulator"));
    emulator.arg("--config").arg(folder.join("sushy.conf"));
    emulator
}

fn output_of(output: std::process::Output) -> String {
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}
