//! The boot chain on real firmware, from power-on to an approved node.
//!
//! | module | what it holds |
//! | --- | --- |
//! | `first_light` | BIOS and UEFI from power-on to online, then another profile |
//! | `fails_closed` | a node without its overlay panics and reboots |
//! | `images` | images that the builder never writes |
//! | `let_in` | manual approval, a boot by TFTP alone, and a central node that is killed meanwhile |
//! | `neighbours` | the site's own DHCP server, router and relay |
//! | `other_networks` | proxy mode and relayed mode |
//! | `recipe` | the image, built from its recipe |
//! | `stranger` | a hostile machine on the boot LAN |

mod fails_closed;
mod first_light;
mod images;
mod let_in;
mod neighbours;
mod other_networks;
mod recipe;
mod stranger;
