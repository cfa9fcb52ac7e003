//! DHCP: the highest rate of discover-offer-request-ack that `perfdhcp` gets through with less than
//! 1 % of drops. meshd and Kea keep their leases on the disk; the echo responder keeps nothing, so
//! it shows what perfdhcp itself can do here.

mod echo;
mod kea;
mod perfdhcp;

use crate::frame::{CLIENT, Contender, Goal, RUNS, SERVER, Site, Table, Wire, medians};

/// perfdhcp writes its own address as giaddr, so it is the relay of a segment.
fn behind_relay() -> Site {
    let pool = "range = \"10.78.16.0-10.78.255.250\"\nnetmask = \"255.255.0.0\"\nlease = \"1h\"";
    let more = format!(
        "[[segment]]\nrelay = \"{CLIENT}\"\naddress = \"{SERVER}\"\nmode = \"authoritative\"\n{pool}\n"
    );
    Site { dhcp: "mode = \"off\"".to_owned(), more, ..Site::default() }
}

/// All rows of DHCP.
pub fn rows(table: &mut Table) -> anyhow::Result<()> {
    if !crate::frame::installed("perfdhcp") {
        table.skipped("perfdhcp");
        return Ok(());
    }
    let wire = Wire::new()?;
    let mut contenders = [
        Contender {
            name: "meshd",
            program: None,
            measure: Box::new(|| {
                let (_server, _) = behind_relay().serve(&wire)?;
                Ok([perfdhcp::highest_clean_rate(&wire)?])
            }),
        },
        Contender {
            name: "Kea",
            program: Some("kea-dhcp4"),
            measure: Box::new(|| {
                let _server = kea::start(&wire)?;
                Ok([perfdhcp::highest_clean_rate(&wire)?])
            }),
        },
        Contender {
            name: "echo",
            program: None,
            measure: Box::new(|| {
                let _responder = echo::start(&wire)?;
                Ok([perfdhcp::highest_clean_rate(&wire)?])
            }),
        },
    ];
    let [ours, kea, echo] = medians(RUNS, &mut contenders)[..] else {
        unreachable!("three contenders")
    };
    let Some([ours]) = ours else { return Ok(()) };
    if let Some([kea]) = kea {
        table.compare(
            "DHCP 4-way, durable leases, drops < 1 %",
            "/s",
            ours,
            ("Kea", kea),
            Goal::AtLeast(2.5),
        );
    }
    if let Some([echo]) = echo {
        table.compare("the same", "/s", ours, ("echo", echo), Goal::AtLeast(0.8));
    }
    Ok(())
}
