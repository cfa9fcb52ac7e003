//! Selects the lines of a log that stay, so that the output of one node does not displace that of
//! others. Pure.

use meshd_types::{NodeId, failpoint};
use serde::Deserialize;
use std::collections::BTreeMap;

/// The part of a stored line that names its node.
#[derive(Deserialize)]
struct LineOwner {
    node: NodeId,
}

/// Returns the lines that stay of at most `limit` bytes, in their order. Each node keeps its newest
/// lines: those in an equal share of the limit, and those in what other nodes leave of theirs.
pub(super) fn fair_shares(lines: &[u8], limit: u64) -> Vec<u8> {
    let mut sizes: BTreeMap<Option<NodeId>, u64> = BTreeMap::new();
    let lines: Vec<_> = lines
        .split_inclusive(|byte| *byte == b'\n')
        .map(|line| {
            let owner = serde_json::from_slice(line).ok().map(|LineOwner { node }| node);
            let owner = owner.filter(|_| failpoint::defends("output-share"));
            *sizes.entry(owner).or_default() += line.len() as u64;
            (owner, line)
        })
        .collect();
    let share = equal_share(sizes.values().copied().collect(), limit);
    let mut left: BTreeMap<_, _> = sizes.into_keys().map(|owner| (owner, share)).collect();
    let mut kept: Vec<&[u8]> = Vec::new();
    for (owner, line) in lines.into_iter().rev() {
        let Some(left) = left.get_mut(&owner) else { continue };
        let rest = left.checked_sub(line.len() as u64);
        if rest.is_some() {
            kept.push(line);
        }
        // The first line that does not fit ends the newest part of its node.
        *left = rest.unwrap_or_default();
    }
    kept.reverse();
    kept.concat()
}

/// Returns the largest share of the limit that each of these may have: those below it leave the
/// rest to the others.
fn equal_share(mut sizes: Vec<u64>, limit: u64) -> u64 {
    sizes.sort_unstable();
    let mut left = limit;
    let mut count = sizes.len() as u64;
    for size in sizes {
        let share = left / count.max(1);
        if size > share {
            return share;
        }
        left -= size;
        count -= 1;
    }
    u64::MAX
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn line(node: u8, number: usize, length: usize) -> Vec<u8> {
        format!("{{\"node\":\"{node:08x}\",\"data\":\"{number:0length$}\"}}\n").into_bytes()
    }

    #[test]
    fn node_below_its_share_keeps_all_and_leaves_the_rest_to_others() {
        assert_eq!(equal_share(vec![10, 500, 700], 110), 50);
        assert_eq!(equal_share(vec![10, 20], 30), u64::MAX);
        assert_eq!(equal_share(Vec::new(), 30), u64::MAX);
        let few = line(1, 0, 10);
        let flood: Vec<u8> = (0..100).flat_map(|number| line(2, number, 50)).collect();
        let kept = fair_shares(&[few.clone(), flood].concat(), 1_000);
        assert!(kept.starts_with(&few) && kept.ends_with(&line(2, 99, 50)));
        assert!((900..=1_000).contains(&kept.len()), "{}", kept.len());
    }

    proptest! {
        #[test]
        fn kept_lines_fit_and_each_node_keeps_its_newest_share(
            written in prop::collection::vec((0u8..5, 1usize..60), 0..60),
            limit in 0u64..4_000,
        ) {
            let lines: Vec<(u8, Vec<u8>)> = written
                .iter()
                .enumerate()
                .map(|(number, (node, length))| (*node, line(*node, number, *length)))
                .collect();
            let all = lines.iter().flat_map(|(_, line)| line.clone()).collect::<Vec<u8>>();
            let kept = fair_shares(&all, limit);
            prop_assert!(kept.len() as u64 <= limit);
            let nodes = lines.iter().map(|(node, _)| node).collect::<std::collections::BTreeSet<_>>();
            for node in &nodes {
                let own: Vec<u8> =
                    lines.iter().filter(|(of, _)| of == *node).flat_map(|(_, line)| line.clone()).collect();
                let stays: Vec<u8> = kept
                    .split_inclusive(|byte| *byte == b'\n')
                    .filter(|line| line.starts_with(format!("{{\"node\":\"{node:08x}\"").as_bytes()))
                    .flatten()
                    .copied()
                    .collect();
                prop_assert!(own.ends_with(&stays), "its newest part");
                // A line of at most 90 bytes does not fit.
                let share = limit / nodes.len() as u64;
                prop_assert!(stays.len() as u64 + 90 >= share.min(own.len() as u64));
            }
        }
    }
}
