//! A graph that fails on the device at the first non-finite result.
//!
//! For each float value, the maximum and the minimum over all elements are computed; NaN and
//! infinities propagate into them. A vector of flags holds the comparison results. Cumulative sums
//! over a flat list of all operands then find results that are non-finite although their operands
//! are finite. The work thus grows with the number of nodes plus operands, not with their product.
//! The number of the first such result (0 if there is none) indexes a table of one element. An
//! out-of-range index ends a run on every executor, before states are written.

use std::collections::{BTreeSet, HashMap};

use tercet_ir::attr::AttrLiteral;
use tercet_ir::ops::{CumSum, ScanFn};
use tercet_ir::{DType, Graph, Node, NodeId, Op, OpError, Tensor, TensorSummary, Value};

/// A graph with checks for non-finite results.
pub(super) struct FiniteProbe {
    pub(super) graph: Graph,
    /// Candidates for the first non-finite result. Index `i` of the failing gather means
    /// `candidates[i - 1]`.
    pub(super) candidates: Vec<Value>,
    /// The node that fails, or an output with the number of the result.
    pub(super) end: Value,
    /// Name of the added output.
    pub(super) output: String,
}

/// Use of the number of the first non-finite result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ProbeEnd {
    /// Uses the number as an index into a table of one element, so that the run fails.
    Fails,
    /// Returns it as an output.
    Output,
}

/// Positions of the flags in the flag vector.
struct FiniteFlags {
    flag_index: HashMap<Value, usize>,
    /// Number of checked values. Their flags are followed by a 0 and a 1, and then by a NaN flag
    /// for each.
    checked_count: usize,
}

impl FiniteFlags {
    /// Flag position of a value. Integer and boolean values share a flag that is always 0.
    fn index_of(&self, value: Value) -> usize {
        self.flag_index
            .get(&value)
            .copied()
            .unwrap_or(self.finite())
    }

    fn finite(&self) -> usize {
        self.checked_count
    }

    fn not_finite(&self) -> usize {
        self.checked_count + 1
    }

    fn nan(&self, value: Value) -> usize {
        self.checked_count + 2 + self.index_of(value)
    }
}

/// A candidate result, with the flag positions of itself and of its operands.
struct ProbeCandidate {
    value: Value,
    own: usize,
    operands: Vec<usize>,
}

/// Builds the probe graph. `None` if the graph computes no floats.
pub(super) fn probe(source: &Graph, end: ProbeEnd) -> Result<Option<FiniteProbe>, OpError> {
    let mut graph = source.clone();
    let Some((flags, vector)) = flags(&mut graph, source)? else {
        return Ok(None);
    };
    let candidates = candidates(source, &flags);
    if candidates.is_empty() {
        return Ok(None);
    }
    let number = first(&mut graph, &candidates, &flags, vector)?;
    let end = match end {
        ProbeEnd::Output => number,
        ProbeEnd::Fails => {
            let table = graph.constant(Tensor::scalar(0f32))?;
            let table = graph.reshape(table, [1usize])?;
            graph.gather(table, number, 0)?
        }
    };
    let names: BTreeSet<&str> = source.outputs().iter().map(|o| o.name.as_str()).collect();
    let mut output = "first not finite".to_string();
    while names.contains(output.as_str()) {
        output.push('\'');
    }
    graph.output(&output, end)?;
    Ok(Some(FiniteProbe {
        graph,
        candidates: candidates.into_iter().map(|c| c.value).collect(),
        end,
        output,
    }))
}

/// The float results of a node.
fn floats(node: NodeId, n: &Node) -> impl Iterator<Item = (Value, DType)> {
    let ports = n.outputs.iter().enumerate();
    ports.filter_map(move |(port, ty)| {
        let port = port as u8;
        ty.dtype
            .is_float()
            .then_some((Value { node, port }, ty.dtype))
    })
}

/// Adds the flag vector, and returns the flag positions.
fn flags(g: &mut Graph, source: &Graph) -> Result<Option<(FiniteFlags, Value)>, OpError> {
    let mut place = HashMap::new();
    let (mut bad, mut nan) = (Vec::new(), Vec::new());
    let (mut measured, mut known) = (0, Vec::new());
    for &dtype in DType::FLOATS {
        let (mut most, mut least) = (Vec::new(), Vec::new());
        for (id, node) in source.nodes() {
            for (value, _) in floats(id, node).filter(|(_, d)| *d == dtype) {
                if let Op::Const(c) = &node.op {
                    known.push((value, is_finite(&c.tensor)));
                    continue;
                }
                place.insert(value, measured);
                measured += 1;
                let axes: Vec<usize> = (0..node.outputs[usize::from(value.port)].rank()).collect();
                for (list, extreme) in [
                    (&mut most, g.reduce_max(value, &axes, false)?),
                    (&mut least, g.reduce_min(value, &axes, false)?),
                ] {
                    list.push(g.reshape(extreme, [1usize])?);
                }
            }
        }
        if most.is_empty() {
            continue;
        }
        let (most, least) = (g.concat(&most, 0)?, g.concat(&least, 0)?);
        let (inf, minus) = (
            g.scalar(dtype, f64::INFINITY)?,
            g.scalar(dtype, f64::NEG_INFINITY)?,
        );
        // Both comparisons are false for NaN, and true if there are no elements.
        let (below, above) = (g.lt(most, inf)?, g.gt(least, minus)?);
        let finite = g.and(below, above)?;
        let not = g.not(finite)?;
        bad.push(g.cast(not, DType::I32)?);
        let is_nan = g.is_nan(most)?;
        nan.push(g.cast(is_nan, DType::I32)?);
    }
    if measured == 0 {
        return Ok(None);
    }
    let flags = FiniteFlags {
        flag_index: place,
        checked_count: measured,
    };
    bad.push(indices(g, [0, 1].into_iter())?);
    bad.extend(nan);
    let vector = g.concat(&bad, 0)?;
    let mut flags = flags;
    for (value, finite) in known {
        let at = match finite {
            true => flags.finite(),
            false => flags.not_finite(),
        };
        flags.flag_index.insert(value, at);
    }
    Ok(Some((flags, vector)))
}

fn candidates(source: &Graph, flags: &FiniteFlags) -> Vec<ProbeCandidate> {
    let mut candidates = Vec::new();
    for (id, node) in source.nodes() {
        // Infinities in constants, or set by an attribute, are intended.
        if matches!(node.op, Op::Const(_)) || names_infinity(&node.op) {
            continue;
        }
        for (value, _) in floats(id, node) {
            candidates.push(match node.op.is_leaf() {
                // An infinity in an input may be a mask; a NaN is not.
                true => ProbeCandidate {
                    value,
                    own: flags.nan(value),
                    operands: Vec::new(),
                },
                false => ProbeCandidate {
                    value,
                    own: flags.index_of(value),
                    operands: node.inputs.iter().map(|v| flags.index_of(*v)).collect(),
                },
            });
        }
    }
    candidates
}

/// Number of the first non-finite candidate with finite operands, counted from 1; 0 if there is
/// none.
fn first(
    g: &mut Graph,
    candidates: &[ProbeCandidate],
    flags: &FiniteFlags,
    vector: Value,
) -> Result<Value, OpError> {
    let own = indices(g, candidates.iter().map(|c| c.own))?;
    let own = g.gather(vector, own, 0)?;
    let mut ends = Vec::with_capacity(candidates.len() + 1);
    ends.push(0);
    let mut count = 0;
    for candidate in candidates {
        count += candidate.operands.len();
        ends.push(count);
    }
    let operands = candidates.iter().flat_map(|c| c.operands.iter().copied());
    let operands = indices(g, operands.chain([flags.finite()]))?;
    let operands = g.gather(vector, operands, 0)?;
    let scan = CumSum {
        axis: 0,
        f: ScanFn::Sum,
        exclusive: true,
        reverse: false,
    };
    let running = g.scan(operands, scan)?;
    let n = candidates.len();
    let (starts, ends) = (
        indices(g, ends[..n].iter().copied())?,
        indices(g, ends[1..].iter().copied())?,
    );
    let (before, after) = (g.gather(running, starts, 0)?, g.gather(running, ends, 0)?);
    let clean = g.equal(before, after)?;
    let clean = g.cast(clean, DType::I32)?;
    let faulty = g.mul(own, clean)?;
    let at = g.arg_max(faulty, 0, true)?;
    let any = g.reduce_max(faulty, &[0], true)?;
    let one = g.scalar(DType::I32, 1.0)?;
    let number = g.plus(at, one)?;
    g.mul(number, any)
}

fn indices(g: &mut Graph, of: impl Iterator<Item = usize>) -> Result<Value, OpError> {
    let of: Vec<i32> = of.map(|i| i as i32).collect();
    let tensor = Tensor::from_slice(&[of.len()], &of);
    g.constant(tensor.expect("invariant: a vector has as many elements as its only axis"))
}

fn is_finite(tensor: &Tensor) -> bool {
    tercet_ir::NonFiniteKind::detect(tensor, Vec::<TensorSummary>::new()).is_none()
}

/// Whether an attribute is infinite or NaN, such as the padding value of a max pooling.
fn names_infinity(op: &Op) -> bool {
    fn is_infinite(literal: &AttrLiteral) -> bool {
        match literal {
            AttrLiteral::Float(x) => !x.is_finite(),
            AttrLiteral::List(list) | AttrLiteral::Call(_, list) => list.iter().any(is_infinite),
            AttrLiteral::Int(_)
            | AttrLiteral::Ident(_)
            | AttrLiteral::Str(_)
            | AttrLiteral::Dim(_)
            | AttrLiteral::Type(_)
            | AttrLiteral::Graph(_) => false,
        }
    }
    op.attrs().iter().any(|(_, literal)| is_infinite(literal))
}
