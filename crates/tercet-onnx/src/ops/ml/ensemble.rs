//! The trees of an ensemble, in one list of nodes: inner nodes first, then leaves.

use std::collections::HashMap;

use crate::error::NodeErrorKind;

/// The comparison between a feature and a node's threshold.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum SplitMode {
    LessOrEqual,
    Less,
    GreaterOrEqual,
    Greater,
    Equal,
    NotEqual,
}

/// An inner node.
#[derive(Clone, Debug)]
pub(super) struct SplitNode {
    pub(super) feature: i64,
    pub(super) threshold: f64,
    pub(super) mode: SplitMode,
    /// NaN features follow the true branch.
    pub(super) nan_is_true: bool,
    /// The next node if the comparison is false or true.
    pub(super) next: [TreeNodeIndex; 2],
}

/// The index of an inner node or of a leaf.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum TreeNodeIndex {
    Inner(usize),
    Leaf(usize),
}

/// All trees of an ensemble.
#[derive(Clone, Debug, Default)]
pub(super) struct TreeEnsemble {
    pub(super) inner: Vec<SplitNode>,
    /// For each leaf, its weights as (target, weight).
    pub(super) leaves: Vec<Vec<(usize, f64)>>,
    /// The root of each tree.
    pub(super) roots: Vec<TreeNodeIndex>,
}

/// The node lists of `TreeEnsembleClassifier` and `TreeEnsembleRegressor`, all of the same length.
pub(super) struct TreeNodeLists<'a> {
    pub(super) trees: &'a [i64],
    pub(super) ids: &'a [i64],
    pub(super) features: &'a [i64],
    pub(super) thresholds: Vec<f64>,
    pub(super) modes: Vec<String>,
    pub(super) when_true: &'a [i64],
    pub(super) when_false: &'a [i64],
    pub(super) nan_is_true: &'a [i64],
}

/// The leaf weights: tree and node, target, weight.
pub(super) struct LeafWeights<'a> {
    pub(super) trees: &'a [i64],
    pub(super) ids: &'a [i64],
    pub(super) targets: &'a [i64],
    pub(super) weights: Vec<f64>,
}

fn bad(what: impl Into<String>) -> NodeErrorKind {
    NodeErrorKind::unsupported(what)
}

/// The mode with this name; `None` for a leaf.
fn mode(name: &str) -> Result<Option<SplitMode>, NodeErrorKind> {
    Ok(Some(match name {
        "LEAF" => return Ok(None),
        "BRANCH_LEQ" => SplitMode::LessOrEqual,
        "BRANCH_LT" => SplitMode::Less,
        "BRANCH_GTE" => SplitMode::GreaterOrEqual,
        "BRANCH_GT" => SplitMode::Greater,
        "BRANCH_EQ" => SplitMode::Equal,
        "BRANCH_NEQ" => SplitMode::NotEqual,
        other => {
            let reason = format!("`{other}` is not known");
            return Err(NodeErrorKind::attribute("nodes_modes", reason));
        }
    }))
}

impl TreeEnsemble {
    /// Builds the trees from node lists. The first node of a tree is its root.
    pub(super) fn from_lists(
        lists: &TreeNodeLists<'_>,
        weights: &LeafWeights<'_>,
    ) -> Result<TreeEnsemble, NodeErrorKind> {
        let n = lists.ids.len();
        let lengths = [
            ("nodes_treeids", lists.trees.len()),
            ("nodes_featureids", lists.features.len()),
            ("nodes_values", lists.thresholds.len()),
            ("nodes_modes", lists.modes.len()),
            ("nodes_truenodeids", lists.when_true.len()),
            ("nodes_falsenodeids", lists.when_false.len()),
        ];
        for (name, found) in lengths {
            if found != n {
                let reason = format!("has {found} elements, but `nodes_nodeids` has {n}");
                return Err(NodeErrorKind::attribute(name, reason));
            }
        }
        if !lists.nan_is_true.is_empty() && lists.nan_is_true.len() != n {
            let name = "nodes_missing_value_tracks_true";
            return Err(NodeErrorKind::attribute(
                name,
                format!("must have {n} elements"),
            ));
        }
        let mut ensemble = TreeEnsemble::default();
        let mut places: HashMap<(i64, i64), TreeNodeIndex> = HashMap::with_capacity(n);
        let mut modes = Vec::with_capacity(n);
        let (mut inner, mut leaves) = (0, 0);
        let mut seen = std::collections::HashSet::new();
        for i in 0..n {
            let own = mode(&lists.modes[i])?;
            let (count, place) = match own {
                Some(_) => (
                    &mut inner,
                    TreeNodeIndex::Inner as fn(usize) -> TreeNodeIndex,
                ),
                None => (
                    &mut leaves,
                    TreeNodeIndex::Leaf as fn(usize) -> TreeNodeIndex,
                ),
            };
            let place = place(*count);
            *count += 1;
            modes.push(own);
            let key = (lists.trees[i], lists.ids[i]);
            if places.insert(key, place).is_some() {
                return Err(bad(format!(
                    "node {} of tree {} occurs twice",
                    key.1, key.0
                )));
            }
            if seen.insert(key.0) {
                ensemble.roots.push(place);
            }
        }
        for (i, own) in modes.iter().enumerate() {
            let Some(mode) = *own else { continue };
            let tree = lists.trees[i];
            let find = |id: i64| {
                let missing = || {
                    bad(format!(
                        "node {} of tree {tree} refers to node {id}, which does not exist",
                        lists.ids[i]
                    ))
                };
                places.get(&(tree, id)).copied().ok_or_else(missing)
            };
            ensemble.inner.push(SplitNode {
                feature: lists.features[i],
                threshold: lists.thresholds[i],
                mode,
                nan_is_true: lists.nan_is_true.get(i).is_some_and(|t| *t != 0),
                next: [find(lists.when_false[i])?, find(lists.when_true[i])?],
            });
        }
        ensemble.leaves = vec![Vec::new(); leaves];
        ensemble.weigh(weights, &places)?;
        Ok(ensemble)
    }

    fn weigh(
        &mut self,
        weights: &LeafWeights<'_>,
        places: &HashMap<(i64, i64), TreeNodeIndex>,
    ) -> Result<(), NodeErrorKind> {
        let n = weights.weights.len();
        if [weights.trees, weights.ids, weights.targets]
            .iter()
            .any(|l| l.len() != n)
        {
            return Err(bad("the leaf weight lists differ in length"));
        }
        for i in 0..n {
            let key = (weights.trees[i], weights.ids[i]);
            let Some(TreeNodeIndex::Leaf(leaf)) = places.get(&key) else {
                return Err(bad(format!(
                    "a weight belongs to node {} of tree {}, which is not a leaf",
                    key.1, key.0
                )));
            };
            let target = usize::try_from(weights.targets[i]);
            let target = target.map_err(|_| bad(format!("a target is {}", weights.targets[i])))?;
            self.leaves[*leaf].push((target, weights.weights[i]));
        }
        Ok(())
    }

    /// The maximum number of comparisons on a path to a leaf. A cycle is an error.
    pub(super) fn depth(&self) -> Result<usize, NodeErrorKind> {
        /// The state of a node in the depth-first search.
        #[derive(Clone, Copy)]
        enum TreeNodeState {
            New,
            Under,
            Done(usize),
        }
        let mut states = vec![TreeNodeState::New; self.inner.len()];
        let depth_of = |states: &[TreeNodeState], place: TreeNodeIndex| match place {
            TreeNodeIndex::Leaf(_) => Some(0),
            TreeNodeIndex::Inner(at) => match states[at] {
                TreeNodeState::Done(depth) => Some(depth),
                TreeNodeState::New | TreeNodeState::Under => None,
            },
        };
        let mut greatest = 0;
        for root in &self.roots {
            let TreeNodeIndex::Inner(root) = *root else {
                continue;
            };
            let mut stack = vec![root];
            while let Some(at) = stack.last().copied() {
                let next = self.inner[at].next;
                let known = next.map(|p| depth_of(&states, p));
                if let [Some(a), Some(b)] = known {
                    states[at] = TreeNodeState::Done(1 + a.max(b));
                    stack.pop();
                    continue;
                }
                states[at] = TreeNodeState::Under;
                for (place, known) in next.into_iter().zip(known) {
                    let (TreeNodeIndex::Inner(below), None) = (place, known) else {
                        continue;
                    };
                    if matches!(states[below], TreeNodeState::Under) {
                        return Err(bad("the nodes of a tree form a cycle"));
                    }
                    stack.push(below);
                }
            }
            greatest = greatest.max(depth_of(&states, TreeNodeIndex::Inner(root)).unwrap_or(0));
        }
        Ok(greatest)
    }
}

/// The node lists of `TreeEnsemble`: inner nodes and leaves in separate lists.
pub(super) struct SeparateTreeNodes<'a> {
    pub(super) roots: &'a [i64],
    pub(super) features: &'a [i64],
    pub(super) thresholds: Vec<f64>,
    pub(super) modes: Vec<i64>,
    pub(super) nan_is_true: &'a [i64],
    /// The next node if the comparison is false or true, and whether it is a leaf.
    pub(super) next: [(&'a [i64], &'a [i64]); 2],
    pub(super) targets: &'a [i64],
    pub(super) weights: Vec<f64>,
    /// The concatenated sets of membership nodes, with NaN after each set.
    pub(super) members: Vec<f64>,
}

/// The mode number of set membership.
const MEMBER: i64 = 6;

impl TreeEnsemble {
    /// Builds the trees from separate lists. A membership node becomes a chain of equality nodes.
    pub(super) fn from_separate(
        lists: &SeparateTreeNodes<'_>,
    ) -> Result<TreeEnsemble, NodeErrorKind> {
        let (n, leaves) = (lists.features.len(), lists.targets.len());
        let of_nodes = lists
            .next
            .iter()
            .flat_map(|(ids, are)| [ids.len(), are.len()]);
        let mut lengths = of_nodes.chain([lists.thresholds.len(), lists.modes.len()]);
        if lengths.any(|len| len != n) || lists.weights.len() != leaves {
            return Err(bad("the node or leaf lists differ in length"));
        }
        if !lists.nan_is_true.is_empty() && lists.nan_is_true.len() != n {
            return Err(bad(
                "`nodes_missing_value_tracks_true` differs in length from the nodes",
            ));
        }
        let mut ensemble = TreeEnsemble::default();
        for (target, weight) in lists.targets.iter().zip(&lists.weights) {
            let place =
                usize::try_from(*target).map_err(|_| bad(format!("a target is {target}")))?;
            ensemble.leaves.push(vec![(place, *weight)]);
        }
        let within = |id: i64, count: usize| {
            let place = usize::try_from(id).ok().filter(|p| *p < count);
            place.ok_or_else(|| {
                bad(format!(
                    "node or leaf index {id} is out of range for {count}"
                ))
            })
        };
        let mut sets = lists.members.split(|v| v.is_nan());
        let mut more = Vec::new();
        for i in 0..n {
            let place = |(ids, are): (&[i64], &[i64])| -> Result<TreeNodeIndex, NodeErrorKind> {
                Ok(match are[i] {
                    0 => TreeNodeIndex::Inner(within(ids[i], n)?),
                    _ => TreeNodeIndex::Leaf(within(ids[i], leaves)?),
                })
            };
            let mut node = SplitNode {
                feature: lists.features[i],
                threshold: lists.thresholds[i],
                mode: SplitMode::Equal,
                nan_is_true: lists.nan_is_true.get(i).is_some_and(|t| *t != 0),
                next: [place(lists.next[0])?, place(lists.next[1])?],
            };
            match lists.modes[i] {
                MEMBER => {
                    let set = sets.next().unwrap_or_default();
                    let (first, rest) = set
                        .split_first()
                        .ok_or_else(|| bad("a membership set is empty"))?;
                    node.threshold = *first;
                    let otherwise = node.next[0];
                    // Each further member is compared if all previous ones differ.
                    let mut behind = otherwise;
                    for member in rest.iter().rev() {
                        more.push(SplitNode {
                            threshold: *member,
                            next: [behind, node.next[1]],
                            ..node.clone()
                        });
                        behind = TreeNodeIndex::Inner(n + more.len() - 1);
                    }
                    node.next[0] = behind;
                }
                number => node.mode = numbered(number)?,
            }
            ensemble.inner.push(node);
        }
        ensemble.inner.extend(more);
        for root in lists.roots {
            ensemble.roots.push(TreeNodeIndex::Inner(within(*root, n)?));
        }
        Ok(ensemble)
    }
}

fn numbered(number: i64) -> Result<SplitMode, NodeErrorKind> {
    Ok(match number {
        0 => SplitMode::LessOrEqual,
        1 => SplitMode::Less,
        2 => SplitMode::GreaterOrEqual,
        3 => SplitMode::Greater,
        4 => SplitMode::Equal,
        5 => SplitMode::NotEqual,
        other => {
            let reason = format!("{other} is not known");
            return Err(NodeErrorKind::attribute("nodes_modes", reason));
        }
    })
}
