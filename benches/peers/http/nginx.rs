//! nginx with sendfile and without a log, as it would be set up to serve files fast.

use super::PORT;
use crate::frame::{SERVER, Server, Wire};
use anyhow::Context as _;
use std::{
    fs::{self, File},
    net::TcpStream,
    process::{Command, Stdio},
};

/// Starts nginx on the image's files, with `reply` at `/script`.
pub fn start(wire: &Wire, reply: &str) -> anyhow::Result<Server> {
    let root = wire.path("nginx");
    fs::create_dir_all(&root)?;
    // `$` would name a variable, and the length is what matters.
    let reply = reply.replace(['$', '\'', '\\'], "_");
    let text = format!(
        "daemon off; worker_processes auto; pid {root}/pid; error_log {root}/log crit;\n\
         events {{ worker_connections 4096; }}\n\
         http {{ access_log off; sendfile on; tcp_nopush on; open_file_cache max=100; keepalive_requests 1000000000;\n\
         client_body_temp_path {root}/a; proxy_temp_path {root}/b; fastcgi_temp_path {root}/c; uwsgi_temp_path {root}/d;\n\
         scgi_temp_path {root}/e;\n\
         server {{ listen {SERVER}:{PORT} backlog=1024; root {www};\n\
         location = /script {{ default_type text/plain; return 200 '{reply}'; }} }} }}\n",
        root = root.display(),
        www = wire.path("www").display(),
    );
    let config = root.join("nginx.conf");
    fs::write(&config, text).context("write nginx's configuration")?;
    // Its workers are nobody, and the bench's folder is root's alone.
    let talk = File::create(root.join("talk"))?;
    let mut command = Command::new("nginx");
    command.arg("-p").arg(&root).arg("-c").arg(&config).args(["-g", "user root;"]);
    command.stdin(Stdio::null()).stdout(talk.try_clone()?).stderr(talk);
    let answers = || {
        wire.client.inside(|| TcpStream::connect((SERVER, PORT))).is_ok_and(|tried| tried.is_ok())
    };
    Server::start(&wire.server, &mut command, answers)
        .with_context(|| fs::read_to_string(root.join("talk")).unwrap_or_default())
}
