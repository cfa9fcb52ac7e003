//! What the private network of a node's machines is tried with: a guest that has a network stack, a
//! server beyond the node, and a program that takes the masquerade rule away as somebody does who
//! clears all rules.

use meshd_types::Digest;
use std::{
    fs,
    io::{BufRead as _, BufReader, Write as _},
    net::{Ipv4Addr, SocketAddr, TcpListener},
    path::{Path, PathBuf},
    process::{Command, Stdio},
    sync::{Arc, Mutex},
    thread,
};

/// The guest's card, and the address that is reserved for it.
pub const MAC: &str = "52:54:00:6e:61:74";
pub const ADDRESS: &str = "172.30.0.9";
/// What the guest says when it was answered.
pub const ANSWERED: &str = "the guest was answered";

/// What was asked of the server: by whom, and what.
type Requests = Arc<Mutex<Vec<(Ipv4Addr, String)>>>;

/// Where the server listens, in a network of the rack's own. It stands on the CD, whose digest is
/// so the same in each run: the folder of volumes is shared with other tests, and one that failed
/// leaves it there.
const PORT: u16 = 9080;

/// A server of HTTP whose answer is a script that asks again, for ever. It lives until the test
/// ends.
pub struct Server {
    requests: Requests,
}

impl Server {
    /// Listens at this address of the network that the caller is in.
    pub fn start(address: Ipv4Addr) -> Self {
        let listener = TcpListener::bind((address, PORT)).expect("nobody else listens there");
        let requests = Requests::default();
        let sink = requests.clone();
        let again =
            format!("chain --autofree --replace http://{address}:{PORT}/again?ip=${{net0/ip}}");
        let script = format!("#!ipxe\necho {ANSWERED}\n:again\nsleep 2\n{again} || goto again\n");
        thread::spawn(move || {
            for stream in listener.incoming() {
                let Ok(mut stream) = stream else { return };
                let mut first = String::new();
                // Somebody who only knocks has nothing to say.
                if BufReader::new(&stream).read_line(&mut first).is_ok_and(|length| length > 0) {
                    let path = first.split(' ').nth(1).unwrap_or_default().to_owned();
                    if let Ok(SocketAddr::V4(who)) = stream.peer_addr() {
                        sink.lock().expect("whole").push((*who.ip(), path));
                    }
                    let length = script.len();
                    let head = format!(
                        "HTTP/1.1 200 OK\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n"
                    );
                    let _ = stream.write_all(format!("{head}{script}").as_bytes());
                }
            }
        });
        Server { requests }
    }

    pub fn requests(&self) -> Vec<(Ipv4Addr, String)> {
        self.requests.lock().expect("whole").clone()
    }
}

/// A CD that boots iPXE, which asks for an address and then the server. It is Debian's own with
/// another configuration of its loader.
pub fn cd(dir: &Path, server: Ipv4Addr) -> PathBuf {
    const SECTOR: usize = 2048;
    let mut iso = fs::read("/usr/lib/ipxe/ipxe.iso").expect("Debian's ipxe");
    let find = |iso: &[u8], text: &[u8]| {
        iso.windows(text.len()).position(|window| window == text).expect("it is there")
    };
    let place = find(&iso, b"# These default options");
    assert_eq!(place % SECTOR, 0, "a file begins with a sector");
    let url = format!("http://{server}:{PORT}/first?ip=${{net0/ip}}");
    let configuration =
        format!("DEFAULT x\nLABEL x\n KERNEL ipxe.krn\n APPEND dhcp && chain {url}\n");
    let mut sector = configuration.clone().into_bytes();
    sector.resize(SECTOR, 0);
    iso[place..place + SECTOR].copy_from_slice(&sector);
    // Its length stands in its directory record (ECMA-119 9.1), 23 bytes before its name, in both
    // byte orders.
    let length = u32::try_from(configuration.len()).expect("short");
    let record = find(&iso, b"ISOLINUX.CFG;1") - 23;
    iso[record..record + 4].copy_from_slice(&length.to_le_bytes());
    iso[record + 4..record + 8].copy_from_slice(&length.to_be_bytes());
    // Another Debian's is another volume, which has another name.
    let file = dir.join(format!("e2e-ipxe-{}.iso", Digest::of(&iso).short()));
    fs::write(&file, iso).expect("written");
    file
}

/// Deletes the table `meshd-nat` (linux/netfilter/nfnetlink.h): a batch's begin, NFT_MSG_DELTABLE,
/// its end. Gives the kernel's answer.
const FORGET: &str = r#"
#include <linux/netlink.h>
#include <string.h>
#include <sys/socket.h>

static const unsigned char orders[] =
	"\x14\0\0\0" "\x10\0" "\x01\0" "\0\0\0\0" "\0\0\0\0" "\0\0\0\x0a"
	"\x24\0\0\0" "\x02\x0a" "\x05\0" "\1\0\0\0" "\0\0\0\0" "\2\0\0\0" "\x0e\0\1\0" "meshd-nat\0\0\0"
	"\x14\0\0\0" "\x11\0" "\x01\0" "\2\0\0\0" "\0\0\0\0" "\0\0\0\x0a";

int main(void)
{
	char answer[4096];
	struct sockaddr_nl kernel = { .nl_family = AF_NETLINK };
	int error, s = socket(AF_NETLINK, SOCK_RAW, NETLINK_NETFILTER);

	if (s < 0 || sendto(s, orders, sizeof(orders) - 1, 0, (void *)&kernel, sizeof(kernel)) < 0)
		return 1;
	if (recv(s, answer, sizeof(answer), 0) < 20)
		return 2;
	memcpy(&error, answer + 16, sizeof(error));
	return error ? 3 : 0;
}
"#;

/// Puts the program `forget-nat` into an overlay.
pub fn add_forget(overlay: &Path) {
    let place = overlay.join("rootfs/usr/sbin/forget-nat");
    fs::create_dir_all(place.parent().expect("a folder")).expect("made");
    let mut compiler = Command::new("gcc");
    compiler.args(["-static", "-Os", "-s", "-x", "c", "-", "-o"]).arg(&place).stdin(Stdio::piped());
    let mut compiler = compiler.spawn().expect("gcc");
    compiler.stdin.take().expect("piped").write_all(FORGET.as_bytes()).expect("it reads");
    assert!(compiler.wait().expect("it ends").success());
    let manifest = overlay.join("overlay.toml");
    let text = fs::read_to_string(&manifest).expect("there");
    fs::write(manifest, text + "\n[files.\"/usr/sbin/forget-nat\"]\nmode = \"0755\"\n")
        .expect("written");
}
