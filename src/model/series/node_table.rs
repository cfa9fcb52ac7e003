//! Codes of many nodes in one interval: a column for each minute of an hour, or each hour of a day.
//!
//! ```text
//! file     "MSN1" │ columns, u8 │ series, u8 │ nodes, u32 │ check of the index, 8 bytes │ index │ records
//! index    node ID, 8 characters │ length of its record, u16         for each node, sorted
//! record   a packed row for each series
//! ```
//! A reader of one node reads the index and one record.

use super::{
    node_series::{NODE_SERIES, NodeCodes, NodeSeries, UNKNOWN},
    packed_codes::{pack, unpack},
};
use meshd_types::{Digest, NodeId};
use std::collections::BTreeMap;

const MAGIC: &[u8; 4] = b"MSN1";
/// Bytes before the index.
pub const TABLE_HEAD: usize = 4 + 1 + 1 + 4 + CHECK;
const CHECK: usize = 8;
/// Bytes of a node in the index.
const INDEX_ENTRY: usize = ID + 2;
const ID: usize = 8;
/// Maximum number of nodes of one table. More nodes have no series.
pub const MAX_TABLE_NODES: usize = 20_000;

/// The codes of nodes by column.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeTable {
    columns: usize,
    /// Series after series, each with all columns.
    nodes: BTreeMap<NodeId, Box<[u8]>>,
}

/// The place of a record, in bytes after the index.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecordPlace {
    pub offset: u64,
    pub length: usize,
}

impl NodeTable {
    pub fn new(columns: usize) -> Self {
        NodeTable { columns, nodes: BTreeMap::new() }
    }

    /// Stores the codes of a node in a column. A node beyond [`MAX_TABLE_NODES`] is left out.
    pub fn set(&mut self, node: NodeId, column: usize, codes: &NodeCodes) {
        if column >= self.columns
            || self.nodes.len() >= MAX_TABLE_NODES && !self.nodes.contains_key(&node)
        {
            return;
        }
        let empty = || vec![UNKNOWN; NODE_SERIES * self.columns].into_boxed_slice();
        let row = self.nodes.entry(node).or_insert_with(empty);
        for (series, code) in codes.iter().enumerate() {
            row[series * self.columns + column] = *code;
        }
    }

    /// Returns the codes of all series of a node, each with all columns.
    pub fn node(&self, node: NodeId) -> Option<Vec<Vec<u8>>> {
        Some(self.nodes.get(&node)?.chunks(self.columns).map(<[u8]>::to_vec).collect())
    }

    /// Returns the mean of all columns for each node.
    pub fn means(&self) -> impl Iterator<Item = (NodeId, NodeCodes)> {
        self.nodes.iter().map(|(node, row)| {
            let mean = |series: usize| {
                let codes = &row[series * self.columns..][..self.columns];
                NodeSeries::ALL[series].mean(codes)
            };
            (*node, std::array::from_fn(mean))
        })
    }

    pub fn is_empty(&self) -> bool {
        self.nodes.is_empty()
    }

    /// Returns the table as a file.
    pub fn encode(&self) -> Vec<u8> {
        let mut index = Vec::with_capacity(self.nodes.len() * INDEX_ENTRY);
        let mut records = Vec::new();
        for (node, row) in &self.nodes {
            let begin = records.len();
            row.chunks(self.columns).for_each(|codes| pack(codes, &mut records));
            let length = u16::try_from(records.len() - begin).expect("a row has below 200 bytes");
            index.extend_from_slice(node.to_string().as_bytes());
            index.extend_from_slice(&length.to_le_bytes());
        }
        let columns = u8::try_from(self.columns).expect("60 or 24");
        let series = u8::try_from(NODE_SERIES).expect("few series");
        let nodes = u32::try_from(self.nodes.len()).expect("MAX_TABLE_NODES");
        let mut file = MAGIC.to_vec();
        file.extend_from_slice(&[columns, series]);
        file.extend_from_slice(&nodes.to_le_bytes());
        file.extend_from_slice(&check(&index));
        file.append(&mut index);
        file.append(&mut records);
        file
    }

    /// Reads a file of so many columns. A record that is damaged is left out. `None` if the file is
    /// none.
    pub fn decode(file: &[u8], columns: usize) -> Option<Self> {
        let (head, rest) = file.split_at_checked(TABLE_HEAD)?;
        let (index, mut records) = rest.split_at_checked(index_length(head, columns)?)?;
        let mut table = NodeTable::new(columns);
        for (node, length) in index_entries(head, index)? {
            let (record, after) = records.split_at_checked(length)?;
            if let (Some(node), Some(rows)) = (node, unpack_record(record, columns)) {
                table.nodes.insert(node, rows.concat().into_boxed_slice());
            }
            records = after;
        }
        Some(table)
    }
}

fn check(index: &[u8]) -> [u8; CHECK] {
    let digest = Digest::of(index);
    std::array::from_fn(|at| digest.0[at])
}

/// Returns the length of the index in bytes, from the first [`TABLE_HEAD`] bytes of a file.
pub fn index_length(head: &[u8], columns: usize) -> Option<usize> {
    let (start, rest) = head.split_first_chunk::<6>()?;
    let nodes = u32::from_le_bytes(*rest.first_chunk::<4>()?) as usize;
    let is_known = &start[..4] == MAGIC
        && usize::from(start[4]) == columns
        && usize::from(start[5]) == NODE_SERIES;
    (is_known && nodes <= MAX_TABLE_NODES).then_some(nodes * INDEX_ENTRY)
}

/// Reads the index. `None` if it is damaged.
fn index_entries<'a>(
    head: &[u8],
    index: &'a [u8],
) -> Option<impl Iterator<Item = (Option<NodeId>, usize)> + use<'a>> {
    if head.get(TABLE_HEAD - CHECK..TABLE_HEAD)? != check(index) {
        return None;
    }
    Some(index.chunks_exact(INDEX_ENTRY).map(|entry| {
        let (id, length) = entry.split_at(ID);
        let node = std::str::from_utf8(id).ok().and_then(|id| id.parse().ok());
        (node, usize::from(u16::from_le_bytes([length[0], length[1]])))
    }))
}

/// Finds the record of a node in an index.
pub fn find_record(head: &[u8], index: &[u8], node: NodeId) -> Option<RecordPlace> {
    let mut offset = 0;
    for (found, length) in index_entries(head, index)? {
        if found == Some(node) {
            return Some(RecordPlace { offset, length });
        }
        offset += length as u64;
    }
    None
}

/// Reads a record: the codes of all series, each with all columns.
pub fn unpack_record(mut record: &[u8], columns: usize) -> Option<Vec<Vec<u8>>> {
    let mut rows = Vec::with_capacity(NODE_SERIES);
    for _ in 0..NODE_SERIES {
        let (codes, after) = unpack(record, columns)?;
        rows.push(codes);
        record = after;
    }
    record.is_empty().then_some(rows)
}

#[cfg(test)]
mod tests {
    use super::*;
    use meshd_types::{Basis, MacAddr};
    use proptest::prelude::*;

    fn node(number: u8) -> NodeId {
        Basis::Mac(MacAddr([2, 0, 0, 0, 0, number])).node_id()
    }

    fn tables() -> impl Strategy<Value = NodeTable> {
        let cell = (any::<u8>(), 0..24_usize, any::<[u8; NODE_SERIES]>());
        prop::collection::vec(cell, 0..80).prop_map(|cells| {
            let mut table = NodeTable::new(24);
            for (number, column, codes) in cells {
                table.set(node(number), column, &codes);
            }
            table
        })
    }

    proptest! {
        #[test]
        fn table_round_trips_and_each_node_is_found_by_the_index(table in tables(), number in any::<u8>()) {
            let file = table.encode();
            prop_assert_eq!(NodeTable::decode(&file, 24), Some(table.clone()));
            prop_assert_eq!(NodeTable::decode(&file, 60), None);
            let (head, rest) = file.split_at(TABLE_HEAD);
            let (index, records) = rest.split_at(index_length(head, 24).expect("an index"));
            let found = find_record(head, index, node(number)).and_then(|place| {
                let at = usize::try_from(place.offset).expect("short");
                unpack_record(&records[at..at + place.length], 24)
            });
            prop_assert_eq!(found, table.node(node(number)));
        }

        #[test]
        fn damaged_file_is_read_without_a_panic(table in tables(), at in any::<prop::sample::Index>(), with in 1..=255_u8) {
            let mut file = table.encode();
            let at = at.index(file.len());
            file[at] ^= with;
            let _ = NodeTable::decode(&file, 24);
            let _ = NodeTable::decode(&file[..at], 24);
        }
    }

    #[test]
    fn column_beyond_the_table_is_left_out_and_means_ignore_unknown() {
        let mut table = NodeTable::new(60);
        table.set(node(1), 60, &[1; NODE_SERIES]);
        assert!(table.is_empty());
        table.set(node(1), 0, &[10; NODE_SERIES]);
        table.set(node(1), 59, &[20, UNKNOWN, 10, 10, 10, 10, 10]);
        let means: Vec<_> = table.means().collect();
        assert_eq!(means, [(node(1), [15, 10, 10, 10, 10, 10, 10])]);
    }
}
