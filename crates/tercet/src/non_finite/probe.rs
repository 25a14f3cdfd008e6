//! A graph that fails on the device at its first result that is not finite.
//!
//! For each value of floats the greatest and the least element are reduced to two numbers; NaN and infinities come
//! through. All of them together make one vector of flags. Which results are not finite although their operands are is
//! then told by running sums over a flat list of all operands, so that the work grows with the number of nodes and
//! operands, not with their product. The number of the first such result, 0 if there is none, indexes a table of one
//! element: an index out of range ends a run on every executor, before states are written.

use std::collections::{BTreeSet, HashMap};

use tercet_ir::attr::Literal;
use tercet_ir::ops::{CumSum, ScanFn};
use tercet_ir::{DType, Graph, Node, NodeId, Op, OpError, Span, Tensor, Value};

/// A graph with a look at what is finite.
pub(super) struct Probe {
    pub(super) graph: Graph,
    /// What an index out of range by `i` says: result `i - 1` is the first.
    pub(super) candidates: Vec<Value>,
    /// The node that fails, or an output that holds the number.
    pub(super) end: Value,
    /// The output's name.
    pub(super) output: String,
}

/// What a probe does with the number of the first result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End {
    /// Fails.
    Fails,
    /// Gives it as an output.
    Output,
}

/// Where it stands in the vector of flags whether a value is not finite.
struct Flags {
    place: HashMap<Value, usize>,
    /// The number of values that are measured; behind them stand a 0 and a 1, then whether each is NaN.
    measured: usize,
}

impl Flags {
    /// The place of a value's flag; that of integers and truth values is 0.
    fn of(&self, value: Value) -> usize {
        self.place.get(&value).copied().unwrap_or(self.finite())
    }

    fn finite(&self) -> usize {
        self.measured
    }

    fn not_finite(&self) -> usize {
        self.measured + 1
    }

    fn nan(&self, value: Value) -> usize {
        self.measured + 2 + self.of(value)
    }
}

/// A result that may be the first, and the places of its own flag and of those of its operands.
struct Candidate {
    value: Value,
    own: usize,
    operands: Vec<usize>,
}

/// The probe of a graph; `None` if it computes no floats.
pub(super) fn probe(source: &Graph, end: End) -> Result<Option<Probe>, OpError> {
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
        End::Output => number,
        End::Fails => {
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
    Ok(Some(Probe {
        graph,
        candidates: candidates.into_iter().map(|c| c.value).collect(),
        end,
        output,
    }))
}

/// The results of a node that are floats.
fn floats(node: NodeId, n: &Node) -> impl Iterator<Item = (Value, DType)> {
    let ports = n.outputs.iter().enumerate();
    ports.filter_map(move |(port, ty)| {
        let port = port as u8;
        ty.dtype
            .is_float()
            .then_some((Value { node, port }, ty.dtype))
    })
}

/// The vector of flags and what stands where in it.
fn flags(g: &mut Graph, source: &Graph) -> Result<Option<(Flags, Value)>, OpError> {
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
        // Neither holds for NaN; both do where there are no elements.
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
    let flags = Flags { place, measured };
    bad.push(indices(g, [0, 1].into_iter())?);
    bad.extend(nan);
    let vector = g.concat(&bad, 0)?;
    let mut flags = flags;
    for (value, finite) in known {
        let at = match finite {
            true => flags.finite(),
            false => flags.not_finite(),
        };
        flags.place.insert(value, at);
    }
    Ok(Some((flags, vector)))
}

fn candidates(source: &Graph, flags: &Flags) -> Vec<Candidate> {
    let mut candidates = Vec::new();
    for (id, node) in source.nodes() {
        // A constant is what was meant, and so is a node that is told to write infinities.
        if matches!(node.op, Op::Const(_)) || names_infinity(&node.op) {
            continue;
        }
        for (value, _) in floats(id, node) {
            candidates.push(match node.op.is_leaf() {
                // Infinities that are given may be a mask; NaN is not.
                true => Candidate {
                    value,
                    own: flags.nan(value),
                    operands: Vec::new(),
                },
                false => Candidate {
                    value,
                    own: flags.of(value),
                    operands: node.inputs.iter().map(|v| flags.of(*v)).collect(),
                },
            });
        }
    }
    candidates
}

/// The number of the first candidate that is not finite and whose operands are, from 1; 0 if there is none.
fn first(
    g: &mut Graph,
    candidates: &[Candidate],
    flags: &Flags,
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
    tercet_ir::Found::of(tensor, Vec::<Span>::new()).is_none()
}

/// True if an attribute is not finite, as the padding of a maximum is.
fn names_infinity(op: &Op) -> bool {
    fn is_infinite(literal: &Literal) -> bool {
        match literal {
            Literal::Float(x) => !x.is_finite(),
            Literal::List(list) | Literal::Call(_, list) => list.iter().any(is_infinite),
            Literal::Int(_)
            | Literal::Ident(_)
            | Literal::Str(_)
            | Literal::Dim(_)
            | Literal::Type(_)
            | Literal::Graph(_) => false,
        }
    }
    op.attrs().iter().any(|(_, literal)| is_infinite(literal))
}
