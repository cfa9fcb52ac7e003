//! A BMC that speaks Redfish: `sushy-emulator`, with a certificate and a login, behind a proxy that
//! lies.

use super::python_tools;
use meshd_lab::Namespace;
use std::{
    fs,
    path::Path,
    process::{Child, Command, Stdio},
};

/// Forwards requests to the emulator, and lies as the lines of the file `lie` say:
///
/// - `404 N`: the first N requests.
/// - `ignore`, `ignore N`: all changes, or N, are accepted and not forwarded.
/// - `slow SECONDS`: each answer.
/// - `refuse TYPE`: resets of this type, with status 400.
/// - `forget`: the boot device.
/// - `lock`: after three refused logins, every login is refused.
///
/// It counts refused logins, and shows the certificate that is in the folder. The file `wanted` has
/// the last reset that it forwarded: what the machine does next. The file `fake` has properties by
/// path; a POST to a path puts its value into the file.
const PROXY: &str = r#"
import http.client, http.server, json, os, socket, ssl, sys, threading, time
folder, address = sys.argv[1:]
lock = threading.Lock()
def read(name):
    try:
        return open(os.path.join(folder, name)).read()
    except FileNotFoundError:
        return ''
def note(name, line):
    with open(os.path.join(folder, name), 'a') as file:
        file.write(line + '\n')
def replace(name, text):
    path = os.path.join(folder, name)
    with open(path + '.new', 'w') as file:
        file.write(text)
    os.rename(path + '.new', path)
def lies():
    return {words[0]: words[1:] for words in map(str.split, read('lie').splitlines()) if words}
def one_of(lie):
    # Takes one of the N times of a lie; without N, it has no end.
    with lock:
        known = lies()
        if lie not in known:
            return False
        if not known[lie]:
            return True
        left = int(known[lie][0])
        known[lie][0] = str(max(left - 1, 0))
        replace('lie', ''.join(' '.join([name, *words]) + '\n' for name, words in known.items()))
        return left > 0
class Proxy(http.server.BaseHTTPRequestHandler):
    def log_message(self, *words):
        pass
    def answer(self, status, body=b''):
        self.send_response(status)
        self.send_header('content-type', 'application/json')
        self.send_header('content-length', str(len(body)))
        self.end_headers()
        self.wfile.write(body)
    def forward(self):
        length = int(self.headers.get('content-length', 0))
        body = self.rfile.read(length)
        is_change = self.command != 'GET'
        if is_change:
            note('requests', self.command + ' ' + body.decode())
        known = lies()
        if one_of('404'):
            return self.answer(404)
        if 'lock' in known and read('refusals').count('\n') >= 3:
            note('refusals', self.path)
            return self.answer(401)
        if is_change and one_of('ignore'):
            return self.answer(200, b'{}')
        if is_change and 'refuse' in known and known['refuse'][0] in body.decode():
            return self.answer(400, b'{"error": {"message": "not now"}}')
        if 'forget' in known and self.command == 'PATCH':
            return self.answer(200, b'{}')
        if 'slow' in known:
            time.sleep(float(known['slow'][0]))
        context = ssl._create_unverified_context()
        inner = http.client.HTTPSConnection('127.0.0.1', 8001, context=context)
        names = ('authorization', 'content-type', 'accept')
        headers = {name: self.headers[name] for name in names if self.headers.get(name)}
        inner.request(self.command, self.path, body, headers)
        response = inner.getresponse()
        data, status = response.read(), response.status
        if status == 401:
            note('refusals', self.path)
        if is_change and status < 300 and self.path.endswith('ComputerSystem.Reset'):
            replace('wanted', json.loads(body)['ResetType'])
        fake = json.loads(read('fake') or '{}')
        if self.path in fake and status != 401:
            if is_change:
                replace('fake', json.dumps({**fake, **fake[self.path]}))
                return self.answer(200, b'{}')
            known = json.loads(data) if status == 200 else {}
            data, status = json.dumps({**known, **fake[self.path]}).encode(), 200
        self.answer(status, data)
    do_GET = do_POST = do_PATCH = forward
class Server(http.server.ThreadingHTTPServer):
    address_family = socket.AF_INET6 if ':' in address else socket.AF_INET
    def get_request(self):
        plain, client = super().get_request()
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(os.path.join(folder, 'cert.pem'), os.path.join(folder, 'key.pem'))
        return context.wrap_socket(plain, server_side=True), client
Server((address, 443), Proxy).serve_forever()
"#;

/// The emulator and the proxy; ended when it is dropped.
pub struct Emulator(Vec<Child>);

impl Emulator {
    /// Starts a BMC with this address inside of a namespace. The folder has its certificate.
    pub fn start(inside: &Namespace, folder: &Path, address: &str, password: &str) -> Self {
        let mut emulator = emulator(folder, password);
        fs::write(folder.join("proxy.py"), PROXY).unwrap();
        let mut proxy = Command::new(python_tools().join("bin/python"));
        proxy.arg(folder.join("proxy.py")).arg(folder).arg(address);
        let start = |command: &mut Command| {
            let log = fs::File::options().create(true).append(true).open(folder.join("log"));
            command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log.unwrap());
            inside.spawn(command).unwrap()
        };
        Emulator(vec![start(&mut emulator), start(&mut proxy)])
    }
}

impl Drop for Emulator {
    fn drop(&mut self) {
        for child in &mut self.0 {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

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

/// Returns a line of a password file, with bcrypt.
pub fn htpasswd(user: &str, password: &str) -> String {
    let python = python_tools().join("bin/python");
    let hash = "import bcrypt, sys; \
                print(bcrypt.hashpw(sys.argv[1].encode(), bcrypt.gensalt(4)).decode(), end='')";
    let hash = Command::new(python).args(["-c", hash, password]).output().unwrap();
    format!("{user}:{}\n", output_of(hash))
}

/// Returns the command of an emulator at port 8001 of 127.0.0.1, with the certificate in this
/// folder and the user `meshd`.
fn emulator(folder: &Path, password: &str) -> Command {
    fs::write(folder.join("htpasswd"), htpasswd("meshd", password)).unwrap();
    fs::create_dir_all(folder.join("state")).unwrap();
    let at = folder.display();
    let config = format!(
        "SUSHY_EMULATOR_FAKE_DRIVER = True\nSUSHY_EMULATOR_LISTEN_IP = '127.0.0.1'\nSUSHY_EMULATOR_LISTEN_PORT = 8001\n\
         SUSHY_EMULATOR_SSL_CERT = '{at}/cert.pem'\nSUSHY_EMULATOR_SSL_KEY = '{at}/key.pem'\n\
         SUSHY_EMULATOR_AUTH_FILE = '{at}/htpasswd'\nSUSHY_EMULATOR_STATE_DIR = '{at}/state'\n"
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
