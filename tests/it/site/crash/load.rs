//! What goes on while meshd is killed: machines that ask for addresses, machines that boot and
//! enrol, an operator.

use super::{
    Dice,
    client::{self, Admin, Boot},
    record::Record,
};
use crate::world::{
    CENTRAL, World,
    dhcp::{self, As},
    http, unpack,
};
use meshd_proto::BootPart;
use meshd_types::{Basis, MacAddr, SystemUuid};
use serde_json::json;
use std::{
    io,
    net::Ipv4Addr,
    sync::atomic::{AtomicBool, Ordering},
    thread::{self, Scope, ScopedJoinHandle},
    time::Duration,
};

/// Machines that only want an address.
const CLIENTS: u64 = 150;
/// Machines that boot, for each of those who boot them.
const MACHINES: u64 = 12;
const BOOTERS: u64 = 2;
/// Between two tries where nobody answers.
const BREATH: Duration = Duration::from_millis(10);

#[derive(Clone, Copy)]
pub struct Load<'a> {
    pub world: &'a World,
    pub record: &'a Record,
    pub stop: &'a AtomicBool,
}

/// A machine by its number.
fn machine(number: u64) -> (MacAddr, SystemUuid) {
    let low = u8::try_from(number).unwrap();
    (
        MacAddr([0x52, 0x54, 0, 1, 0, low]),
        SystemUuid([0x5c, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, low]),
    )
}

impl<'a> Load<'a> {
    /// All of it; none of it ends before it is stopped.
    pub fn start<'s>(self, scope: &'s Scope<'s, 'a>, seed: u64) -> Vec<ScopedJoinHandle<'s, ()>>
    where
        'a: 's,
    {
        let mut all = Vec::new();
        all.push(scope.spawn(move || self.inside(|| self.ask_for_addresses(Dice::new(seed ^ 1)))));
        for booter in 0..BOOTERS {
            all.push(scope.spawn(move || {
                self.inside(|| self.boot_machines(booter, Dice::new(seed ^ (2 + booter))))
            }));
        }
        all.push(scope.spawn(move || self.give_orders(Dice::new(seed ^ 99))));
        all
    }

    fn inside(&self, work: impl FnOnce() + Send) {
        self.world.nodes.inside(work).unwrap();
    }

    /// Where this card is.
    fn at<T: Send>(&self, mac: MacAddr, work: impl FnOnce() -> T + Send) -> T {
        self.world.host(mac).inside(work).unwrap()
    }

    fn goes_on(&self) -> bool {
        !self.stop.load(Ordering::SeqCst)
    }

    fn ask_for_addresses(&self, mut dice: Dice) {
        while self.goes_on() {
            let number = u8::try_from(dice.below(CLIENTS)).unwrap();
            let mac = MacAddr([0x52, 0x54, 0, 2, 0, number]);
            let uuid = SystemUuid([number; 16]);
            match self.at(mac, || dhcp::attempt(&dhcp::client(), mac, uuid, As::Firmware(0))) {
                Some(granted) => self.record.leased(granted.address, mac),
                None => thread::park_timeout(BREATH),
            }
        }
    }

    fn boot_machines(&self, booter: u64, mut dice: Dice) {
        while self.goes_on() {
            let number = booter * MACHINES + dice.below(MACHINES);
            // Cut off anywhere, a machine begins again from the beginning, or another one does.
            if self.boot(number, &mut dice).is_err() {
                thread::park_timeout(BREATH);
            }
        }
    }

    fn boot(&self, number: u64, dice: &mut Dice) -> io::Result<()> {
        let (mac, uuid) = machine(number);
        let silent = || io::Error::other("no answer");
        for who in [As::Firmware(0), As::Ipxe] {
            let granted = self
                .at(mac, || dhcp::attempt(&dhcp::client(), mac, uuid, who))
                .ok_or_else(silent)?;
            self.record.leased(granted.address, mac);
            let address = format!("{}/24", granted.address);
            self.world
                .host(mac)
                .ip(&["address", "replace", &address, "dev", "eth0"])
                .map_err(io::Error::other)?;
        }
        let from = self.record.address_of(mac).ok_or_else(silent)?;
        let id = Basis::Uuid(uuid).node_id();
        let mut script = self.script(mac, uuid, from)?;
        if !self.record.is_approved(id) {
            self.record.seen(id);
            self.order(&format!("/v1/nodes/{id}/approve"), &json!({}))?;
            self.record.approved(id);
            script = self.script(mac, uuid, from)?;
        }
        // Its boots end with the certificate, so they look like a loop.
        if script.contains("quarantined") {
            self.order(&format!("/v1/nodes/{id}/release"), &json!({}))?;
            script = self.script(mac, uuid, from)?;
        }
        let url = script
            .split_whitespace()
            .find(|word| word.contains("/overlay/"))
            .ok_or_else(silent)?
            .to_owned();
        let overlay = self.at(mac, || http::request("GET", &url, Some(from)))?;
        if overlay.status != 200 {
            return Err(silent());
        }
        let files = unpack::overlay(&overlay.body);
        let part: BootPart = serde_json::from_slice(&files["etc/meshd/boot.json"].1)?;
        let Some((token, roots_pem)) = part.token.zip(part.roots_pem) else { return Err(silent()) };
        let boot = Boot {
            node: part.node,
            session: part.session,
            token: token.expose().clone(),
            roots_pem,
        };
        assert_eq!(boot.node, id, "the overlay is this machine's");
        self.enrol(mac, boot, dice)
    }

    fn script(&self, mac: MacAddr, uuid: SystemUuid, from: Ipv4Addr) -> io::Result<String> {
        let url = format!(
            "http://{CENTRAL}:8080/boot/script?mac={mac}&uuid={uuid}&serial=S-{mac}&manufacturer=QEMU&product=crash&arch=x86_64"
        );
        Ok(self.at(mac, || http::request("GET", &url, Some(from)))?.text())
    }

    /// With the same key again after a cut, as the agent does: the answer may have been lost.
    fn enrol(&self, mac: MacAddr, boot: Boot, dice: &mut Dice) -> io::Result<()> {
        let csr = client::csr();
        for _ in 0..3 {
            match self.at(mac, || client::enrol(&boot, &csr)) {
                Ok(Ok(serial)) => {
                    self.record.enrolled(&boot, serial);
                    break;
                }
                // The machine has booted again since, or its time is over.
                Ok(Err(_)) => return Ok(()),
                Err(_) => thread::park_timeout(BREATH),
            }
        }
        // A thief with a key of its own, before and after restarts.
        if let Some(used) = self.record.used_token(dice) {
            match self.at(mac, || client::enrol(&used, &client::csr())) {
                Ok(Ok(serial)) => {
                    self.record.fault(format!("a used token bought the certificate {serial}"))
                }
                Ok(Err(401)) | Err(_) => self.record.refused(),
                Ok(Err(status)) => self.record.fault(format!("a used token was answered {status}")),
            }
        }
        Ok(())
    }

    fn order(&self, path: &str, body: &serde_json::Value) -> io::Result<()> {
        Admin::of(self.world).order(path, body)
    }

    fn give_orders(&self, mut dice: Dice) {
        let mut number = 0u64;
        while self.goes_on() {
            let Some(id) = self.record.some_node(&mut dice) else {
                thread::park_timeout(BREATH);
                continue;
            };
            let done = if dice.below(4) == 0 {
                let profile = ["discovery", "compute"][usize::try_from(dice.below(2)).unwrap()];
                self.record.will_assign(id, profile);
                let done = self.order(
                    &format!("/v1/nodes/{id}/assign-profile"),
                    &json!({ "profile": profile }),
                );
                done.map(|()| self.record.assigned(id, profile))
            } else {
                number += 1;
                self.record.will_set(id, number);
                let done = self.order(
                    &format!("/v1/nodes/{id}/vars"),
                    &json!({ "set": { "mpi_slots": number } }),
                );
                done.map(|()| self.record.set(id, number))
            };
            if done.is_err() {
                thread::park_timeout(BREATH);
            }
        }
    }
}
