//! Trees of an ensemble as a file has them, in one list of nodes: inner ones first, then leaves.

use std::collections::HashMap;

use crate::error::NodeErrorKind;

/// How a feature is compared with a node's threshold.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum SplitMode {
    LessOrEqual,
    Less,
    GreaterOrEqual,
    Greater,
    Equal,
    NotEqual,
}

/// A node that asks.
#[derive(Clone, Debug)]
pub(super) struct SplitNode {
    pub(super) feature: i64,
    pub(super) threshold: f64,
    pub(super) mode: SplitMode,
    /// A feature that is NaN goes where a true answer goes.
    pub(super) nan_is_true: bool,
    /// Where a false and a true answer lead.
    pub(super) next: [TreeNodeIndex; 2],
}

/// A node by its place among its kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum TreeNodeIndex {
    Inner(usize),
    Leaf(usize),
}

/// All trees.
#[derive(Clone, Debug, Default)]
pub(super) struct TreeEnsemble {
    pub(super) inner: Vec<SplitNode>,
    /// Weights of each leaf by target.
    pub(super) leaves: Vec<Vec<(usize, f64)>>,
    /// Where each tree begins.
    pub(super) roots: Vec<TreeNodeIndex>,
}

/// Nodes as the files of `TreeEnsembleClassifier` and `TreeEnsembleRegressor` have them: lists of one length.
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

/// Weights of leaves: tree and node, target, weight.
pub(super) struct LeafWeights<'a> {
    pub(super) trees: &'a [i64],
    pub(super) ids: &'a [i64],
    pub(super) targets: &'a [i64],
    pub(super) weights: Vec<f64>,
}

fn bad(what: impl Into<String>) -> NodeErrorKind {
    NodeErrorKind::unsupported(what)
}

/// The mode by its name; none for a leaf.
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
    /// The trees of lists. Each begins at its first node.
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
                let reason = format!("has {found} elements, `nodes_nodeids` has {n}");
                return Err(NodeErrorKind::attribute(name, reason));
            }
        }
        if !lists.nan_is_true.is_empty() && lists.nan_is_true.len() != n {
            let name = "nodes_missing_value_tracks_true";
            return Err(NodeErrorKind::attribute(
                name,
                format!("has not {n} elements"),
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
                    "node {} of tree {} is there twice",
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
                        "node {} of tree {tree} leads to node {id}, which is none",
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
            return Err(bad("lists of weights of leaves differ in length"));
        }
        for i in 0..n {
            let key = (weights.trees[i], weights.ids[i]);
            let Some(TreeNodeIndex::Leaf(leaf)) = places.get(&key) else {
                return Err(bad(format!(
                    "a weight is of node {} of tree {}, which is no leaf",
                    key.1, key.0
                )));
            };
            let target = usize::try_from(weights.targets[i]);
            let target = target.map_err(|_| bad(format!("a target is {}", weights.targets[i])))?;
            self.leaves[*leaf].push((target, weights.weights[i]));
        }
        Ok(())
    }

    /// How many questions lead to a leaf at most. What leads back to itself is an error.
    pub(super) fn depth(&self) -> Result<usize, NodeErrorKind> {
        /// What is known of a node.
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
                        return Err(bad("nodes of a tree lead back to themselves"));
                    }
                    stack.push(below);
                }
            }
            greatest = greatest.max(depth_of(&states, TreeNodeIndex::Inner(root)).unwrap_or(0));
        }
        Ok(greatest)
    }
}

/// Nodes as `TreeEnsemble` has them: inner ones and leaves in lists of their own.
pub(super) struct SeparateTreeNodes<'a> {
    pub(super) roots: &'a [i64],
    pub(super) features: &'a [i64],
    pub(super) thresholds: Vec<f64>,
    pub(super) modes: Vec<i64>,
    pub(super) nan_is_true: &'a [i64],
    /// Where a false and a true answer lead, and whether that is a leaf.
    pub(super) next: [(&'a [i64], &'a [i64]); 2],
    pub(super) targets: &'a [i64],
    pub(super) weights: Vec<f64>,
    /// The sets of the nodes that ask for membership one after the other, NaN after each.
    pub(super) members: Vec<f64>,
}

/// The mode that asks whether a feature is in a set.
const MEMBER: i64 = 6;

impl TreeEnsemble {
    /// The trees of separate lists. A question for membership becomes one for each member.
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
            return Err(bad("lists of nodes or leaves differ in length"));
        }
        if !lists.nan_is_true.is_empty() && lists.nan_is_true.len() != n {
            return Err(bad(
                "`nodes_missing_value_tracks_true` has another length than nodes",
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
            place.ok_or_else(|| bad(format!("a node or leaf is {id} of {count}")))
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
                        .ok_or_else(|| bad("a set of members is empty"))?;
                    node.threshold = *first;
                    let otherwise = node.next[0];
                    // Each further member is asked for when those before were not it.
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
