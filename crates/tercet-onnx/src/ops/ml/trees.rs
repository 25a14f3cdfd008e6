//! Tree ensembles as gathers: each sample has a current node in each tree, and a step advances all
//! of them at once.
//!
//! Nodes are numbered, inner nodes first, and tables hold their data by number. A leaf points to
//! itself. After as many steps as the deepest tree has levels, all samples are at leaves, whose
//! weights are summed over the trees.

use tercet_ir::ops::ReduceFn;
use tercet_ir::scalar::{BinaryFn, CompareFn, UnaryFn};
use tercet_ir::{DType, Dim, Tensor, TensorType, Value};

use super::classes::BinaryScoreRule;
use super::ensemble::{
    LeafWeights, SeparateTreeNodes, SplitMode, SplitNode, TreeEnsemble, TreeNodeIndex,
    TreeNodeLists,
};
use super::{ClassLabels, PostTransform, features, table};
use crate::call::{ImportNode, NodeOutputs, one};
use crate::error::NodeErrorKind;
use crate::tensor;

/// Maximum depth of a tree: each level adds a step to the graph.
const MAX_DEPTH: usize = 256;

/// The reduction of the weights of all trees to one score.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum TreeAggregate {
    Average,
    Sum,
    Min,
    Max,
}

impl TreeAggregate {
    fn named(name: &str) -> Result<TreeAggregate, NodeErrorKind> {
        Ok(match name {
            "AVERAGE" => TreeAggregate::Average,
            "SUM" => TreeAggregate::Sum,
            "MIN" => TreeAggregate::Min,
            "MAX" => TreeAggregate::Max,
            other => {
                let reason = format!("`{other}` is not known");
                return Err(NodeErrorKind::attribute("aggregate_function", reason));
            }
        })
    }

    fn numbered(number: i64) -> Result<TreeAggregate, NodeErrorKind> {
        Ok(match number {
            0 => TreeAggregate::Average,
            1 => TreeAggregate::Sum,
            2 => TreeAggregate::Min,
            3 => TreeAggregate::Max,
            other => {
                let reason = format!("{other} is not known");
                return Err(NodeErrorKind::attribute("aggregate_function", reason));
            }
        })
    }

    /// The weight of a leaf that has no weight for a target.
    fn nothing(self) -> f64 {
        match self {
            TreeAggregate::Average | TreeAggregate::Sum => 0.0,
            TreeAggregate::Min => f64::INFINITY,
            TreeAggregate::Max => f64::NEG_INFINITY,
        }
    }
}

/// The numbers of an attribute in F32, or of the attribute with the suffix `_as_tensor`.
fn numbers(k: &ImportNode<'_, '_>, name: &str) -> Result<Vec<f64>, NodeErrorKind> {
    let list = k.attrs.floats_opt(name)?.unwrap_or_default();
    let wide = format!("{name}_as_tensor");
    match k.attrs.tensor_opt(&wide)? {
        None => Ok(list.iter().map(|x| f64::from(*x)).collect()),
        Some(_) => tensor_attr(k, &wide),
    }
}

fn tensor_attr(k: &ImportNode<'_, '_>, name: &str) -> Result<Vec<f64>, NodeErrorKind> {
    match k.attrs.tensor_opt(name)? {
        None => Ok(Vec::new()),
        Some(proto) => {
            let tensor = tensor::plain(proto, &k.c.folder);
            Ok(tensor
                .map_err(|e| NodeErrorKind::attribute(name, e))?
                .to_f64s())
        }
    }
}

fn integers<'m>(k: &ImportNode<'_, 'm>, name: &str) -> Result<&'m [i64], NodeErrorKind> {
    Ok(k.attrs.ints_opt(name)?.unwrap_or_default())
}

/// Reads the trees of a classifier or regressor, whose weight attributes have the prefix `weights`.
fn read(k: &ImportNode<'_, '_>, weights: &str) -> Result<TreeEnsemble, NodeErrorKind> {
    // The hit rates are training statistics and do not change the scores.
    k.attrs
        .ignore(&["nodes_hitrates", "nodes_hitrates_as_tensor"]);
    let lists = TreeNodeLists {
        trees: integers(k, "nodes_treeids")?,
        ids: integers(k, "nodes_nodeids")?,
        features: integers(k, "nodes_featureids")?,
        thresholds: numbers(k, "nodes_values")?,
        modes: k.attrs.strings_opt("nodes_modes")?.unwrap_or_default(),
        when_true: integers(k, "nodes_truenodeids")?,
        when_false: integers(k, "nodes_falsenodeids")?,
        nan_is_true: integers(k, "nodes_missing_value_tracks_true")?,
    };
    let own = |what: &str| format!("{weights}_{what}");
    let weights = LeafWeights {
        trees: integers(k, &own("treeids"))?,
        ids: integers(k, &own("nodeids"))?,
        targets: integers(k, &own("ids"))?,
        weights: numbers(k, &own("weights"))?,
    };
    TreeEnsemble::from_lists(&lists, &weights)
}

/// The scores without the base values: `[samples, targets]`.
fn scores(
    k: &mut ImportNode<'_, '_>,
    ensemble: &TreeEnsemble,
    targets: usize,
    aggregate: TreeAggregate,
) -> Result<Value, NodeErrorKind> {
    let leaves = reached(k, ensemble)?;
    let weights = weights(k, ensemble, targets, aggregate)?;
    let g = k.g();
    let found = g.gather(weights, leaves, 0)?;
    let f = match aggregate {
        TreeAggregate::Average | TreeAggregate::Sum => ReduceFn::Sum,
        TreeAggregate::Min => ReduceFn::Min,
        TreeAggregate::Max => ReduceFn::Max,
    };
    let y = g.reduce(f, found, &[1], false)?;
    match aggregate {
        TreeAggregate::Sum => Ok(y),
        TreeAggregate::Average => {
            let trees = k.like(y, ensemble.roots.len() as f64)?;
            Ok(k.g().div(y, trees)?)
        }
        TreeAggregate::Min | TreeAggregate::Max => {
            let zero = k.like(y, 0.0)?;
            let none = k.g().unary(UnaryFn::IsInf, y)?;
            Ok(k.g().where_(none, zero, y)?)
        }
    }
}

/// The weights of leaves, `[leaves, targets]`.
fn weights(
    k: &mut ImportNode<'_, '_>,
    ensemble: &TreeEnsemble,
    targets: usize,
    aggregate: TreeAggregate,
) -> Result<Value, NodeErrorKind> {
    let leaves = ensemble.leaves.len();
    let in_file: usize = ensemble.leaves.iter().map(Vec::len).sum();
    let count = leaves.checked_mul(targets);
    let count = count.filter(|n| k.c.spend(n.saturating_sub(in_file)));
    let count = count.ok_or_else(|| {
        let text = format!("the weights of {leaves} leaves for {targets} targets are too large");
        NodeErrorKind::unsupported(text)
    })?;
    let mut dense = vec![aggregate.nothing(); count];
    for (leaf, own) in ensemble.leaves.iter().enumerate() {
        for (target, weight) in own {
            if *target >= targets {
                return Err(NodeErrorKind::unsupported(format!(
                    "a leaf has a weight for target {target} of {targets}"
                )));
            }
            let place = &mut dense[leaf * targets + target];
            match place.is_finite() {
                true => *place += weight,
                false => *place = *weight,
            }
        }
    }
    let ty = TensorType::new(DType::F32, &[leaves, targets]);
    table(k, "weights", Tensor::from_f64s(ty, &dense)?)
}

/// The leaf that each sample reaches in each tree, `[samples, trees]`.
fn reached(k: &mut ImportNode<'_, '_>, ensemble: &TreeEnsemble) -> Result<Value, NodeErrorKind> {
    let depth = ensemble.depth()?;
    if depth > MAX_DEPTH {
        return Err(NodeErrorKind::unsupported(format!(
            "a tree has {depth} levels, at most {MAX_DEPTH} are supported"
        )));
    }
    let x = features(k)?;
    let x = match k.dtype(x) {
        DType::F64 => x,
        _ => crate::emulated_dtypes::cast_to(k.g(), x, DType::F32)?,
    };
    let (inner, trees) = (ensemble.inner.len(), ensemble.roots.len());
    let number = |place: &TreeNodeIndex| match place {
        TreeNodeIndex::Inner(at) => *at as i32,
        TreeNodeIndex::Leaf(at) => (inner + at) as i32,
    };
    if i32::try_from((inner + ensemble.leaves.len()) * 2).is_err() || trees == 0 {
        return Err(NodeErrorKind::unsupported("no trees, or too many nodes"));
    }
    let roots: Vec<i32> = ensemble.roots.iter().map(number).collect();
    let roots = table(k, "roots", Tensor::from_slice(&[trees], &roots)?)?;
    let samples = k.dims(x)[0].clone();
    let mut at = k.g().expand(roots, [samples, Dim::Known(trees)])?;
    if depth > 0 {
        let questions = SplitTables::new(k, ensemble, x, number)?;
        for _ in 0..depth {
            at = questions.ask(k, at)?;
        }
    }
    let first = k.like(at, inner as f64)?;
    Ok(k.g().sub(at, first)?)
}

/// The node tables and the comparison of a step.
struct SplitTables {
    x: Value,
    features: Value,
    thresholds: Value,
    /// For each node: the next node if the comparison is false, then the one if it is true.
    next: Value,
    /// The mode shared by all nodes, or the modes that the node table refers to.
    modes: Vec<SplitMode>,
    mode_of: Option<Value>,
    nan_is_true: Option<Value>,
}

impl SplitTables {
    fn new(
        k: &mut ImportNode<'_, '_>,
        ensemble: &TreeEnsemble,
        x: Value,
        number: impl Fn(&TreeNodeIndex) -> i32,
    ) -> Result<SplitTables, NodeErrorKind> {
        let (inner, n) = (
            &ensemble.inner,
            ensemble.inner.len() + ensemble.leaves.len(),
        );
        let width = k.size(x, 1)?;
        let outside = inner
            .iter()
            .find(|i| usize::try_from(i.feature).map_or(true, |f| f >= width));
        if let Some(SplitNode { feature, .. }) = outside {
            let reason = format!("has {width} features, but a node reads feature {feature}");
            return Err(NodeErrorKind::operand(0, reason));
        }
        let by_node = |of: &dyn Fn(&SplitNode) -> i32| -> Result<Tensor, NodeErrorKind> {
            let mut list: Vec<i32> = inner.iter().map(of).collect();
            list.resize(n, 0);
            Ok(Tensor::from_slice(&[n], &list)?)
        };
        let mut thresholds: Vec<f64> = inner.iter().map(|i| i.threshold).collect();
        thresholds.resize(n, 0.0);
        let mut next: Vec<i32> = inner
            .iter()
            .flat_map(|i| i.next.each_ref().map(&number))
            .collect();
        next.extend((inner.len()..n).flat_map(|leaf| [leaf as i32; 2]));
        let mut modes: Vec<SplitMode> = Vec::new();
        for node in inner {
            if !modes.contains(&node.mode) {
                modes.push(node.mode);
            }
        }
        let place_of = |mode: SplitMode| modes.iter().position(|m| *m == mode).unwrap_or(0) as i32;
        let mode_of = match modes.len() {
            1 => None,
            _ => Some(table(k, "modes", by_node(&|i| place_of(i.mode))?)?),
        };
        let nan_is_true = match inner.iter().any(|i| i.nan_is_true) {
            false => None,
            true => Some(table(
                k,
                "nan_is_true",
                by_node(&|i| i.nan_is_true.into())?,
            )?),
        };
        let ty = TensorType::new(k.dtype(x), &[n]);
        Ok(SplitTables {
            x,
            features: table(k, "features", by_node(&|i| i.feature as i32)?)?,
            thresholds: table(k, "thresholds", Tensor::from_f64s(ty, &thresholds)?)?,
            next: table(k, "next", Tensor::from_slice(&[2 * n], &next)?)?,
            modes,
            mode_of,
            nan_is_true,
        })
    }

    /// Advances all samples in all trees by one node, `[samples, trees]`.
    fn ask(&self, k: &mut ImportNode<'_, '_>, at: Value) -> Result<Value, NodeErrorKind> {
        let g = k.g();
        let feature = g.gather(self.features, at, 0)?;
        let found = g.gather_elements(self.x, feature, 1)?;
        let threshold = g.gather(self.thresholds, at, 0)?;
        let mode = self
            .mode_of
            .map(|table| g.gather(table, at, 0))
            .transpose()?;
        let mut answer = None;
        for (number, own) in self.modes.iter().enumerate() {
            let g = k.g();
            let mut true_here = g.compare(own.compare(), found, threshold)?;
            if let Some(mode) = mode {
                let number = g.scalar(DType::I32, number as f64)?;
                let asked = g.compare(CompareFn::Eq, mode, number)?;
                true_here = g.binary(BinaryFn::And, true_here, asked)?;
            }
            answer = Some(match answer {
                None => true_here,
                Some(before) => g.binary(BinaryFn::Or, before, true_here)?,
            });
        }
        let mut answer =
            answer.ok_or_else(|| NodeErrorKind::unsupported("the trees have no inner nodes"))?;
        let g = k.g();
        if let Some(table) = self.nan_is_true {
            let flag = g.gather(table, at, 0)?;
            let flag = g.cast(flag, DType::Bool)?;
            let nan = g.unary(UnaryFn::IsNan, found)?;
            let so = g.binary(BinaryFn::And, nan, flag)?;
            answer = g.binary(BinaryFn::Or, answer, so)?;
        }
        let answer = g.cast(answer, DType::I32)?;
        let twice = g.plus(at, at)?;
        let place = g.plus(twice, answer)?;
        Ok(g.gather(self.next, place, 0)?)
    }
}

impl SplitMode {
    fn compare(self) -> CompareFn {
        match self {
            SplitMode::LessOrEqual => CompareFn::Le,
            SplitMode::Less => CompareFn::Lt,
            SplitMode::GreaterOrEqual => CompareFn::Ge,
            SplitMode::Greater => CompareFn::Gt,
            SplitMode::Equal => CompareFn::Eq,
            SplitMode::NotEqual => CompareFn::Ne,
        }
    }
}

/// Adds the base value of each target to scores.
fn based(k: &mut ImportNode<'_, '_>, y: Value, base: &[f64]) -> Result<Value, NodeErrorKind> {
    let targets = k.size(y, 1)?;
    match base.len() {
        0 => Ok(y),
        n if n == targets => {
            let ty = TensorType::new(k.dtype(y), &[n]);
            let base = k.g().constant(Tensor::from_f64s(ty, base)?)?;
            Ok(k.g().plus(y, base)?)
        }
        n => Err(NodeErrorKind::attribute(
            "base_values",
            format!("{n} for {targets} scores"),
        )),
    }
}

pub(super) fn regressor(k: &mut ImportNode<'_, '_>) -> NodeOutputs {
    let ensemble = read(k, "target")?;
    let aggregate = TreeAggregate::named(&k.attrs.string("aggregate_function", "SUM")?)?;
    let transform = PostTransform::read(k)?;
    let targets = targets(k)?;
    let base = numbers(k, "base_values")?;
    let y = scores(k, &ensemble, targets, aggregate)?;
    let y = based(k, y, &base)?;
    one(transform.apply(k, y)?)
}

fn targets(k: &ImportNode<'_, '_>) -> Result<usize, NodeErrorKind> {
    let targets = k.attrs.int("n_targets", 1)?;
    let targets = usize::try_from(targets).ok().filter(|n| *n > 0);
    targets.ok_or_else(|| NodeErrorKind::attribute("n_targets", "must be above 0"))
}

/// Classifies. With two classes the weights may be those of the second only, stored as target 0. If
/// no weight is negative, the weights are probabilities.
pub(super) fn classifier(k: &mut ImportNode<'_, '_>) -> NodeOutputs {
    let ensemble = read(k, "class")?;
    let classes = ClassLabels::read(k, "classlabels_int64s")?;
    let transform = PostTransform::read(k)?;
    let base = numbers(k, "base_values")?;
    let weights = || ensemble.leaves.iter().flatten();
    let first = weights().next().map(|(target, _)| *target);
    let alone = weights().all(|(target, _)| Some(*target) == first);
    match (classes.len(), first) {
        (2, Some(0)) if alone => {
            let y = scores(k, &ensemble, 1, TreeAggregate::Sum)?;
            let y = based(k, y, &base)?;
            let bound = match weights().all(|(_, w)| *w >= 0.0) {
                true => (0.5, BinaryScoreRule::Complement),
                false => (0.0, BinaryScoreRule::Negative),
            };
            classes.binary(k, y, bound, transform)
        }
        (2, Some(_)) if alone => Err(NodeErrorKind::attribute(
            "class_ids",
            "weights for only the second of two classes are not supported",
        )),
        (0 | 1, _) | (_, None) => Err(NodeErrorKind::unsupported(
            "fewer than two classes, or no weights",
        )),
        (n, Some(_)) => {
            let y = scores(k, &ensemble, n, TreeAggregate::Sum)?;
            let y = based(k, y, &base)?;
            classes.greatest(k, y, transform)
        }
    }
}

pub(super) fn ensemble(k: &mut ImportNode<'_, '_>) -> NodeOutputs {
    k.attrs.ignore(&["nodes_hitrates"]);
    let side = |nodes: &str, leaves: &str| -> Result<_, NodeErrorKind> {
        Ok((integers(k, nodes)?, integers(k, leaves)?))
    };
    let modes = tensor_attr(k, "nodes_modes")?;
    let lists = SeparateTreeNodes {
        roots: integers(k, "tree_roots")?,
        features: integers(k, "nodes_featureids")?,
        thresholds: tensor_attr(k, "nodes_splits")?,
        modes: modes.iter().map(|m| *m as i64).collect(),
        nan_is_true: integers(k, "nodes_missing_value_tracks_true")?,
        next: [
            side("nodes_falsenodeids", "nodes_falseleafs")?,
            side("nodes_truenodeids", "nodes_trueleafs")?,
        ],
        targets: integers(k, "leaf_targetids")?,
        weights: tensor_attr(k, "leaf_weights")?,
        members: tensor_attr(k, "membership_values")?,
    };
    let ensemble = TreeEnsemble::from_separate(&lists)?;
    let aggregate = TreeAggregate::numbered(k.attrs.int("aggregate_function", 1)?)?;
    let transform = PostTransform::from_number(k.attrs.int("post_transform", 0)?)?;
    let targets = targets(k)?;
    let x = k.x(0)?;
    let dtype = k.dtype(x);
    let y = scores(k, &ensemble, targets, aggregate)?;
    let y = transform.apply(k, y)?;
    one(crate::emulated_dtypes::cast_to(k.g(), y, dtype)?)
}
