//! `meshd lab`: a test rack in QEMU on this machine.
//!
//! | module | content |
//! | --- | --- |
//! | `attempt` | `meshd lab try`: boots one node with a profile and opens its console |
//! | `inherited_files` | closes files that programs of the rack would keep open |
//! | `signals` | signals that end this program |

mod attempt;
mod inherited_files;
pub(super) mod signals;

use super::{
    Context, Failure,
    output::{
        print::{Output, fields, table, write},
        writer::{ForeignOutput, RawOutput, raw_output},
    },
};
use anyhow::Context as _;
use clap::{Args, Subcommand};
use meshd_lab::{
    Extra, Firmware, Interrupt, LabError, Mix, Nic, Options, Power, Rack, Shape, Status, demo, end,
    last_lines,
};
use signals::on_end_signal;
use std::{
    env, fs,
    io::{self, IsTerminal, Read, Seek},
    path::{Path, PathBuf},
    time::Duration,
};

/// Run a rack of QEMU nodes with a separate meshd and network
#[derive(Debug, Args)]
pub struct LabArgs {
    #[command(subcommand)]
    verb: LabVerb,
}

#[derive(Debug, Subcommand)]
enum LabVerb {
    /// Create a rack and power its nodes on
    Up {
        #[command(flatten)]
        rack: RackArgs,
        /// Number of nodes
        #[arg(long, value_name = "N", default_value_t = 2)]
        nodes: u8,
        /// Firmware: bios, uefi, uefi-http, mixed, or a list
        #[arg(long, default_value = "bios")]
        firmware: Mix,
        /// Enrolment policy: auto or approve
        #[arg(long, default_value = "auto")]
        policy: String,
        /// Default profile, instead of the site's
        #[arg(long, value_name = "PROFILE")]
        profile: Option<String>,
        /// Leave the nodes powered off
        #[arg(long)]
        powered_off: bool,
    },
    /// Build the images of a rack, without root
    Image {
        #[command(flatten)]
        rack: RackArgs,
    },
    /// Show the rack and its processes
    Status {
        #[command(flatten)]
        at: At,
        #[command(flatten)]
        output: Output,
    },
    /// Apply changes of the site file, overlays and images
    Reload {
        #[command(flatten)]
        at: At,
    },
    /// Restart meshd with the present site file
    Restart {
        #[command(flatten)]
        at: At,
    },
    /// Delete the rack; keep built images and logs
    Down {
        #[command(flatten)]
        at: At,
    },
    /// Press a node's power button
    Power {
        #[command(flatten)]
        at: At,
        /// Node: node1, node2, or a node ID
        node: String,
        /// Button: on, off or reset
        button: Power,
    },
    /// Show the output of a node's serial port
    Console {
        #[command(flatten)]
        at: At,
        /// Node: node1, node2, or a node ID
        node: String,
        /// Number of lines
        #[arg(short = 'n', long, default_value_t = 40)]
        lines: usize,
        /// Follow the output until Ctrl-C
        #[arg(short, long)]
        follow: bool,
        #[command(flatten)]
        raw: RawOutput,
    },
    /// Boot a node with a profile and open its console
    #[command(after_help = attempt::HELP)]
    Try(attempt::Try),
    /// Boot a BIOS and a UEFI node, then reprovision one
    Demo {
        #[command(flatten)]
        rack: RackArgs,
        /// Profile for the reprovisioned node
        #[arg(long, value_name = "PROFILE", default_value = "compute")]
        profile: String,
        /// Keep the rack and print instructions
        #[arg(long)]
        keep: bool,
    },
}

#[derive(Debug, Args)]
struct At {
    /// Folder of the rack
    #[arg(long, default_value = ".lab")]
    dir: PathBuf,
}

#[derive(Debug, Args)]
struct RackArgs {
    #[command(flatten)]
    at: At,
    #[command(flatten)]
    hardware: Hardware,
}

/// Hardware of nodes and additional settings of the site file
#[derive(Debug, Args)]
struct Hardware {
    /// Processors per node
    #[arg(long, default_value_t = 2)]
    cpus: u8,
    /// Memory per node, MiB
    #[arg(long, value_name = "MIB", default_value_t = 1024)]
    memory: u32,
    /// NIC of each node: virtio, e1000 or rtl8139
    #[arg(long, default_value = "virtio")]
    nic: Nic,
    /// Extra hardware, such as iommu,gpu,disk
    #[arg(long, value_name = "HARDWARE", value_delimiter = ',')]
    with: Vec<Extra>,
    /// Override a key of the site file; repeatable
    #[arg(long, value_name = "KEY=VALUE", value_parser = setting)]
    set: Vec<(String, String)>,
    /// Folder of built images [default: blobs in the rack]
    #[arg(long, value_name = "DIR")]
    blobs: Option<PathBuf>,
}

fn setting(text: &str) -> Result<(String, String), String> {
    let (key, value) =
        text.split_once('=').ok_or_else(|| format!("`{text}`: write it as KEY=VALUE"))?;
    Ok((key.to_owned(), value.to_owned()))
}

impl LabArgs {
    /// Runs a lab command. The function blocks, so the caller must be on a thread that may block.
    pub(super) fn run(self, context: &Context) -> Result<(), Failure> {
        inherited_files::close_inherited_files();
        let interrupt = interruptible()?;
        match self.verb {
            LabVerb::Up { rack, nodes, firmware, policy, profile, powered_off } => {
                let mut options = rack.options(context, interrupt)?.set("enroll.policy", &policy);
                if let Some(profile) = profile {
                    options = options.set("defaults.profile", &profile);
                }
                (options.nodes, options.firmware, options.powered) =
                    (nodes, firmware, !powered_off);
                up(&options)
            }
            LabVerb::Image { rack } => {
                Ok(Rack::prepare(&rack.options(context, interrupt)?, &mut |message| {
                    message!("{message}")
                })?)
            }
            LabVerb::Status { at, output } => {
                output.print(&Rack::attach(&at.dir)?.status(), render)
            }
            LabVerb::Reload { at } => {
                write(&Rack::attach(&at.dir)?.reload(&mut |message| message!("{message}"))?)
            }
            LabVerb::Restart { at } => {
                Rack::attach(&at.dir)?.restart(&mut |message| message!("{message}"))?;
                message!("meshd was restarted; nodes keep running");
                Ok(())
            }
            LabVerb::Down { at } => down(&at.dir),
            LabVerb::Power { at, node, button } => {
                let mut rack = Rack::attach(&at.dir)?;
                let position = rack.position(&node)?;
                Ok(rack.power(position, button)?)
            }
            LabVerb::Console { at, node, lines, follow, raw } => {
                let follow = follow.then_some(&interrupt);
                console(&Rack::attach(&at.dir)?, &node, lines, follow, ForeignOutput::new(raw))
            }
            LabVerb::Try(attempt) => attempt.run(context, &interrupt),
            LabVerb::Demo { rack, profile, keep } => {
                let mut options = rack.options(context, interrupt)?.set("enroll.policy", "auto");
                options.firmware = Mix::of([Firmware::Bios, Firmware::Uefi]);
                let terminal = io::stdout().is_terminal();
                let demo = demo::Demo { options, profile, keep, terminal };
                Ok(demo.run(&mut raw_output())?)
            }
        }
    }
}

impl RackArgs {
    fn options(self, context: &Context, interrupt: Interrupt) -> Result<Options, Failure> {
        self.hardware.options(self.at.dir, context, interrupt)
    }
}

impl Hardware {
    fn options(
        self,
        dir: PathBuf,
        context: &Context,
        interrupt: Interrupt,
    ) -> Result<Options, Failure> {
        let program = env::current_exe().context("cannot find the path of this program")?;
        let mut options = Options::new(dir, context.site_file()?, program);
        options.shape = Shape { cpus: self.cpus, memory_mib: self.memory, nic: self.nic };
        (options.settings, options.blobs, options.interrupt) = (self.set, self.blobs, interrupt);
        options.extras = vec![self.with];
        Ok(options)
    }
}

fn up(options: &Options) -> Result<(), Failure> {
    let rack = Rack::up(options, &mut |message| message!("{message}"))?;
    let site = rack.site_file().display().to_string();
    let dir = rack.dir().display().to_string();
    rack.detach();
    message!(
        "the rack is up\n  \
         talk to it:          export MESHD_SITE={site}; meshd node list\n  \
         open the web UI:     meshd --site {site} ui\n  \
         apply your changes:  meshd lab reload --dir {dir}, or restart\n  \
         see a node's serial: meshd lab console node1 --follow --dir {dir}\n  \
         end it:              meshd lab down --dir {dir}"
    );
    Ok(())
}

fn down(dir: &Path) -> Result<(), Failure> {
    if end(dir)? {
        message!("the rack in {} is down", dir.display());
        Ok(())
    } else {
        Err(LabError::NotUp { dir: dir.to_owned() }.into())
    }
}

fn render(status: &Status) -> String {
    let meshd =
        status.meshd.map_or("does not run".to_owned(), |pid| format!("runs as process {pid}"));
    let rack = fields([
        ("meshd", meshd),
        ("namespace", status.namespace.clone()),
        ("site", super::path_text(&status.site)),
        ("log", super::path_text(&status.log)),
    ]);
    let nodes = status.nodes.iter().map(|node| {
        let firmware = node.firmware.to_string();
        let mac = node.mac.to_string();
        [
            node.name.clone(),
            node.id.to_string(),
            firmware,
            mac,
            node.power.to_owned(),
            super::path_text(&node.serial),
        ]
    });
    format!("{rack}\n{}", table(["name", "id", "firmware", "mac", "power", "serial"], nodes))
}

/// Shows the last lines, and new output until the interrupt.
fn console(
    rack: &Rack,
    node: &str,
    lines: usize,
    follow: Option<&Interrupt>,
    mut output: ForeignOutput,
) -> Result<(), Failure> {
    let position = rack.position(node)?;
    let path = rack.serial_file(position);
    message!("{}", path.display());
    output.out(format!("{}\n", last_lines(&rack.serial(position), lines)).as_bytes())?;
    let Some(interrupt) = follow else { return Ok(()) };
    let failed = || format!("cannot read {}", path.display());
    let mut file = fs::File::open(&path).with_context(failed)?;
    file.seek(io::SeekFrom::End(0)).with_context(failed)?;
    while !interrupt.is_raised() {
        let mut more = Vec::new();
        file.read_to_end(&mut more).with_context(failed)?;
        output.out(&more)?;
        std::thread::park_timeout(Duration::from_millis(200));
    }
    Ok(())
}

/// Returns an interrupt for Ctrl-C, SIGTERM and SIGHUP. The signals end every wait, so that the
/// rack is taken down in order.
fn interruptible() -> anyhow::Result<Interrupt> {
    let interrupt = Interrupt::default();
    let raise = interrupt.clone();
    on_end_signal(move || raise.raise())?;
    Ok(interrupt)
}
