//! Graph passes: rewrites that preserve a graph's meaning.
//!
//! A pass is a function from a graph to a new graph, in a separate file. [`optimize`] runs the
//! passes in the order of [`PIPELINE`]. [`CompileOptions::without_passes`] skips passes by name.
//!
//! Invariants:
//!
//! - Inputs, parameters and states keep their order, whether they are used or not.
//! - Outputs and assignments remain, and every value keeps its type.
//! - Random numbers do not change.
//! - `recognize`, `recognize_codes`, `factors` and `fuse_epilogue` remove roundings, within the
//!   tolerance table. All other passes leave the reference's results bitwise unchanged (except NaN
//!   payloads).
//!
//! Broadcasting is made explicit if needed. `fuse_elementwise` converts broadcasting to index maps.
//! For a target that supports only equal shapes, the rules of [`crate::legalize`] insert `Expand`
//! nodes.

mod channels_last;
mod checkpoints;
mod conv_to_patch_matmul;
mod cse;
mod dce;
mod fold;
mod fuse_elementwise;
mod fuse_epilogue;
mod pack_qkv;
mod precision;
mod recognize;
mod rewrite;
mod simplify;
mod slice_hoisting;
mod subgraphs;
mod view;

pub use channels_last::{
    ChannelsLast, ChannelsLastSupport, ConvResidualSum, FROM_LAST, TO_LAST, channels_last,
};
pub use precision::convert_precision;
pub(crate) use rewrite::is_named_leaf;
pub use simplify::{SIMPLIFICATIONS, Simplification, simplify_traced};
pub(crate) use view::known_range;

use self::subgraphs::map_subgraphs;
use crate::backend::{CompileOptions, RetainValues, Support, Target};
use crate::error::CompileError;
use crate::graph::{Graph, Node, NodeId};
use crate::legalize::legalize;
use crate::ops::Op;
use crate::verify::verify;

/// A graph rewrite with its name.
///
/// ```
/// use tercet_ir::passes::{PIPELINE, Pass};
/// use tercet_ir::{DType, Graph, Type};
/// let dce: &Pass = PIPELINE.iter().find(|pass| pass.name == "dce").expect("the pass exists");
/// let mut g = Graph::new();
/// let x = g.input("x", Type::new(DType::F32, [4]))?;
/// g.exp(x)?;
/// g.output("y", x)?;
/// assert_eq!((dce.apply)(&g)?.len(), 1);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Pass {
    /// Name of the pass, for [`CompileOptions::without_passes`].
    pub name: &'static str,
    /// A description of the pass in one sentence.
    pub doc: &'static str,
    /// The function that returns the rewritten graph.
    pub apply: fn(&Graph) -> Result<Graph, CompileError>,
}

/// The passes in execution order.
///
/// `recognize_codes` runs first, because other passes change the quantization patterns that it
/// matches. Folding and simplification run before `cse`, because they make nodes equal. Matmuls
/// absorb their bias before they are packed, so that biases are packed too. Absorbing biases and
/// packing precede elementwise fusion, which would otherwise absorb the bias sums. Dead code is
/// removed last, and also earlier when much of the graph is dead.
pub const PIPELINE: &[Pass] = &[
    Pass {
        name: "recognize_codes",
        doc: "Fuses quantize-dequantize (QDQ) sequences into int8 operators; int8 weights stay quantized.",
        apply: recognize::recognize_codes,
    },
    Pass {
        name: "fold_constants",
        doc: "Evaluates nodes whose operands are all constants, unless the result would be large.",
        apply: fold::fold_constants,
    },
    Pass {
        name: "simplify",
        doc: "Replaces nodes by simpler ones with the same value; see SIMPLIFICATIONS.",
        apply: simplify::simplify,
    },
    Pass {
        name: "cse",
        doc: "Merges equal nodes.",
        apply: cse::merge_equal,
    },
    Pass {
        name: "drop_checkpoints",
        doc: "Removes checkpoints, which prevent merging recomputed nodes with the original ones.",
        apply: checkpoints::drop_checkpoints,
    },
    Pass {
        name: "recognize",
        doc: "Fuses decomposed attention, RMS norms and activations into single operators.",
        apply: recognize::recognize,
    },
    Pass {
        name: "patches",
        doc: "Rewrites convolutions with adjacent windows whose result is read as rows to patch matmuls.",
        apply: conv_to_patch_matmul::patches,
    },
    Pass {
        name: "few_rows",
        doc: "Hoists row slices above matmuls, norms and attention, so that only the rows that are read are computed.",
        apply: slice_hoisting::hoist_slices,
    },
    Pass {
        name: "factors",
        doc: "Folds scalar factors around a matmul into its weights, if the weights are converted anyway.",
        apply: recognize::factors,
    },
    Pass {
        name: "fuse_epilogue",
        doc: "Fuses bias and activation into the preceding matmul, and residual sums into their norms.",
        apply: fuse_epilogue::fuse_epilogue,
    },
    Pass {
        name: "pack_qkv",
        doc: "Joins matmuls of one operand with several parameters into one matmul and slices.",
        apply: pack_qkv::pack_qkv,
    },
    Pass {
        name: "fuse_elementwise",
        doc: "Fuses elementwise regions, with the broadcasts and views that they read, into Map.",
        apply: fuse_elementwise::fuse_elementwise,
    },
    DROP_DEAD,
];

const DROP_DEAD: Pass = Pass {
    name: "dce",
    doc: "Removes nodes that no output or assignment depends on; named leaves remain.",
    apply: dce::drop_dead,
};

/// Whether enough nodes are dead that removing them saves time in the following passes.
fn is_mostly_dead(graph: &Graph) -> bool {
    /// More than one node in `MIN_NODES_PER_DEAD` must be dead.
    const MIN_NODES_PER_DEAD: usize = 4;
    let live = rewrite::live_nodes(graph);
    let goes = |(id, n): &(NodeId, &Node)| !live[id.index()] && !is_named_leaf(n.op.kind());
    MIN_NODES_PER_DEAD * graph.nodes().filter(goes).count() > live.len()
}

/// Applies a pass to the nested graphs, then to the graph itself.
fn apply(pass: &Pass, graph: &Graph) -> Result<Graph, CompileError> {
    match map_subgraphs(graph, &mut |block| apply(pass, block))? {
        Some(graph) => (pass.apply)(&graph),
        None => (pass.apply)(graph),
    }
}

/// Runs the pipeline except for the passes that the options skip. If values are retained, no pass
/// runs.
///
/// # Errors
/// [`CompileError::UnknownPass`] for an unknown pass name; [`CompileError::Rewrite`] when a
/// rewritten node is invalid.
pub fn optimize(graph: &Graph, options: &CompileOptions) -> Result<Graph, CompileError> {
    run(graph, options, None)
}

/// As [`optimize`], for a target. Unsupported gradients of attention and of convolution weights are
/// decomposed first. The common parts of these gradients are then computed once, and surrounding
/// nodes can be fused with them.
///
/// # Errors
/// As [`optimize`] and [`legalize`].
pub fn optimize_for(
    graph: &Graph,
    options: &CompileOptions,
    target: &dyn Target,
) -> Result<Graph, CompileError> {
    run(graph, options, Some(target))
}

/// A target that supports every node except the gradients of attention and convolution weights that
/// the wrapped target does not support.
struct NoGradientKernels<'a>(&'a dyn Target);

impl Target for NoGradientKernels<'_> {
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
    if options.retain != RetainValues::Outputs {
        return Ok(current);
    }
    if let Some(target) = target {
        current = legalize(&current, &NoGradientKernels(target))?;
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
            panic!(
                "invariant: a pass returns a valid graph, {}: {e}",
                pass.name
            );
        }
    }
    Ok(current)
}
