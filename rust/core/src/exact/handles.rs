//! What one worker calls its blocks: handle to node, 12 bytes and a byte of the table for each.

use hashbrown::HashTable;
use hashbrown::hash_table::IntoIter;

use super::nodes::NodeId;
use crate::events::{Handle, Medium};
use crate::key::combine;

/// A handle as two words, so that entries pack; its node, and above it a bit for each medium that has the block.
#[derive(Debug, Clone, Copy)]
pub(super) struct Entry {
    handle: [u32; 2],
    node_and_media: u32,
}

const NODE_BITS: u32 = 29;

/// Nodes that an entry can name.
pub(super) const MAX_NODES: usize = 1 << NODE_BITS;

impl Entry {
    fn handle(&self) -> u64 {
        u64::from(self.handle[0]) << 32 | u64::from(self.handle[1])
    }

    pub(super) fn node(&self) -> NodeId {
        NodeId(self.node_and_media & (MAX_NODES as u32 - 1))
    }
}

/// The handles of one view.
#[derive(Debug, Default)]
pub(super) struct Handles {
    table: HashTable<Entry>,
}

/// Handles come from outside: an engine's need not be spread.
fn hash(handle: u64) -> u64 {
    combine(handle, 0)
}

fn bit(medium: Medium) -> u32 {
    1 << (NODE_BITS + medium as u32)
}

impl Handles {
    pub(super) fn len(&self) -> usize {
        self.table.len()
    }

    pub(super) fn bytes(&self) -> usize {
        (size_of::<Entry>() + 1) * self.table.capacity()
    }

    pub(super) fn get(&self, Handle(handle): Handle) -> Option<NodeId> {
        self.table.find(hash(handle), |entry| entry.handle() == handle).map(Entry::node)
    }

    /// [`get`](Self::get), and notes that this medium has the block.
    pub(super) fn mark(&mut self, Handle(handle): Handle, medium: Medium) -> Option<NodeId> {
        let entry = self.table.find_mut(hash(handle), |entry| entry.handle() == handle)?;
        entry.node_and_media |= bit(medium);
        Some(entry.node())
    }

    /// Adds a handle that is not there yet.
    pub(super) fn add(&mut self, Handle(handle): Handle, node: NodeId, medium: Medium) {
        let entry =
            Entry { handle: [(handle >> 32) as u32, handle as u32], node_and_media: node.0 | bit(medium) };
        self.table.insert_unique(hash(handle), entry, |entry| hash(entry.handle()));
    }

    /// This medium has the block no longer. Its node, if no other one has it.
    pub(super) fn remove(&mut self, Handle(handle): Handle, medium: Medium) -> Option<NodeId> {
        let mut entry = self.table.find_entry(hash(handle), |entry| entry.handle() == handle).ok()?;
        let media = &mut entry.get_mut().node_and_media;
        *media &= !bit(medium);
        if *media >> NODE_BITS != 0 {
            return None;
        }
        Some(entry.remove().0.node())
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (Handle, NodeId)> + '_ {
        self.table.iter().map(|entry| (Handle(entry.handle()), entry.node()))
    }

    pub(super) fn into_nodes(self) -> IntoIter<Entry> {
        self.table.into_iter()
    }
}
