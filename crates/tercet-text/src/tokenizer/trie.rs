//! A set of byte strings with ids, searched byte by byte.
//!
//! Nodes are numbered level by level, so the children of a node are consecutive. Three arrays store
//! everything, with at most nine bytes per byte of the strings.

use std::collections::VecDeque;

const NO_ID: u32 = u32::MAX;

/// A trie of strings and their ids.
///
/// ```
/// use tercet_text::internals::Trie;
/// let trie = Trie::new([("a", 0), ("ab", 1)].into_iter());
/// assert_eq!(trie.longest(b"abc"), Some((2, 1)));
/// ```
#[derive(Debug, Default)]
pub struct Trie {
    /// The children of node `i` are the nodes `children[i]..children[i + 1]`.
    children: Vec<u32>,
    /// The byte that leads to each node, ascending among siblings.
    labels: Vec<u8>,
    ids: Vec<u32>,
}

impl Trie {
    /// Builds a trie; a duplicate string gets its smallest id.
    pub fn new<'a>(strings: impl Iterator<Item = (&'a str, u32)>) -> Trie {
        let mut sorted: Vec<(&[u8], u32)> = strings.map(|(s, id)| (s.as_bytes(), id)).collect();
        sorted.sort_unstable();
        sorted.dedup_by_key(|entry| entry.0);
        let mut trie = Trie {
            labels: vec![0],
            ids: vec![NO_ID],
            children: vec![1],
        };
        let mut waiting = VecDeque::from([(0, 0, sorted.len(), 0)]);
        while let Some((node, mut start, end, depth)) = waiting.pop_front() {
            if start < end && sorted[start].0.len() == depth {
                trie.ids[node] = sorted[start].1;
                start += 1;
            }
            while start < end {
                let label = sorted[start].0[depth];
                let same = sorted[start..end].partition_point(|(s, _)| s[depth] == label);
                waiting.push_back((trie.labels.len(), start, start + same, depth + 1));
                trie.labels.push(label);
                trie.ids.push(NO_ID);
                start += same;
            }
            trie.children.push(trie.labels.len() as u32);
        }
        trie
    }

    /// The strings that are prefixes of `text`, shortest first: their lengths and ids.
    pub fn prefixes<'a>(&'a self, text: &'a [u8]) -> impl Iterator<Item = (usize, u32)> + 'a {
        let mut node = 0;
        let nodes = text.iter().map_while(move |byte| {
            let start = *self.children.get(node)? as usize;
            let end = *self.children.get(node + 1)? as usize;
            node = start + self.labels[start..end].binary_search(byte).ok()?;
            Some(node)
        });
        let lens = nodes.zip(1..);
        lens.filter_map(|(node, len)| (self.ids[node] != NO_ID).then_some((len, self.ids[node])))
    }

    /// The longest string that is a prefix of `text`.
    pub fn longest(&self, text: &[u8]) -> Option<(usize, u32)> {
        self.prefixes(text).last()
    }
}
