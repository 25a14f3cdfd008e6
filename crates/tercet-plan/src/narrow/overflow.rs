//! Overflow checks of I64 arithmetic that runs in I32.
//!
//! If the I64 result of a node may not fit into I32, the narrowed graph contains an overflow value.
//! This I32 tensor is nonzero for elements that do not fit. A gather node that reads the overflow
//! value marks it as a check ([`is_overflow_check`]). The lowering of this gather emits a data
//! check, so the run fails before it writes a state. A node needs no check if the value ranges of
//! its operands show that its results fit into I32.

use std::collections::{HashMap, HashSet};

use tercet_ir::attr::FloatAttr;
use tercet_ir::ops::{
    CumSum, Gather, IndexMap, Map, MapArg, MapStep, Op, Pool, PoolFn, Reduce, ReduceFn, ScanFn,
};
use tercet_ir::scalar::{BinaryFn, CompareFn, ScalarOp, UnaryFn};
use tercet_ir::{DType, Graph, Node, NodeId, OpError, Shape, Tensor, Value};

/// First operand of a gather that marks it as an overflow check; no model gathers from this table.
const MARK: i32 = 0x6936_346f;
const LEAST: i128 = i32::MIN as i128;
const MOST: i128 = i32::MAX as i128;
/// A float below 2^31 and above every integer power below 2^31, with room for rounding.
const POWER_LIMIT: f64 = 2_147_440_000.0;
/// Like [`POWER_LIMIT`], but with room for the rounding errors of long products.
const PRODUCT_LIMIT: f64 = 2_147_000_000.0;
/// Maximum numbers of summands for which sums of 16-bit and of 8-bit parts of integers fit into
/// I32.
const MAX_PARTS: [usize; 2] = [32_767, 8_388_607];

/// Least and greatest value that an integer may have.
type IntRange = (i128, i128);

const FULL: IntRange = (LEAST, MOST);

fn fits((least, most): IntRange) -> bool {
    least >= LEAST && most <= MOST
}

/// Whether a gather is an overflow check; its second operand is then the overflow value.
pub fn is_overflow_check(graph: &Graph, node: &Node) -> bool {
    let Some(Op::Const(table)) = node.inputs.first().map(|v| &graph.node(v.node).op) else {
        return false;
    };
    let tensor = &table.tensor;
    matches!(node.op, Op::Gather(_))
        && tensor.dtype() == DType::I32
        && tensor.shape() == [1]
        && tensor.to_i64s() == [i64::from(MARK)]
}

/// The known value ranges of the integers in the source graph.
#[derive(Default)]
pub(super) struct IntRanges {
    ranges: HashMap<Value, IntRange>,
    /// Nodes whose integer results derive from floats.
    from_floats: HashSet<NodeId>,
}

impl IntRanges {
    fn of(&self, v: Value) -> IntRange {
        self.ranges.get(&v).copied().unwrap_or(FULL)
    }

    /// Records the range of a node's first result. Returns `true` if the result may be outside the
    /// I32 range.
    pub(super) fn may_overflow(&mut self, graph: &Graph, node: &Node, result: Value) -> bool {
        let dtype = graph.ty(result).dtype;
        let range = match self.range(graph, node) {
            Some(range) => range,
            None => dtype
                .int_range()
                .map_or(FULL, |(a, b)| (a.into(), b.into())),
        };
        let is_wide = dtype == DType::I64;
        let range = match fits(range) {
            true => range,
            false => FULL,
        };
        let overflows = is_wide && self.range(graph, node).is_some_and(|r| !fits(r));
        if is_wide || dtype == DType::I32 {
            self.ranges.insert(result, range);
        }
        let derives = self.derives_from_floats(graph, node, result);
        overflows && !derives
    }

    /// Whether the integer results of a node derive from floats, through casts. Casts of floats
    /// beyond an integer's range have unspecified results, and models discard them. For example, a
    /// model selects another value at position 0, whose logarithm is -inf.
    fn derives_from_floats(&mut self, graph: &Graph, node: &Node, result: Value) -> bool {
        let derives = node.inputs.iter().any(|v| {
            let dtype = graph.ty(*v).dtype;
            dtype.is_float() || (dtype.is_int() && self.from_floats.contains(&v.node))
        });
        if derives {
            self.from_floats.insert(result.node);
        }
        derives
    }

    /// The range of a node's first result in exact arithmetic; `None` if the result may have any
    /// value of its dtype but cannot overflow.
    fn range(&self, graph: &Graph, node: &Node) -> Option<IntRange> {
        let x = |i: usize| self.operand(graph, node.inputs[i]);
        match &node.op {
            Op::Const(c) if c.tensor.dtype().is_int() => {
                let values = c.tensor.to_i64s();
                let least = values.iter().min().copied().unwrap_or(0);
                let most = values.iter().max().copied().unwrap_or(0);
                Some((least.into(), most.into()))
            }
            Op::Unary(o) => scalar_range(&ScalarOp::Unary(o.f), &[x(0)]),
            Op::Binary(o) => scalar_range(&ScalarOp::Binary(o.f), &[x(0), x(1)]),
            Op::Cast(o) => scalar_range(&ScalarOp::Cast(o.to), &[x(0)]),
            Op::Clamp(_) => Some(x(0)),
            Op::Fma(_) => scalar_range(&ScalarOp::Fma, &[x(0), x(1), x(2)]),
            Op::Map(map) => self.map_range(graph, node, map),
            Op::Where(_) => Some(union(x(1), x(2))),
            Op::Reshape(_)
            | Op::Transpose(_)
            | Op::Slice(_)
            | Op::Expand(_)
            | Op::Tile(_)
            | Op::Roll(_)
            | Op::Gather(_)
            | Op::GatherElements(_)
            | Op::GatherNd(_)
            | Op::DynamicSlice(_)
            | Op::Sort(_)
            | Op::TopK(_) => Some(x(0)),
            Op::Concat(_) => {
                let all = node.inputs.iter().map(|v| self.operand(graph, *v));
                all.reduce(union)
            }
            Op::ArgMax(o) => Some(self.index_range(graph, node, o.axis)),
            Op::ArgMin(o) => Some(self.index_range(graph, node, o.axis)),
            Op::OneHot(_) => Some((0, 1)),
            Op::Reduce(o) => match o.f {
                ReduceFn::Sum => Some(times(x(0), count(graph, node, &o.axes))),
                ReduceFn::Prod => Some((LEAST - 1, MOST + 1)),
                ReduceFn::Max | ReduceFn::Min | ReduceFn::Mean => None,
            },
            Op::CumSum(o) => match o.f {
                ScanFn::Sum => Some(times(x(0), count(graph, node, &[o.axis]))),
                ScanFn::Prod => Some((LEAST - 1, MOST + 1)),
                ScanFn::Max | ScanFn::Min => None,
            },
            Op::Pool(o) => match o.f {
                PoolFn::Sum => Some(times(x(0), Some(o.kernel.iter().product()))),
                PoolFn::Prod => Some((LEAST - 1, MOST + 1)),
                PoolFn::Max | PoolFn::Min | PoolFn::Mean => None,
            },
            _ => None,
        }
    }

    fn operand(&self, graph: &Graph, v: Value) -> IntRange {
        match graph.ty(v).dtype {
            DType::I64 | DType::I32 => self.of(v),
            // Casts from floats saturate in I64.
            d if d.is_float() => (i64::MIN.into(), i64::MAX.into()),
            d => d.int_range().map_or(FULL, |(a, b)| (a.into(), b.into())),
        }
    }

    fn index_range(&self, graph: &Graph, node: &Node, axis: usize) -> IntRange {
        let size = graph.ty(node.inputs[0]).shape[axis].known();
        size.map_or(FULL, |n| (0, n as i128))
    }

    /// The union of the ranges of all I64 steps that do not derive from floats.
    fn map_range(&self, graph: &Graph, node: &Node, map: &Map) -> Option<IntRange> {
        let dtypes: Vec<DType> = node.inputs.iter().map(|v| graph.ty(*v).dtype).collect();
        let steps = map.step_dtypes(&dtypes).ok()?;
        let derived = derived_steps(&map.body, &dtypes, &steps);
        let mut ranges: Vec<IntRange> = Vec::with_capacity(map.body.len());
        let mut all: Option<IntRange> = None;
        for ((step, dtype), is_derived) in map.body.iter().zip(&steps).zip(derived) {
            let args: Vec<IntRange> = step
                .args
                .iter()
                .map(|arg| match *arg {
                    MapArg::Input(i) => self.operand(graph, node.inputs[i]),
                    MapArg::Step(i) => ranges[i],
                })
                .collect();
            let own = dtype.int_range().map(|(a, b)| (a.into(), b.into()));
            let exact = scalar_range(&step.op, &args);
            let range = match (dtype, exact) {
                (DType::I64, _) if is_derived => FULL,
                (DType::I64, Some(range)) => {
                    all = Some(all.map_or(range, |all| union(all, range)));
                    if fits(range) { range } else { FULL }
                }
                (DType::I64, None) => FULL,
                (DType::I32, Some(range)) if fits(range) => range,
                (d, _) if d.is_float() => (i64::MIN.into(), i64::MAX.into()),
                (_, _) => own.unwrap_or(FULL),
            };
            ranges.push(range);
        }
        all
    }
}

/// For each step, whether it is an integer that derives from a float.
fn derived_steps(body: &[MapStep], inputs: &[DType], steps: &[DType]) -> Vec<bool> {
    let mut derived: Vec<bool> = Vec::with_capacity(body.len());
    for (step, dtype) in body.iter().zip(steps) {
        let of_float = step.args.iter().any(|arg| match *arg {
            MapArg::Input(i) => inputs[i].is_float(),
            MapArg::Step(i) => steps[i].is_float() || derived[i],
        });
        derived.push(of_float && dtype.is_int());
    }
    derived
}

fn union(a: IntRange, b: IntRange) -> IntRange {
    (a.0.min(b.0), a.1.max(b.1))
}

fn hull(values: &[i128]) -> IntRange {
    let least = values.iter().min().copied().unwrap_or(0);
    (least, values.iter().max().copied().unwrap_or(0))
}

/// The range of partial sums of at most `count` terms.
fn times(range: IntRange, count: Option<usize>) -> IntRange {
    let count = count.map_or(MOST, |n| n as i128);
    (range.0.min(0) * count, range.1.max(0) * count)
}

/// The number of elements along axes, if it is known.
fn count(graph: &Graph, node: &Node, axes: &[usize]) -> Option<usize> {
    let shape = &graph.ty(node.inputs[0]).shape;
    let sizes = axes.iter().map(|&a| shape[a].known());
    sizes.product()
}

/// The range of a scalar function in exact arithmetic; `None` for functions whose results are never
/// larger than their operands.
fn scalar_range(op: &ScalarOp, x: &[IntRange]) -> Option<IntRange> {
    let corners = |f: fn(i128, i128) -> i128| {
        let (a, b) = (x[0], x[1]);
        hull(&[f(a.0, b.0), f(a.0, b.1), f(a.1, b.0), f(a.1, b.1)])
    };
    let beyond = (LEAST - 1, MOST + 1);
    Some(match op {
        ScalarOp::Const(_, v) => (v.0 as i128, v.0 as i128),
        ScalarOp::Cast(_) => x[0],
        ScalarOp::Unary(UnaryFn::Neg) => (-x[0].1, -x[0].0),
        ScalarOp::Unary(UnaryFn::Abs) => (0, x[0].0.abs().max(x[0].1.abs())),
        ScalarOp::Binary(BinaryFn::Add) => (x[0].0 + x[1].0, x[0].1 + x[1].1),
        ScalarOp::Binary(BinaryFn::Sub) => (x[0].0 - x[1].1, x[0].1 - x[1].0),
        ScalarOp::Binary(BinaryFn::Mul) => corners(|a, b| a * b),
        ScalarOp::Binary(BinaryFn::Max) => (x[0].0.max(x[1].0), x[0].1.max(x[1].1)),
        ScalarOp::Binary(BinaryFn::Min) => (x[0].0.min(x[1].0), x[0].1.min(x[1].1)),
        ScalarOp::Binary(BinaryFn::Div) => {
            let most = x[0].0.abs().max(x[0].1.abs());
            (-most, if x[1].0 > -1 { x[0].1.max(0) } else { most })
        }
        ScalarOp::Binary(BinaryFn::Shr) if x[1].0 >= 0 && x[1].1 < 32 => return None,
        ScalarOp::Binary(BinaryFn::Pow | BinaryFn::Shl | BinaryFn::Shr) => beyond,
        ScalarOp::Fma => {
            let product = scalar_range(&ScalarOp::Binary(BinaryFn::Mul), &x[..2])?;
            let product = if fits(product) { product } else { beyond };
            (product.0 + x[2].0, product.1 + x[2].1)
        }
        ScalarOp::Where => union(x[1], x[2]),
        _ => return None,
    })
}

/// Adds the overflow check of a narrowed node. `node` is the source node, `inputs` and `result` are
/// values of the narrowed graph.
///
/// # Errors
/// [`OpError`] of the graph builder.
pub(super) fn add_check(
    new: &mut Graph,
    source: &Graph,
    node: &Node,
    inputs: &[Value],
    result: Value,
) -> Result<(), OpError> {
    let flag = match &node.op {
        Op::Reduce(o) => reduction_flag(new, source, node, o, inputs[0])?,
        Op::CumSum(o) => scan_flag(new, source, node, o, inputs[0])?,
        Op::Pool(o) => pool_flag(new, o, inputs[0])?,
        _ => map_flag(new, source, node, inputs, result)?,
    };
    let Some(flag) = flag else { return Ok(()) };
    let mark = Tensor::scalar(MARK).reshaped(&[1]);
    let Ok(mark) = mark else { return Ok(()) };
    let mark = new.constant(mark)?;
    new.add(Gather { axis: 0 }, &[mark, flag])?;
    Ok(())
}

/// Steps of a map under construction that computes overflow values, and the steps that are true if
/// there is an overflow.
struct OverflowSteps {
    body: Vec<MapStep>,
    flags: Vec<MapArg>,
}

impl OverflowSteps {
    fn step(&mut self, op: ScalarOp, args: &[MapArg]) -> MapArg {
        self.body.push(MapStep::new(op, args.to_vec()));
        MapArg::Step(self.body.len() - 1)
    }

    fn constant(&mut self, dtype: DType, value: f64) -> MapArg {
        self.step(ScalarOp::Const(dtype, FloatAttr(value)), &[])
    }

    fn int(&mut self, value: i32) -> MapArg {
        self.constant(DType::I32, value.into())
    }

    fn binary(&mut self, f: BinaryFn, a: MapArg, b: MapArg) -> MapArg {
        self.step(ScalarOp::Binary(f), &[a, b])
    }

    fn compare(&mut self, f: CompareFn, a: MapArg, b: MapArg) -> MapArg {
        self.step(ScalarOp::Compare(f), &[a, b])
    }

    fn is(&mut self, x: MapArg, value: i32) -> MapArg {
        let value = self.int(value);
        self.compare(CompareFn::Eq, x, value)
    }

    fn negative(&mut self, x: MapArg) -> MapArg {
        let zero = self.int(0);
        self.compare(CompareFn::Lt, x, zero)
    }

    /// Adds the condition under which `y = op(x)` is outside the I32 range; `from` is the dtype of
    /// the operands.
    fn check(&mut self, op: &ScalarOp, from: DType, x: &[MapArg], y: MapArg) {
        use BinaryFn::{And, Or, Xor};
        let flag = match op {
            ScalarOp::Unary(UnaryFn::Neg | UnaryFn::Abs) => self.is(x[0], i32::MIN),
            ScalarOp::Binary(BinaryFn::Add) => {
                // A sum overflows if both operands have the same sign and the result has the other
                // sign.
                let (a, b) = (self.binary(Xor, x[0], y), self.binary(Xor, x[1], y));
                let both = self.binary(And, a, b);
                self.negative(both)
            }
            ScalarOp::Binary(BinaryFn::Sub) => {
                let (a, b) = (self.binary(Xor, x[0], x[1]), self.binary(Xor, x[0], y));
                let both = self.binary(And, a, b);
                self.negative(both)
            }
            ScalarOp::Binary(BinaryFn::Mul) => self.product(x[0], x[1], y),
            ScalarOp::Binary(BinaryFn::Div) => {
                let (a, b) = (self.is(x[0], i32::MIN), self.is(x[1], -1));
                self.binary(And, a, b)
            }
            ScalarOp::Binary(BinaryFn::Pow) => self.power(x[0], x[1]),
            ScalarOp::Binary(BinaryFn::Shl | BinaryFn::Shr) => {
                // Shift counts are taken modulo 64 in I64, and modulo 32 in I32.
                let (mask, half) = (self.int(63), self.int(32));
                let count = self.binary(And, x[1], mask);
                let far = self.compare(CompareFn::Ge, count, half);
                match op {
                    ScalarOp::Binary(BinaryFn::Shl) => {
                        let back = self.binary(BinaryFn::Shr, y, x[1]);
                        let lost = self.compare(CompareFn::Ne, back, x[0]);
                        // A zero operand shifted by any count is zero, which is no overflow.
                        let zero = self.int(0);
                        let has_bits = self.compare(CompareFn::Ne, x[0], zero);
                        let far = self.binary(And, far, has_bits);
                        self.binary(Or, far, lost)
                    }
                    _ => far,
                }
            }
            ScalarOp::Fma => {
                let product = self.binary(BinaryFn::Mul, x[0], x[1]);
                let flag = self.product(x[0], x[1], product);
                self.flags.push(flag);
                let (a, b) = (self.binary(Xor, product, y), self.binary(Xor, x[2], y));
                let both = self.binary(And, a, b);
                self.negative(both)
            }
            ScalarOp::Cast(_) if from == DType::U32 => self.negative(y),
            ScalarOp::Cast(_) if from.is_float() => {
                let above = self.constant(from, 2_147_483_648.0);
                let below = self.constant(from, -2_147_483_648.0);
                let above = self.compare(CompareFn::Ge, x[0], above);
                // In F16 the lower bound of I32 rounds to -inf, which is itself outside the I32
                // range.
                let under = match from {
                    DType::F16 => CompareFn::Le,
                    _ => CompareFn::Lt,
                };
                let below = self.compare(under, x[0], below);
                self.binary(Or, above, below)
            }
            _ => return,
        };
        self.flags.push(flag);
    }

    /// Whether the I32 product `y` wrapped, so that it differs from the exact product of `a` and
    /// `b`.
    fn product(&mut self, a: MapArg, b: MapArg, y: MapArg) -> MapArg {
        let quotient = self.binary(BinaryFn::Div, y, a);
        let differs = self.compare(CompareFn::Ne, quotient, b);
        // The quotient of the least I32 and -1 overflows too.
        let (minus, least) = (self.is(a, -1), self.is(b, i32::MIN));
        let wraps = self.binary(BinaryFn::And, minus, least);
        let wrong = self.binary(BinaryFn::Or, differs, wraps);
        let zero = self.int(0);
        let has_factor = self.compare(CompareFn::Ne, a, zero);
        self.binary(BinaryFn::And, has_factor, wrong)
    }

    /// Whether `|a|^b` exceeds I32, for `b > 1`. `(-2)^31` is the only power that equals the least
    /// I32.
    fn power(&mut self, a: MapArg, b: MapArg) -> MapArg {
        use BinaryFn::And;
        let to_float = ScalarOp::Cast(DType::F32);
        let base = self.step(to_float.clone(), &[a]);
        let base = self.step(ScalarOp::Unary(UnaryFn::Abs), &[base]);
        let exponent = self.step(to_float, &[b]);
        let size = self.binary(BinaryFn::Pow, base, exponent);
        let limit = self.constant(DType::F32, POWER_LIMIT);
        let large = self.compare(CompareFn::Gt, size, limit);
        let one = self.int(1);
        let grows = self.compare(CompareFn::Gt, b, one);
        let (two, full) = (self.is(a, -2), self.is(b, 31));
        let border = self.binary(And, two, full);
        let inside = self.step(ScalarOp::Unary(UnaryFn::Not), &[border]);
        let large = self.binary(And, large, grows);
        self.binary(And, large, inside)
    }

    /// The map whose result is 1 for elements with an overflow, and 0 otherwise; `None` if no step
    /// can overflow.
    fn finish(mut self, shape: Shape, inputs: Vec<IndexMap>) -> Option<Map> {
        let mut flags = std::mem::take(&mut self.flags).into_iter();
        let first = flags.next()?;
        let any = flags.fold(first, |a, b| self.binary(BinaryFn::Or, a, b));
        self.step(ScalarOp::Cast(DType::I32), &[any]);
        Some(Map {
            shape,
            inputs,
            results: vec![self.body.len() - 1],
            body: self.body,
        })
    }
}

/// Adds the overflow value of an elementwise node to the graph.
fn map_flag(
    new: &mut Graph,
    source: &Graph,
    node: &Node,
    inputs: &[Value],
    result: Value,
) -> Result<Option<Value>, OpError> {
    let dtypes: Vec<DType> = node.inputs.iter().map(|v| source.ty(*v).dtype).collect();
    let shape = new.ty(result).shape.clone();
    let (body, maps) = match &node.op {
        Op::Map(map) => (map.body.clone(), map.inputs.clone()),
        op => {
            let op = match op {
                Op::Unary(o) => ScalarOp::Unary(o.f),
                Op::Binary(o) => ScalarOp::Binary(o.f),
                Op::Cast(o) => ScalarOp::Cast(o.to),
                Op::Fma(_) => ScalarOp::Fma,
                _ => return Ok(None),
            };
            let args: Vec<MapArg> = (0..inputs.len()).map(MapArg::Input).collect();
            let maps = inputs.iter().map(|v| {
                let from = &new.ty(*v).shape;
                IndexMap::broadcast(from, &shape)
            });
            (vec![MapStep::new(op, args)], maps.collect())
        }
    };
    let source_map = Map {
        shape: shape.clone(),
        inputs: maps.clone(),
        results: vec![body.len().saturating_sub(1)],
        body: body.clone(),
    };
    let Ok(types) = source_map.step_dtypes(&dtypes) else {
        return Ok(None);
    };
    let mut steps = OverflowSteps {
        body: body.iter().map(super::narrow_step).collect(),
        flags: Vec::new(),
    };
    let derived = derived_steps(&body, &dtypes, &types);
    for (at, step) in body.iter().enumerate() {
        if types[at] != DType::I64 || derived[at] {
            continue;
        }
        let from = step.args.last().map_or(DType::I64, |arg| match *arg {
            MapArg::Input(i) => dtypes[i],
            MapArg::Step(i) => types[i],
        });
        steps.check(&step.op, from, &step.args, MapArg::Step(at));
    }
    match steps.finish(shape, maps) {
        Some(map) => new.add(map, inputs).map(Some),
        None => Ok(None),
    }
}

/// `x >> shift`, of which only the bits in `mask` are kept.
fn part(g: &mut Graph, x: Value, shift: u32, mask: Option<i32>) -> Result<Value, OpError> {
    let shift = g.scalar(DType::I32, shift.into())?;
    let y = g.binary(BinaryFn::Shr, x, shift)?;
    match mask {
        Some(mask) => {
            let mask = g.scalar(DType::I32, mask.into())?;
            g.binary(BinaryFn::And, y, mask)
        }
        None => Ok(y),
    }
}

/// Adds the overflow value of sums. Each summand is split into parts of `bits` bits, whose sums
/// cannot overflow; `sum` adds one part of all summands.
fn sum_flag(
    g: &mut Graph,
    x: Value,
    bits: u32,
    sum: &mut dyn FnMut(&mut Graph, Value) -> Result<Value, OpError>,
) -> Result<Option<Value>, OpError> {
    let count = 32 / bits;
    let mut carry: Option<Value> = None;
    for at in 0..count {
        let mask = (at + 1 < count).then_some((1 << bits) - 1);
        let own = part(g, x, at * bits, mask)?;
        let mut total = sum(g, own)?;
        if let Some(before) = carry {
            let above = part(g, before, bits, None)?;
            total = g.plus(total, above)?;
        }
        carry = Some(total);
    }
    let Some(high) = carry else { return Ok(None) };
    // The sum fits into I32 if the sum of the highest parts, with carry, fits into `bits` bits.
    let bound = f64::from(1u32 << (bits - 1));
    let (least, most) = (
        g.scalar(DType::I32, -bound)?,
        g.scalar(DType::I32, bound - 1.0)?,
    );
    let below = g.compare(CompareFn::Lt, high, least)?;
    let above = g.compare(CompareFn::Gt, high, most)?;
    let outside = g.binary(BinaryFn::Or, below, above)?;
    g.cast(outside, DType::I32).map(Some)
}

/// Adds the overflow value of products: 1 if the F32 product of the factors' magnitudes exceeds
/// [`PRODUCT_LIMIT`], else 0.
fn product_flag(
    g: &mut Graph,
    x: Value,
    product: &mut dyn FnMut(&mut Graph, Value) -> Result<Value, OpError>,
) -> Result<Option<Value>, OpError> {
    let float = g.cast(x, DType::F32)?;
    let size = g.abs(float)?;
    let size = product(g, size)?;
    let limit = g.scalar(DType::F32, PRODUCT_LIMIT)?;
    let large = g.compare(CompareFn::Gt, size, limit)?;
    g.cast(large, DType::I32).map(Some)
}

/// The number of bits of the parts that summands are split into, so that sums of parts cannot
/// overflow; `None` for too many summands.
fn part_bits(count: Option<usize>) -> Option<u32> {
    match count {
        Some(n) if n <= MAX_PARTS[0] => Some(16),
        Some(n) if n > MAX_PARTS[1] => None,
        Some(_) | None => Some(8),
    }
}

fn reduction_flag(
    g: &mut Graph,
    source: &Graph,
    node: &Node,
    reduce: &Reduce,
    x: Value,
) -> Result<Option<Value>, OpError> {
    let mut over = |g: &mut Graph, x: Value| g.add(reduce.clone(), &[x]);
    match reduce.f {
        ReduceFn::Sum => match part_bits(count(source, node, &reduce.axes)) {
            Some(bits) => sum_flag(g, x, bits, &mut over),
            None => Ok(None),
        },
        ReduceFn::Prod => product_flag(g, x, &mut over),
        ReduceFn::Mean | ReduceFn::Max | ReduceFn::Min => Ok(None),
    }
}

fn pool_flag(g: &mut Graph, pool: &Pool, x: Value) -> Result<Option<Value>, OpError> {
    let mut over = |g: &mut Graph, x: Value| g.add(pool.clone(), &[x]);
    match pool.f {
        PoolFn::Sum => match part_bits(Some(pool.kernel.iter().product())) {
            Some(bits) => sum_flag(g, x, bits, &mut over),
            None => Ok(None),
        },
        PoolFn::Prod => product_flag(g, x, &mut over),
        PoolFn::Max | PoolFn::Min | PoolFn::Mean => Ok(None),
    }
}

fn scan_flag(
    g: &mut Graph,
    source: &Graph,
    node: &Node,
    scan: &CumSum,
    x: Value,
) -> Result<Option<Value>, OpError> {
    let mut over = |g: &mut Graph, x: Value| g.scan(x, scan.clone());
    match scan.f {
        ScanFn::Sum => match part_bits(count(source, node, &[scan.axis])) {
            Some(bits) => sum_flag(g, x, bits, &mut over),
            None => Ok(None),
        },
        ScanFn::Prod => product_flag(g, x, &mut over),
        ScanFn::Max | ScanFn::Min => Ok(None),
    }
}
