//! The boot chain with real clients, relays and servers beside ours.
//!
//! | module | what it holds |
//! | --- | --- |
//! | `captures` | packets of real firmware, and meshd's answers to them |
//! | `chain` | the whole chain over real sockets, with a fake machine and a real agent |
//! | `contract` | every address that an answer names is served |
//! | `dhcp` | DHCP with real clients, a real relay and foreign servers |
//! | `http` | the boot API with a cache, curl and many machines |
//! | `identity` | machines that show the same hardware, and machines whose hardware changed |
//! | `interface` | the interface of a segment is made again or has another address |
//! | `mesh_init` | the real mesh-init in a root as Alpine's initramfs leaves it |
//! | `ndp` | IPv6 router solicitations |
//! | `parsers` | the fuzz targets with random bytes and the fuzz corpus |
//! | `refusals` | requests that are refused before their end, or dropped |
//! | `sessions` | boots that stall or loop, and the reports about them |
//! | `tftp` | TFTP behind a path with a smaller MTU |
//! | `storm` | more machines than can be served at once |

mod captures;
mod chain;
pub mod contract;
pub mod dhcp;
mod http;
mod identity;
mod interface;
pub mod mesh_init;
pub mod ndp;
mod parsers;
pub mod refusals;
pub mod sessions;
mod storm;
mod tftp;
