//! `meshd id`: computes the node ID of a machine.

use crate::cli::{Context, Failure, output::print};
use clap::Args;
use meshd_types::{Basis, DenyList, Hardware, MacAddr, SystemUuid};

/// Print the node ID, then the facts that determine it
#[derive(Debug, Args)]
pub(crate) struct Id {
    #[command(flatten)]
    machine: Machine,
}

/// Identifying facts of a machine
#[derive(Debug, Args)]
pub(crate) struct Machine {
    /// SMBIOS system UUID, as in product_uuid of Linux
    #[arg(long, value_name = "U")]
    uuid: Option<SystemUuid>,
    /// SMBIOS manufacturer
    #[arg(long, value_name = "M", default_value = "", hide_default_value = true)]
    manufacturer: String,
    /// SMBIOS product
    #[arg(long, value_name = "P", default_value = "", hide_default_value = true)]
    product: String,
    /// SMBIOS serial number
    #[arg(long, value_name = "S", default_value = "", hide_default_value = true)]
    serial: String,
    /// MAC address of a NIC; repeatable, the lowest counts
    #[arg(long = "mac", value_name = "A")]
    macs: Vec<MacAddr>,
}

impl Machine {
    /// Returns the identifier from which the node ID is derived.
    pub(crate) fn basis(self, deny: &DenyList) -> Result<Basis, Failure> {
        let Machine { uuid, manufacturer, product, serial, macs } = self;
        let hardware = Hardware { uuid, manufacturer, product, serial, macs };
        hardware.basis(deny).ok_or_else(|| {
            Failure::new(
                "no reliable identity: this machine reports only placeholders",
                "give a real --uuid, or --manufacturer, --product and --serial, or a --mac",
            )
        })
    }
}

impl Id {
    pub(crate) fn run(self, context: &Context) -> Result<(), Failure> {
        // Without a site file, only well-known placeholder values are ignored.
        let deny = match &context.site {
            Some(_) => context.site()?.identity.deny,
            None => DenyList::new(),
        };
        let basis = self.machine.basis(&deny)?;
        print::write(&format!("{}\n{basis}\n", basis.node_id()))
    }
}
