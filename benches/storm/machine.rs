//! One machine from power-on to its agent: every step that firmware, iPXE, initramfs and mesh-init
//! take over the network.

use crate::{
    Storm, agent,
    dhcp::{As, Client},
    fabric,
    fault::Fault,
    frame::{HTTP_PORT, SERVER},
    http,
    overlay::{self, Opened},
    tally::Step,
    tftp,
};
use meshd_types::{MacAddr, SystemUuid};
use std::{collections::BTreeMap, net::Ipv4Addr, sync::Arc, time::Duration};
use tokio::{net::TcpStream, time::Instant};

/// Pause of the scripts after a failure; see `src/model/boot/ipxe_script.rs`.
const SCRIPT_PAUSE: Duration = Duration::from_secs(5);
/// Pause between two tries of Linux.
const LINUX_PAUSE: Duration = Duration::from_secs(1);
/// Tries of Linux before it panics and the machine starts over.
const LINUX_TRIES: u32 = 10;

/// A machine that is on.
pub struct Machine {
    storm: Arc<Storm>,
    number: u32,
    pub mac: MacAddr,
    pub uuid: SystemUuid,
    pub address: Ipv4Addr,
    exchanges: u32,
    /// When a step was begun for the first time; gone when it was finished for the first time.
    begun: BTreeMap<Step, Option<Instant>>,
}

/// What a boot script told.
struct Script {
    bulk: Vec<String>,
    overlay: String,
    modloop: String,
}

impl Machine {
    /// The machine of this number.
    pub fn new(storm: Arc<Storm>, number: u32) -> Self {
        let [_, a, b, c] = number.to_be_bytes();
        Machine {
            storm,
            number,
            mac: MacAddr([0x52, 0x54, 0x80, a, b, c]),
            uuid: SystemUuid([0x4c, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, a, b, c]),
            address: Ipv4Addr::UNSPECIFIED,
            exchanges: 0,
            begun: BTreeMap::new(),
        }
    }

    /// Boots, and goes on as an agent until the storm is over. Says in the tally what happened.
    pub async fn run(mut self) {
        let opened = match self.boot().await {
            Ok(opened) => opened,
            Err(fault) => return self.storm.tally.gave_up(fault.to_string()),
        };
        let storm = Arc::clone(&self.storm);
        tokio::select! {
            () = storm.over.cancelled() => {}
            ended = agent::run(&storm, &mut self, opened) => {
                if let Err(fault) = ended {
                    storm.tally.gave_up(fault.to_string());
                }
            }
        }
    }

    async fn boot(&mut self) -> Result<Opened, Fault> {
        self.begin(Step::Dhcp);
        self.dhcp(As::Firmware).await?;
        self.finish(Step::Dhcp);
        self.begin(Step::Loader);
        let repeats = tftp::fetch(self.address, self.storm.loader).await?;
        self.storm.tally.repeated("TFTP packet", repeats);
        self.finish(Step::Loader);
        let (opened, modloop) = loop {
            match self.ipxe().await {
                Ok(loaded) => break loaded,
                Err(fault) => self.pause_after(&fault).await,
            }
        };
        self.begin(Step::OsDhcp);
        self.dhcp(As::Os).await?;
        self.finish(Step::OsDhcp);
        self.begin(Step::Modloop);
        for tries in 1.. {
            match self.fetch_modloop(&modloop).await {
                Ok(()) => break,
                Err(fault) if tries == LINUX_TRIES => return Err(fault),
                Err(fault) => self.storm.tally.repeated(format!("modloop: {fault}"), 1),
            }
            tokio::time::sleep(LINUX_PAUSE).await;
        }
        self.finish(Step::Modloop);
        Ok(opened)
    }

    async fn dhcp(&mut self, who: As) -> Result<(), Fault> {
        self.exchanges += 1;
        let Machine { mac, uuid, .. } = *self;
        let xid = self.number << 8 | self.exchanges & 0xff;
        let lease = Client { mac, uuid, fabric: &self.storm.fabric, tally: &self.storm.tally, xid }
            .obtain(who)
            .await?;
        self.storm.tally.repeated(format!("DHCP as {who:?}"), lease.tries - 1);
        self.address = lease.address;
        Ok(())
    }

    /// From iPXE's DHCP to an overlay that can be used.
    async fn ipxe(&mut self) -> Result<(Opened, String), Fault> {
        self.begin(Step::IpxeDhcp);
        self.dhcp(As::Ipxe).await?;
        self.finish(Step::IpxeDhcp);
        self.begin(Step::Script);
        let mut stream = fabric::connect(self.address, HTTP_PORT).await?;
        let script = self.script(&mut stream).await?;
        self.finish(Step::Script);
        self.begin(Step::Bulk);
        for url in &script.bulk {
            get(&mut stream, url).await?;
        }
        self.finish(Step::Bulk);
        self.begin(Step::Overlay);
        let opened = overlay::open(&get(&mut stream, &script.overlay).await?)?;
        self.finish(Step::Overlay);
        Ok((opened, script.modloop))
    }

    async fn script(&self, stream: &mut TcpStream) -> Result<Script, Fault> {
        get(stream, "/boot.ipxe").await?;
        let Machine { mac, uuid, number, .. } = self;
        // As iPXE fills in the entry script; texts of vendors in hexadecimal.
        let serial: Vec<String> =
            format!("SN-{number:06}").bytes().map(|byte| format!("{byte:02x}")).collect();
        let ask = format!(
            "/boot/script?mac={mac}&uuid={uuid}&arch=x86_64&manufacturer_hex=42-65-6e-63-68&product_hex=53-74-6f-72-6d\
             &serial_hex={}",
            serial.join("-")
        );
        let text = get(stream, &ask).await?;
        read_script(&String::from_utf8_lossy(&text))
    }

    async fn fetch_modloop(&self, url: &str) -> Result<(), Fault> {
        let mut stream = fabric::connect(self.address, HTTP_PORT).await?;
        get(&mut stream, url).await.map(drop)
    }

    async fn pause_after(&self, fault: &Fault) {
        self.storm.tally.repeated(format!("iPXE: {fault}"), 1);
        let pause = match fault {
            Fault::Wait { seconds, .. } => Duration::from_secs(*seconds),
            _ => SCRIPT_PAUSE,
        };
        tokio::time::sleep(pause).await;
    }

    /// A step begins; a second time changes nothing.
    pub fn begin(&mut self, step: Step) {
        self.begun.entry(step).or_insert_with(|| Some(Instant::now()));
    }

    /// A step is done; only the first time is told.
    pub fn finish(&mut self, step: Step) {
        if let Some(begun) = self.begun.get_mut(&step).and_then(Option::take) {
            self.storm.tally.took(step, begun.elapsed());
        }
    }
}

async fn get(stream: &mut TcpStream, url: &str) -> Result<Vec<u8>, Fault> {
    let host = format!("{SERVER}:{HTTP_PORT}");
    let path =
        url.strip_prefix("http://").map_or(url, |rest| rest.strip_prefix(&host).unwrap_or(rest));
    http::exchange(stream, "GET", &host, path, b"").await
}

fn read_script(text: &str) -> Result<Script, Fault> {
    let lines =
        || text.lines().filter(|line| line.starts_with("kernel ") || line.starts_with("initrd "));
    let urls = lines()
        .filter_map(|line| line.split(' ').find(|word| word.starts_with("http://")))
        .map(str::to_owned);
    let (overlay, bulk): (Vec<String>, Vec<String>) =
        urls.partition(|url| url.contains("/overlay/"));
    let modloop = text.split_whitespace().find_map(|word| word.strip_prefix("modloop="));
    if let (Some(overlay), Some(modloop)) = (overlay.into_iter().next(), modloop) {
        return Ok(Script { bulk, overlay, modloop: modloop.to_owned() });
    }
    let number = |line: &str| line.strip_prefix("sleep ")?.trim().parse().ok();
    let seconds = text.lines().find_map(number).unwrap_or(SCRIPT_PAUSE.as_secs());
    let reason = text
        .lines()
        .find_map(|line| line.strip_prefix("# refusal "))
        .unwrap_or("its place in line");
    Err(Fault::Wait { reason: reason.to_owned(), seconds })
}
