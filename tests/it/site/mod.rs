//! The site: commands of operators and overlay authors, images, backups, and the state on disk.
//!
//! | module | what it holds |
//! | --- | --- |
//! | `authoring` | the commands of docs/overlays.md |
//! | `backup` | a rack boots from a restored backup |
//! | `build_commit` | both programs report the commit of their build |
//! | `clock` | the clock of the central node is wrong |
//! | `compat` | files and messages of an older meshd |
//! | `crash` | `kill -9` under load loses no acknowledged change |
//! | `disk` | full, read-only and damaged disks |
//! | `images` | images imported from a mirror, or built of any Linux |
//! | `init` | `meshd init` beside a real dnsmasq |
//! | `monitoring` | alert rules and dashboard with a real Prometheus |
//! | `package` | scripts of the Debian package |
//! | `secrets` | secrets of overlays |
//! | `ssh` | the overlay `ssh` with a real OpenSSH server |

mod authoring;
mod backup;
mod build_commit;
mod clock;
mod compat;
mod crash;
mod disk;
mod images;
mod init;
mod lab;
mod monitoring;
mod package;
mod secrets;
mod ssh;
