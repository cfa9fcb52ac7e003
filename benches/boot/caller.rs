//! A machine with the servers of a peer, that a node calls when it is online.

use crate::central::memory_in_use;
use anyhow::Context as _;
use meshd_lab::{LabError, Neighbour, Rack, Wait};
use std::{fs, net::Ipv4Addr, path::PathBuf, process::Command, time::Duration};

/// The machine's address on the rack's network.
pub const SERVER: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 2);
const RANGE: &str = "10.77.0.210,10.77.0.220,1h";
/// Prints the two lines of memory as one word: the query of the call.
pub const MEMORY: &str =
    r#"$(awk '/^Mem(Total|Available):/ { printf "%s%s,", $1, $2 }' /proc/meminfo)"#;

/// A machine while its servers run.
pub struct Caller {
    pub machine: Neighbour,
    /// Folder of logs and state.
    pub folder: PathBuf,
}

impl Caller {
    /// Starts nginx with a folder, and dnsmasq, whose boot file is `/boot.ipxe` of that folder.
    pub fn start(rack: &Rack, www: &std::path::Path) -> anyhow::Result<Self> {
        let mut machine = rack.neighbour("peer", SERVER)?;
        let folder = rack.dir().join("peer");
        // The peer before has left its logs: its node's call would count as the next one's.
        if folder.exists() {
            fs::remove_dir_all(&folder)?;
        }
        fs::create_dir_all(&folder)?;
        let text = format!(
            "daemon off; pid {root}/pid; error_log {root}/error; events {{ }}\n\
             http {{ access_log {root}/access; sendfile on; tcp_nopush on; client_body_temp_path {root}/a; proxy_temp_path {root}/b;\n\
             fastcgi_temp_path {root}/c; uwsgi_temp_path {root}/d; scgi_temp_path {root}/e;\n\
             server {{ listen 80; root {www}; }} }}\n",
            root = folder.display(),
            www = www.display(),
        );
        fs::write(folder.join("nginx.conf"), text)?;
        let mut nginx = Command::new("/usr/sbin/nginx");
        nginx.arg("-p").arg(&folder).arg("-c").arg(folder.join("nginx.conf"));
        nginx.args(["-g", "user root;"]);
        machine.start(&mut nginx, &folder.join("talk"))?;
        let mut dnsmasq = Command::new("/usr/sbin/dnsmasq");
        dnsmasq.args(["--keep-in-foreground", "--conf-file=/dev/null", "--log-facility=-"]);
        dnsmasq.args(["--port=0", "--user=root", "--interface=eth0", "--bind-interfaces"]);
        dnsmasq.arg("--pid-file=").arg(format!("--dhcp-range={RANGE}"));
        dnsmasq.arg(format!("--dhcp-boot=http://{SERVER}/boot.ipxe"));
        dnsmasq.arg(format!("--dhcp-leasefile={}", folder.join("leases").display()));
        machine.start(&mut dnsmasq, &folder.join("dnsmasq.log"))?;
        Ok(Caller { machine, folder })
    }

    /// Waits for the call of the node's last service. Returns the MiB in use that it names.
    pub fn until_called(&self, rack: &Rack, after: Duration) -> anyhow::Result<f64> {
        let log = self.folder.join("access");
        let call = rack.wait(after, "the node to call", |_| {
            let requests = fs::read_to_string(&log).unwrap_or_default();
            let call = requests.lines().find(|line| line.contains("GET /online?"));
            let last = requests.lines().last().unwrap_or("nothing was asked for");
            Ok::<_, LabError>(match call {
                Some(call) => Wait::Done(call.to_owned()),
                None => Wait::NotYet(last.to_owned()),
            })
        })?;
        let query = call.split_once("/online?").and_then(|(_, rest)| rest.split_once(' '));
        let (words, _) = query.context("the call has no query")?;
        memory_in_use(&words.replace(',', "\n").replace(':', ": "))
    }
}
