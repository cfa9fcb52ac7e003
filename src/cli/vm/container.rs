//! `meshd container`: runs, stops and deletes containers.

use super::console;
use crate::cli::{
    Context, Failure,
    client::{AdminClient, NodeNames},
    output::{
        list::ListOutput,
        print::{Output, ago, confirm, fields, now, span, table, word},
        writer::RawOutput,
    },
    task::{Shell, open_shell},
    wait,
};
use clap::{Args, Subcommand};
use meshd_api::{
    ContainerView, MountVolume, ReplicaView, RunContainer,
    container_options::{
        cpu_words, mount_words, parse_cpu_millis, parse_mount, parse_port, parse_probe,
        parse_restart, parse_user, parse_variable, port_words, probe_words, restart_words, to_mib,
    },
    routes as api,
};
use meshd_config::parse_duration;
use meshd_model::work::container::ReplicaPhase;
use meshd_proto::{
    container::{ContainerRestart, HealthCheck, HealthProbe, PublishedPort},
    vm::ByteSize,
};
use meshd_types::ContainerName;
use std::time::{Duration, Instant};

/// Interval between two requests of `--wait`.
const PAUSE: Duration = Duration::from_secs(1);

/// A container has replicas, each on a node of its own.
#[derive(Debug, Subcommand)]
pub(crate) enum ContainerCommand {
    /// Run a container, and place its replicas
    Run(Box<RunContainerCommand>),
    /// List containers
    List {
        #[command(flatten)]
        output: ListOutput,
    },
    /// Show a container and its replicas
    Show {
        /// Container
        container: String,
        #[command(flatten)]
        output: Output,
    },
    /// Show the output of a replica
    Logs {
        /// Container, or one of several replicas: NAME.INDEX
        container: String,
        /// Follow the output
        #[arg(long, short)]
        follow: bool,
        #[command(flatten)]
        raw: RawOutput,
    },
    /// Run a program in a replica, at a terminal (role admin)
    Exec {
        /// Container, or one of several replicas: NAME.INDEX
        container: String,
        /// Program and arguments, without a shell
        #[arg(last = true, required = true, value_name = "ARGV")]
        argv: Vec<String>,
    },
    /// Start the replicas that do not run
    Start {
        /// Container
        container: String,
        #[command(flatten)]
        wait: WaitReady,
    },
    /// End all processes of a container
    Stop {
        /// Container
        container: String,
    },
    /// Delete a container with its logs
    Delete {
        /// Container
        container: String,
        /// Skip the confirmation
        #[arg(long, short)]
        yes: bool,
    },
}

#[derive(Debug, Args)]
pub(crate) struct RunContainerCommand {
    /// Name of the container
    name: ContainerName,
    /// Name or digest of an imported image
    image: String,
    /// Number of replicas
    #[arg(long, value_name = "N", default_value_t = 1)]
    replicas: u16,
    /// Publish a TCP port, as PORT or NODE-PORT:PORT
    #[arg(long, short, value_name = "PORT", value_parser = parse_port)]
    publish: Vec<PublishedPort>,
    /// Mount a squashfs volume at a folder, read-only
    #[arg(long, value_name = "VOLUME:PATH", value_parser = parse_mount)]
    mount: Vec<MountVolume>,
    /// Set an environment variable
    #[arg(long, short, value_name = "NAME=VALUE", value_parser = parse_variable)]
    env: Vec<(String, String)>,
    /// Working directory [default: the image's]
    #[arg(long, value_name = "DIR")]
    workdir: Option<String>,
    /// User and group ID [default: the image's]
    #[arg(long, value_name = "UID[:GID]", value_parser = parse_user)]
    user: Option<(u32, Option<u32>)>,
    /// Limit of CPU time
    #[arg(long, value_name = "CPUS", value_parser = parse_cpu_millis, default_value = "1")]
    cpus: u32,
    /// Limit of memory, with written files
    #[arg(long, value_name = "SIZE", default_value = "256M")]
    memory: ByteSize,
    /// Limit of written files [default: 64M]
    #[arg(long, value_name = "SIZE")]
    scratch: Option<ByteSize>,
    /// always, never, on-failure or on-failure:N
    #[arg(long, value_name = "WHEN", value_parser = parse_restart, default_value = "always")]
    restart: ContainerRestart,
    /// Health check: tcp:PORT, http:PORT/PATH or exec:ARGV
    #[arg(long, value_name = "CHECK", value_parser = parse_probe)]
    health: Option<HealthProbe>,
    /// Seconds between two health checks
    #[arg(long, value_name = "SECONDS", default_value_t = 10, requires = "health")]
    health_interval: u16,
    /// Seconds until a health check fails
    #[arg(long, value_name = "SECONDS", default_value_t = 5, requires = "health")]
    health_timeout: u16,
    /// Failed checks in a row that count
    #[arg(long, value_name = "N", default_value_t = 3, requires = "health")]
    health_failures: u8,
    /// Seconds after the start without health checks
    #[arg(long, value_name = "SECONDS", default_value_t = 0, requires = "health")]
    health_start: u16,
    /// Seconds between SIGTERM and SIGKILL
    #[arg(long, value_name = "SECONDS", default_value_t = 10)]
    stop_timeout: u16,
    #[command(flatten)]
    wait: WaitReady,
    #[command(flatten)]
    output: Output,
    /// Program and arguments, no shell [default: from image]
    #[arg(last = true, value_name = "ARGV")]
    argv: Vec<String>,
}

/// Whether a command returns when its order is recorded, or when all replicas run.
#[derive(Clone, Copy, Debug, Args)]
pub(crate) struct WaitReady {
    /// Wait until all replicas run and are healthy
    #[arg(long, value_name = "TIME", num_args = 0..=1, require_equals = true, default_missing_value = "5m", value_parser = limit)]
    wait: Option<Duration>,
}

fn limit(text: &str) -> Result<Duration, String> {
    parse_duration(text).ok_or_else(|| "write a number and one of s, m, h, d: 5m".to_owned())
}

impl ContainerCommand {
    pub(crate) fn run(self, context: &Context) -> Result<(), Failure> {
        let client = context.client()?;
        wait(async {
            match self {
                ContainerCommand::Run(run) => run.run(&client).await,
                ContainerCommand::List { output } => {
                    let all = client.get(api::LIST_CONTAINERS.path([])).await?;
                    let names = client.node_names_for(*output).await;
                    output.print(&all, |all| list(all, &names))
                }
                ContainerCommand::Show { container, output } => {
                    let container = client.get(api::GET_CONTAINER.path([&container])).await?;
                    let names = client.node_names_for(output).await;
                    output.print(&container, |container| show(container, &names))
                }
                ContainerCommand::Logs { container, follow, raw } => {
                    let log = api::GET_CONTAINER_LOG.path([&container]).with("follow", follow);
                    console::logs(&client, log, raw).await
                }
                ContainerCommand::Exec { container, argv } => {
                    open_shell(&client, Shell::of_replica(&container, &argv)?).await
                }
                ContainerCommand::Start { container, wait } => {
                    let order = api::START_CONTAINER.path([&container]);
                    let container = client.post(order, &()).await?;
                    message!("{}: start is ordered", container.name);
                    let is_left = |it: &&ReplicaView| it.phase == ReplicaPhase::Unconfirmed;
                    for replica in container.replicas.iter().filter(is_left) {
                        message!("{}", describe(replica));
                    }
                    wait.wait(&client, &container).await.map(drop)
                }
                ContainerCommand::Stop { container } => {
                    let order = api::STOP_CONTAINER.path([&container]);
                    let container = client.post(order, &()).await?;
                    message!("{}: stop is ordered", container.name);
                    Ok(())
                }
                ContainerCommand::Delete { container, yes } => {
                    if !yes {
                        confirm(&format!("Delete the container {container} with its logs?"))?;
                    }
                    let order = api::DELETE_CONTAINER.path([&container]);
                    match client.post(order, &()).await? {
                        Some(gone) => message!("{} is being released by its nodes", gone.name),
                        None => message!(
                            "{container} is not on record; its nodes were ordered to release it"
                        ),
                    }
                    Ok(())
                }
            }
        })
    }
}

impl RunContainerCommand {
    async fn run(self, client: &AdminClient) -> Result<(), Failure> {
        let health = self.health.map(|probe| HealthCheck {
            probe,
            interval_seconds: self.health_interval,
            timeout_seconds: self.health_timeout,
            failures: self.health_failures,
            start_seconds: self.health_start,
        });
        let order = RunContainer {
            name: self.name,
            image: self.image,
            replicas: self.replicas,
            argv: self.argv,
            env: self.env.into_iter().collect(),
            working_dir: self.workdir,
            uid: self.user.map(|(uid, _)| uid),
            gid: self.user.and_then(|(_, gid)| gid),
            cpu_millis: Some(self.cpus),
            memory_mib: Some(to_mib(self.memory)),
            scratch_mib: self.scratch.map(to_mib),
            ports: self.publish,
            mounts: self.mount,
            restart: self.restart,
            health,
            stop_seconds: Some(self.stop_timeout),
        };
        let container = client.post(api::RUN_CONTAINER.path([]), &order).await?;
        let container = self.wait.wait(client, &container).await?;
        let names = client.node_names_for(self.output).await;
        self.output.print(&container, |container| show(container, &names))
    }
}

impl WaitReady {
    /// Waits if `--wait` is present. Returns the last view of the container.
    async fn wait(
        self,
        client: &AdminClient,
        container: &ContainerView,
    ) -> Result<ContainerView, Failure> {
        let mut container = container.clone();
        let Some(limit) = self.wait else { return Ok(container) };
        let name = container.name.clone();
        let started = Instant::now();
        let mut printed = String::new();
        loop {
            if container.is_ready() {
                return Ok(container);
            }
            let failed = container.replicas.iter().find(|replica| {
                matches!(replica.phase, ReplicaPhase::Failed | ReplicaPhase::Exited)
            });
            if let Some(replica) = failed {
                let message = format!("replica {}", describe(replica));
                return Err(Failure::new(message, format!("meshd container logs {}", replica.id)));
            }
            let is_waiting = |replica: &&ReplicaView| {
                !replica.runs()
                    || container.health.is_some() && replica.phase != ReplicaPhase::Healthy
            };
            let waiting = container.replicas.iter().filter(is_waiting);
            let state = waiting.map(describe).collect::<Vec<_>>().join(", ");
            if state != printed {
                message!("{state}");
                printed = state;
            }
            if started.elapsed() >= limit {
                let first = container.replicas.iter().find(is_waiting);
                let id = first.map_or_else(|| format!("{name}.0"), |it| it.id.to_string());
                return Err(Failure::new(
                    format!("{name} is not ready after {}: {printed}", span(limit)),
                    format!("meshd container logs {id}; the order remains in effect"),
                ));
            }
            tokio::time::sleep(PAUSE).await;
            container = client.get(api::GET_CONTAINER.path([&name])).await?;
        }
    }
}

fn describe(replica: &ReplicaView) -> String {
    let detail = match (&replica.detail, replica.code) {
        (detail, _) if !detail.is_empty() => format!(" ({detail})"),
        (_, Some(code)) => format!(" (code {code})"),
        _ => String::new(),
    };
    format!("{} is {}{detail}", replica.id, replica.phase.as_str())
}

fn list(all: &[ContainerView], names: &NodeNames) -> String {
    let rows = all.iter().map(|container| {
        let nodes: Vec<String> =
            container.replicas.iter().map(|replica| names.maybe_label(replica.node)).collect();
        let restarts: u32 = container.replicas.iter().map(|replica| replica.restarts).sum();
        let nodes = nodes.into_iter().filter(|node| !node.is_empty()).collect::<Vec<_>>();
        let is_unconfirmed = |it: &&ReplicaView| it.phase == ReplicaPhase::Unconfirmed;
        let runs = format!("{}/{}", container.running, container.replicas.len());
        let runs = match container.replicas.iter().filter(is_unconfirmed).count() {
            0 => runs,
            count => format!("{runs}, {count} unconfirmed"),
        };
        [
            container.name.to_string(),
            word(&container.desired_state),
            runs,
            restarts.to_string(),
            container.image.to_string(),
            port_words(&container.ports),
            nodes.join(" "),
            ago(container.created_at, now()),
        ]
    });
    table(["name", "desired", "runs", "restarts", "image", "ports", "nodes", "created"], rows)
}

fn show(container: &ContainerView, names: &NodeNames) -> String {
    let health = container.health.as_ref().map(|health| probe_words(&health.probe));
    let head = fields([
        ("name", container.name.to_string()),
        ("desired state", word(&container.desired_state)),
        ("image", format!("{} ({})", container.image, container.digest.short())),
        ("program", container.argv.join(" ")),
        ("environment", container.env.join(" ")),
        ("user", format!("{}:{}", container.uid, container.gid)),
        ("cpus", cpu_words(container.cpu_millis)),
        ("memory", format!("{} MiB", container.memory_mib)),
        ("ports", port_words(&container.ports)),
        ("mounts", mount_words(&container.mounts)),
        ("restart", restart_words(container.restart)),
        ("health check", health.unwrap_or_default()),
        ("owner", container.owner.clone()),
        ("created", container.created_at.to_string()),
    ]);
    let rows = container.replicas.iter().map(|replica| {
        let since = replica.since.map(|since| ago(since, now())).unwrap_or_default();
        let code = replica.code.map(|code| code.to_string()).unwrap_or_default();
        [
            replica.id.to_string(),
            replica.phase.as_str().to_owned(),
            names.maybe_label(replica.node),
            replica.restarts.to_string(),
            code,
            since,
            replica.detail.clone(),
        ]
    });
    format!(
        "{head}\n{}",
        table(["replica", "state", "node", "restarts", "exit", "since", "reason"], rows)
    )
}
