//! Pages of VMs with their volumes, slots, containers and tasks.
//!
//! | module | content |
//! | --- | --- |
//! | `containers` | containers: the list, the page of one container, its orders, logs of replicas |
//! | `slots` | slots: the list, approval, cleanup |
//! | `tasks` | tasks and their output |
//! | `vms` | VMs: the list, the page of one VM, its orders |
//! | `volumes` | volumes of VMs, and images of containers |

pub(super) mod containers;
pub(super) mod slots;
pub(super) mod tasks;
pub(super) mod vms;
pub(super) mod volumes;

use crate::plain_text::visible;

/// Number of rows per page.
const ROWS: usize = 200;
/// Maximum number of characters of a console or an output on a page. The page shows the last
/// characters.
const MAX_OUTPUT: usize = 64 * 1024;

/// Returns the end of an output as plain text.
fn tail(text: &str) -> String {
    let plain: Vec<char> = visible(text).chars().collect();
    plain[plain.len().saturating_sub(MAX_OUTPUT)..].iter().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_output_is_truncated_to_its_end() {
        let long = "é".repeat(MAX_OUTPUT + 10);
        assert_eq!(tail(&long).chars().count(), MAX_OUTPUT);
    }
}
