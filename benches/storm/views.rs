//! What operators see of a rack while all of its agents are linked: filtered lists and the overview
//! of the web UI.

use crate::{
    arguments::Arguments,
    frame::{Process, Server, Wire, cpu_of},
};
use anyhow::Context as _;
use std::{
    io::{BufRead as _, BufReader},
    path::PathBuf,
    process::{Command, Stdio},
    thread,
    time::Duration,
};

/// Requests whose median counts.
const RUNS: usize = 21;
/// A filter of the node list, in seconds.
const LIST_GOAL: f64 = 0.05;
/// The overview, in bytes and seconds.
const PAGE_GOAL: (f64, f64) = (300_000.0, 1.0);
/// Processor time of the central node for one page that follows the rack, in seconds a second.
const CPU_GOAL: f64 = 0.1;
/// For so long the processor time is measured, with and without the page.
const SPAN: Duration = Duration::from_secs(15);
/// A page looks as often as this.
const PERIOD: Duration = Duration::from_secs(3);

/// Seconds and bytes of one request. Unchanged pages have none.
struct Request {
    seconds: f64,
    bytes: f64,
}

/// Asks with curl, as every client does: a connection each time.
fn curl(args: &[&str]) -> anyhow::Result<Request> {
    let mut command = Command::new("curl");
    command.args(["--silent", "--show-error", "--fail", "--output", "/dev/null"]);
    let output =
        command.args(["--write-out", "%{time_total} %{size_download}"]).args(args).output()?;
    anyhow::ensure!(
        output.status.success(),
        "curl: {}",
        String::from_utf8_lossy(&output.stderr).trim()
    );
    let text = String::from_utf8(output.stdout)?;
    let (seconds, bytes) = text.trim().split_once(' ').context("two numbers")?;
    Ok(Request { seconds: seconds.parse()?, bytes: bytes.parse()? })
}

/// The median of several requests.
fn median(args: &[&str]) -> anyhow::Result<Request> {
    let mut all = (0..RUNS).map(|_| curl(args)).collect::<Result<Vec<_>, _>>()?;
    all.sort_by(|one, other| one.seconds.total_cmp(&other.seconds));
    Ok(all.swap_remove(RUNS / 2))
}

/// `meshd ui` of the site, with a session.
struct Ui {
    process: Process,
    overview: String,
    jar: PathBuf,
}

impl Ui {
    fn open(wire: &Wire) -> anyhow::Result<Self> {
        let log = wire.path("ui.log");
        let mut command = Command::new(env!("CARGO_BIN_EXE_meshd"));
        command.arg("--site").arg(wire.path("site.toml")).arg("ui").stdin(Stdio::null());
        command.stdout(std::fs::File::create(&log)?).stderr(Stdio::null());
        let process = Process::start(&wire.client, &mut command)?;
        let mut link = String::new();
        while !link.ends_with('\n') {
            thread::park_timeout(Duration::from_millis(10));
            link.clear();
            BufReader::new(std::fs::File::open(&log)?).read_line(&mut link)?;
        }
        let jar = wire.path("cookies");
        let overview = link.split("enter?").next().context("a link")?.to_owned();
        let ui = Ui { process, overview, jar };
        let jar = ui.jar.display().to_string();
        curl(&["--location", "--cookie-jar", &jar, "--cookie", &jar, link.trim()])?;
        Ok(ui)
    }

    fn page(&self, runs: impl Fn(&[&str]) -> anyhow::Result<Request>) -> anyhow::Result<Request> {
        runs(&["--cookie", &self.jar.display().to_string(), &self.overview])
    }
}

fn row(what: &str, value: f64, unit: &str, goal: f64) {
    let met = if value <= goal { "met" } else { "MISSED" };
    println!("  {what:<52} {value:>9.3} {unit:<6} goal {goal}: {met}");
}

/// Measures and prints. It runs in the namespace of the machines; the socket is a file.
pub fn measure(arguments: &Arguments, wire: &Wire, server: &Server) -> anyhow::Result<()> {
    println!("views of {} nodes, all of them linked:", arguments.nodes);
    let socket = wire.path("admin.sock").display().to_string();
    let list = |query: &str| {
        median(&[
            "--unix-socket",
            &socket,
            &format!("http://meshd/v1/nodes?limit=100&fields=id,name,phase&{query}"),
        ])
    };
    row("100 nodes of one phase, by name", list("phase=online&sort=name")?.seconds, "s", LIST_GOAL);
    row("nodes with a text that one has", list("q=0000000f")?.seconds, "s", LIST_GOAL);
    let ui = Ui::open(wire)?;
    let page = ui.page(median)?;
    row("overview of the web UI, size", page.bytes, "bytes", PAGE_GOAL.0);
    row("overview of the web UI, until its last byte", page.seconds, "s", PAGE_GOAL.1);
    let idle = spent(server, &ui, || Ok(()))?;
    let watched = spent(server, &ui, || ui.page(curl).map(drop))?;
    row(
        "processor time for one page that follows the rack",
        (watched - idle).max(0.0),
        "s/s",
        CPU_GOAL,
    );
    println!(
        "  (meshd and meshd ui use {idle:.3} s/s without the page, for the links of all agents)"
    );
    Ok(())
}

/// Processor seconds of meshd and `meshd ui` for each second, while a page looks again and again.
fn spent(server: &Server, ui: &Ui, look: impl Fn() -> anyhow::Result<()>) -> anyhow::Result<f64> {
    let cpu = || server.cpu() + cpu_of(ui.process.pid());
    let begin = std::time::Instant::now();
    let before = cpu();
    while begin.elapsed() < SPAN {
        look()?;
        thread::park_timeout(PERIOD);
    }
    Ok((cpu() - before).as_secs_f64() / begin.elapsed().as_secs_f64())
}
