//! Virtual machines with their volumes, slots and tasks.
//!
//! | module | what it holds |
//! | --- | --- |
//! | `slots` | slots: the list, approval, cleanup |
//! | `tasks` | tasks and their output |
//! | `vms` | virtual machines: the list, the page of one, its orders |
//! | `volumes` | files of virtual machines |

pub(super) mod slots;
pub(super) mod tasks;
pub(super) mod vms;
pub(super) mod volumes;

use crate::{html, plain_text::visible};
use maud::Markup;
use meshd_types::NodeId;

/// Rows of a page.
const ROWS: usize = 200;
/// Characters of a console or an output that a page shows, the last ones.
const MAX_OUTPUT: usize = 64 * 1024;

fn of_node(node: Option<NodeId>) -> Markup {
    node.map(|id| html::node_link(&id.to_string(), &id.to_string())).unwrap_or_default()
}

/// The end of an output as plain text.
fn tail(text: &str) -> String {
    let plain: Vec<char> = visible(text).chars().collect();
    plain[plain.len().saturating_sub(MAX_OUTPUT)..].iter().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn end_of_an_output_is_shown() {
        let long = "é".repeat(MAX_OUTPUT + 10);
        assert_eq!(tail(&long).chars().count(), MAX_OUTPUT);
    }
}
