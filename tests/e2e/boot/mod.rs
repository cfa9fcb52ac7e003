//! The boot chain on real firmware, from power-on to an approved node.
//!
//! | module | what it holds |
//! | --- | --- |
//! | `bios_and_uefi` | BIOS and UEFI from power-on to online, then another profile |
//! | `fails_closed` | a node without its overlay panics and reboots |
//! | `images` | images that the builder never writes |
//! | `approval` | manual approval, a boot by TFTP alone, and a central node that is killed meanwhile |
//! | `site_services` | the site's own DHCP server, router and relay |
//! | `other_networks` | proxy mode and relayed mode |
//! | `recipe` | the image, built from its recipe |
//! | `alpine_root` | Alpine as a root image, in memory and tethered |
//! | `attacker` | a hostile machine on the boot LAN |

mod fails_closed;
mod bios_and_uefi;
mod images;
mod approval;
mod site_services;
mod other_networks;
mod recipe;
mod attacker;
mod alpine_root;
