//! Rewrites of graphs that keep their meaning.
//!
//! A pass is a function from a graph to a new graph in a file of its own; [`PIPELINE`] lists them
//! in the order in which [`optimize`] runs them. Each can be left out by name through
//! [`CompileOptions::without_passes`].
//!
//! Invariants: inputs, parameters and states stay in their order, used or not; outputs and
//! assignments stay; every value keeps its type; random numbers stay the same. All passes but
//! `recognize`, `recognize_codes`, `factors` and `fuse_epilogue` leave the reference's results bit for bit (NaNs up to their payload); those
//! save roundings, within the tolerance table.
//!
//! Broadcasting is made explicit where it matters: `fuse_elementwise` turns it into index maps, and
//! a target that takes only equal shapes gets `Expand` nodes from the rules of
//! [`crate::legalize`].

mod channels_last;
mod checkpoints;
mod cse;
mod dce;
mod few_rows;
mod fold;
mod fuse_elementwise;
mod fuse_epilogue;
mod pack_qkv;
mod patches;
mod precision;
mod recognize;
mod rewrite;
mod simplify;
mod subgraphs;
mod view;

pub use channels_last::{Able, ChannelsLast, FROM_LAST, Sum, TO_LAST, channels_last};
pub use precision::convert_precision;
pub(crate) use rewrite::is_named_leaf;
pub use simplify::{SIMPLIFICATIONS, Simplification, simplify_traced};
pub(crate) use view::known_range;

use self::subgraphs::map_subgraphs;
use crate::backend::{CompileOptions, Keep, Support, Target};
use crate::error::CompileError;
use crate::graph::{Graph, Node, NodeId};
use crate::legalize::legalize;
use crate::ops::Op;
use crate::verify::verify;

/// A rewrite of graphs.
#[derive(Clone, Copy, Debug)]
pub struct Pass {
    /// The name, for [`CompileOptions::without_passes`].
    pub name: &'static str,
    /// What it does, in a sentence.
    pub doc: &'static str,
    /// The new graph.
    pub apply: fn(&Graph) -> Result<Graph, CompileError>,
}

/// The passes in the order in which they run.
///
/// Codes are found first, while it can be seen what was made of them. Folding and simplification come before merging, since they make nodes equal. Products take their
/// bias before they are packed, so that biases are packed too, and both happen before elementwise
/// fusion would take the sums away. What the others leave unread goes last, and before where it is much.
pub const PIPELINE: &[Pass] = &[
    Pass {
        name: "recognize_codes",
        doc: "Convolutions between codes of 8 bits become operators of codes, what moves numbers moves codes, and weights of codes stay packed.",
        apply: recognize::recognize_codes,
    },
    Pass {
        name: "fold_constants",
        doc: "Computes nodes whose operands are all constants, unless the result would be large.",
        apply: fold::fold_constants,
    },
    Pass {
        name: "simplify",
        doc: "Replaces nodes by simpler ones of the same value; see SIMPLIFICATIONS.",
        apply: simplify::simplify,
    },
    Pass {
        name: "cse",
        doc: "Computes equal nodes once.",
        apply: cse::merge_equal,
    },
    Pass {
        name: "drop_checkpoints",
        doc: "Replaces checkpoints, which kept what is computed again from being merged.",
        apply: checkpoints::drop_checkpoints,
    },
    Pass {
        name: "recognize",
        doc: "Attention, RMS norms and activations that are written out become operators.",
        apply: recognize::recognize,
    },
    Pass {
        name: "patches",
        doc: "Convolutions whose windows lie side by side and whose result is turned to rows become products of patches.",
        apply: patches::patches,
    },
    Pass {
        name: "few_rows",
        doc: "Where few rows of a result are read, products, norms and queries before it compute those alone.",
        apply: few_rows::few_rows,
    },
    Pass {
        name: "factors",
        doc: "Numbers that rows are multiplied by around a product become factors of its weights, where those are converted.",
        apply: recognize::factors,
    },
    Pass {
        name: "fuse_epilogue",
        doc: "Bias and activation into the product before them; residual sums into their norms.",
        apply: fuse_epilogue::fuse_epilogue,
    },
    Pass {
        name: "pack_qkv",
        doc: "Products of one operand with several parameters become one product and its slices.",
        apply: pack_qkv::pack_qkv,
    },
    Pass {
        name: "fuse_elementwise",
        doc: "Elementwise regions, with the broadcasts and views they read, become Map.",
        apply: fuse_elementwise::fuse_elementwise,
    },
    DROP_DEAD,
];

const DROP_DEAD: Pass = Pass {
    name: "dce",
    doc: "Drops nodes that no output or assignment depends on; leaves with names stay.",
    apply: dce::drop_dead,
};

/// Whether so many nodes are dead that the passes to come take longer for them than dropping them takes.
fn is_mostly_dead(graph: &Graph) -> bool {
    /// Of so many nodes, more than one is dead.
    const FEW: usize = 4;
    let live = rewrite::live_nodes(graph);
    let goes = |(id, n): &(NodeId, &Node)| !live[id.index()] && !is_named_leaf(n.op.kind());
    FEW * graph.nodes().filter(goes).count() > live.len()
}

/// Applies a pass to the graphs inside the nodes, then to the graph itself.
fn apply(pass: &Pass, graph: &Graph) -> Result<Graph, CompileError> {
    match map_subgraphs(graph, &mut |block| apply(pass, block))? {
        Some(graph) => (pass.apply)(&graph),
        None => (pass.apply)(graph),
    }
}

/// Runs the pipeline without the passes that the options leave out; none where values are kept.
///
/// # Errors
/// [`CompileError::UnknownPass`] for a name that is no pass; [`CompileError::Rewrite`] when a
/// rewrite is refused.
pub fn optimize(graph: &Graph, options: &CompileOptions) -> Result<Graph, CompileError> {
    run(graph, options, None)
}

/// As [`optimize`], for a target: gradients of attention and of weights that it does not run are decomposed before, so that what their
/// parts have in common is computed once and what stands around those is fused with them.
///
/// # Errors
/// As [`optimize`], and as [`legalize`].
pub fn optimize_for(
    graph: &Graph,
    options: &CompileOptions,
    target: &dyn Target,
) -> Result<Graph, CompileError> {
    run(graph, options, Some(target))
}

/// A target that runs everything but the gradients of attention and of weights that another does not run.
struct AllButGradients<'a>(&'a dyn Target);

impl Target for AllButGradients<'_> {
    fn name(&self) -> &'static str {
        self.0.name()
    }

    fn supports(&self, graph: &Graph, node: &Node) -> Support {
        match node.op {
            Op::AttentionWithLse(_) | Op::AttentionGrad(_) | Op::ConvWeightGrad(_) => {
                self.0.supports(graph, node)
            }
            _ => Support::Native,
        }
    }
}

fn run(
    graph: &Graph,
    options: &CompileOptions,
    target: Option<&dyn Target>,
) -> Result<Graph, CompileError> {
    for name in &options.without_passes {
        if !PIPELINE.iter().any(|p| p.name == name) {
            let known: Vec<&str> = PIPELINE.iter().map(|p| p.name).collect();
            return Err(CompileError::UnknownPass {
                name: name.clone(),
                known: known.join(", "),
            });
        }
    }
    let mut current = graph.without_origins();
    if options.keep != Keep::Outputs {
        return Ok(current);
    }
    if let Some(target) = target {
        current = legalize(&current, &AllButGradients(target))?;
    }
    let leaves_out = |name: &str| options.without_passes.iter().any(|n| n == name);
    let drops = !leaves_out(DROP_DEAD.name);
    for pass in PIPELINE {
        if leaves_out(pass.name) {
            continue;
        }
        current = apply(pass, &current)?;
        if drops && is_mostly_dead(&current) {
            current = apply(&DROP_DEAD, &current)?;
        }
        if cfg!(debug_assertions)
            && let Err(e) = verify(&current)
        {
            panic!("invariant: a pass leaves a valid graph, {}: {e}", pass.name);
        }
    }
    Ok(current)
}
