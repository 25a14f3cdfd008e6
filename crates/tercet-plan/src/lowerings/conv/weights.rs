//! Gradients of convolutions' weights: products over the batch and the windows of `dy`, whose right side is what channels of
//! `x` have at each tap of each window. Nothing is laid out in memory first.
//!
//! On cooperative matrices for 16-bit floats where the device has them (`weights_coop.rs`), else in tiles. Sums are long and
//! results few: parts of them are summed side by side, in F32, and added in their order by `conv_finish.wgsl`.

use tercet_ir::ops::{ConvWeightGrad, Op, Window};
use tercet_ir::{CompileError, DType, Dim, Node, OpKind};

use super::kernels::{FINISH, FinishParams, WEIGHTS, Weights};
use super::weights_coop::{self, Coop};
use super::windows::{Windows, product};
use crate::emit::{Emit, View};
use crate::families::tiles::{Size, TileProblem, Tiles, Waits, full_unit};
use crate::families::{Family, always, code, gemm_coop};
use crate::num::Num;
use crate::variant::{self, Variant, needs};

/// Gradients of weights.
pub(crate) static WEIGHT_GRADS: Family = Family {
    name: "conv_weight_grad",
    ops: &[OpKind::ConvWeightGrad],
    kernels: &[
        &WEIGHTS.words.def,
        &WEIGHTS.quads.def,
        &WEIGHTS.half_quads.def,
        &weights_coop::F16.def,
        &weights_coop::BF16.def,
    ],
    supports: always,
    lower,
};

/// Parts of the sums that tiles are tried with.
const PARTS: &[u32] = &[1, 2, 3, 4, 6, 8, 9, 12, 16, 24, 32, 48, 64];

/// Lines of a batch entry are whole quads.
const QUAD: u32 = 4;

/// A gradient with its operands.
pub(super) struct Given {
    pub(super) windows: Windows,
    pub(super) groups: usize,
    pub(super) x: View,
    /// Dense.
    pub(super) dy: View,
    /// The channels of dy in a group.
    pub(super) m: Dim,
    /// The channels of x in a group.
    pub(super) own: Dim,
    /// Channels of x and their taps.
    pub(super) n: Dim,
    pub(super) y: View,
}

fn lower(e: &mut Emit<'_>, node: &Node) -> Result<(), CompileError> {
    let Op::ConvWeightGrad(op) = &node.op else {
        unreachable!("invariant: a family lowers its own operators")
    };
    let given = Given::of(e, node, op)?;
    variant::run(e, &variants(), None, &given)
}

fn variants() -> [Variant<Given>; 2] {
    [
        Variant {
            name: "matrices",
            supports: |e, g| {
                let what = "cooperative matrices of 16-bit floats, 16 channels of dy and columns, up to 64 taps";
                needs(Coop::of(e, g)?.is_some(), what)
            },
            cost: |e, g| Ok(Coop::of(e, g)?.map_or(0.0, |coop| coop.seconds(e))),
            emit: |e, g| match Coop::of(e, g)? {
                Some(coop) => {
                    e.took_as(coop.name());
                    coop.dispatch(e, g)
                }
                None => unreachable!("invariant: the variant supports it"),
            },
        },
        Variant {
            name: "tiles",
            supports: |_, _| Ok(()),
            cost: |e, g| Ok(g.best(e)?.time / e.caps.device.rates.tiles.per_s),
            emit: |e, g| g.tiles(e),
        },
    ]
}

impl Given {
    fn of(e: &mut Emit<'_>, node: &Node, op: &ConvWeightGrad) -> Result<Given, CompileError> {
        let x = e.view(node.inputs[0]);
        let dy = e.view(node.inputs[1]);
        let y = e.result(0)?;
        if let Some(given) = Given::of_rows(e, op, [&x, &dy], &y)? {
            return Ok(given);
        }
        let dy = e.dense(&dy)?;
        let shape = y.layout.shape();
        let m = shape[0].div_exact(&Dim::Known(op.groups));
        let out = dy.layout.shape()[2..].to_vec();
        Ok(Given {
            windows: Windows::of(&op.window(), &op.kernel, out),
            groups: op.groups,
            m: m.unwrap_or_else(|| unreachable!("invariant: groups divide channels")),
            own: shape[1].clone(),
            n: product(&shape[1..]),
            x,
            dy,
            y,
        })
    }

    /// Where windows are elements, and rows of an entry's do not begin with whole words for matrices: rows of all entries, copied.
    fn of_rows(
        e: &mut Emit<'_>,
        op: &ConvWeightGrad,
        [x, dy]: [&View; 2],
        y: &View,
    ) -> Result<Option<Given>, CompileError> {
        const LOAD: usize = 8;
        let has_matrices = gemm_coop::type_of(x.dtype)
            .is_some_and(|ty| e.caps.spirv && e.caps.coop.iter().any(|c| c.ty == ty));
        let shape = x.layout.shape();
        let (window, rest) = (Window::new(op.kernel.len()), &shape[2..]);
        let are_elements = op.window() == window && op.kernel.iter().all(|n| *n == 1);
        let (Some(entries), Some(count)) = (shape[0].known(), product(rest).known()) else {
            return Ok(None);
        };
        let all = entries.saturating_mul(count);
        let is_broken = !count.is_multiple_of(LOAD) && all.is_multiple_of(LOAD) && all > 0;
        let m = y.layout.shape()[0].div_exact(&Dim::Known(op.groups));
        let (Some(m), true) = (m, has_matrices && are_elements && is_broken) else {
            return Ok(None);
        };
        let rows = |e: &mut Emit<'_>, view: &View| -> Result<View, CompileError> {
            let rank = view.layout.shape().len();
            let channels = view.layout.shape()[1].clone();
            let turn: Vec<usize> = [1, 0].into_iter().chain(2..rank).collect();
            let turned = View {
                layout: view.layout.transpose(&turn),
                ..view.clone()
            };
            let rows = e.dense(&turned)?;
            let layout = rows
                .layout
                .reshape(&[Dim::Known(1), channels, Dim::Known(all)]);
            Ok(View {
                layout: layout.unwrap_or_else(|| unreachable!("invariant: dense views reshape")),
                ..rows
            })
        };
        let shape = y.layout.shape();
        Ok(Some(Given {
            windows: Windows::of(&Window::new(1), &[1], vec![Dim::Known(all)]),
            groups: op.groups,
            x: rows(e, x)?,
            dy: rows(e, dy)?,
            m,
            own: shape[1].clone(),
            n: product(&shape[1..]),
            y: y.clone(),
        }))
    }

    /// The windows of all batch entries.
    pub(super) fn lines(&self, e: &Emit<'_>) -> Result<usize, CompileError> {
        let entries = e.bound(&self.x.layout.shape()[0])?;
        Ok(entries.saturating_mul(e.bound(&self.windows.count)?))
    }

    /// The most bytes that sums of parts may take.
    pub(super) fn most_bytes(e: &Emit<'_>) -> u64 {
        e.caps.max_binding_bytes / 2
    }

    /// A slot for sums of parts: `[part, channel of dy, column]`.
    pub(super) fn parts(&self, e: &mut Emit<'_>, parts: u32) -> Result<View, CompileError> {
        let channels = self.y.layout.shape()[0].clone();
        let shape = [Dim::Known(parts as usize), channels, self.n.clone()];
        e.temp(DType::F32, &shape)
    }

    /// Adds sums of parts and rounds them.
    pub(super) fn finish(
        &self,
        e: &mut Emit<'_>,
        sums: &View,
        parts: u32,
    ) -> Result<(), CompileError> {
        let shape = self.y.layout.shape().to_vec();
        let (channels, columns) = (e.num(&shape[0]), e.num(&self.n));
        let count = e.numel(&shape);
        let params = FinishParams {
            count,
            channels,
            windows: columns,
            sums_part: count,
            sums_entry: count,
            sums_channel: columns,
            bias_offset: Num::ZERO,
            bias_row: Num::ZERO,
            bias_stride: Num::ZERO,
            zero: Num::ZERO,
        };
        let words = e.words(self.y.dtype, &shape);
        let grid = e.grid_of(words, 256);
        let consts = [0, 0, code(self.x.dtype), code(self.y.dtype), parts];
        let none = e.temp(DType::U32, &[Dim::Known(1)])?.slot;
        let args = [sums.slot, none, self.y.slot];
        e.dispatch(FINISH.pick(false), &consts, &args, &params, grid);
        Ok(())
    }

    /// The tiles with which the busiest unit has least to do.
    fn best(&self, e: &Emit<'_>) -> Result<Tiles, CompileError> {
        let problem = TileProblem {
            rows: e.bound(&self.m)?,
            columns: e.bound(&self.n)?,
            k: self.lines(e)?,
            products: self.groups,
            device: &e.caps.device,
            full_unit: full_unit(&e.caps.device, Waits::ForWindows),
            most_bytes: Given::most_bytes(e),
        };
        let rates = &e.caps.device.rates.tiles.windows;
        let best = problem.best_in(&rates.each_ref().map(Size::of_quads), PARTS);
        Ok(best.unwrap_or_else(|| unreachable!("invariant: there are sizes")))
    }

    /// Tiles that gather windows while they multiply.
    fn tiles(&self, e: &mut Emit<'_>) -> Result<(), CompileError> {
        let tiles = self.best(e)?;
        let is_whole = tiles.parts == 1 && self.y.dtype == DType::F32;
        let sums = match is_whole {
            true => self.y.clone(),
            false => self.parts(e, tiles.parts)?,
        };
        let mut params = self.windows.params(e, &self.x);
        params.groups = Num::Const(self.groups as i64);
        params.m = e.num(&self.m);
        params.channels = e.num(&self.own);
        let quads = e.tape().ceil_div(params.windows, QUAD);
        params.k = e.tape().mul(quads, Num::Const(QUAD.into()));
        let apart = self.dy.slot != self.x.slot;
        let some = self.windows.count.twos() >= 2 && self.lines(e)? > 0;
        let kernel = WEIGHTS.pick(match (apart && some, self.dy.dtype) {
            (false, _) => Weights::Words,
            (true, DType::F32) => Weights::Quads,
            (true, _) => Weights::HalfQuads,
        });
        let [tm, tn] = tiles.size.sides();
        let columns = e.num(&self.n);
        let limit = e.caps.max_grid;
        let tape = e.tape();
        let (down, across) = (
            tape.ceil_div(params.m, 8 * tm),
            tape.ceil_div(columns, 8 * tn),
        );
        let grid = tape.mul(down, across);
        let products = tape.mul(params.groups, Num::Const(i64::from(tiles.parts)));
        let products = tape.min(products, limit);
        let [gx, gy, _] = e.flat_grid(grid);
        let mut consts = vec![0, 0, code(self.x.dtype), code(DType::F32)];
        consts.extend(self.windows.consts());
        consts.extend([tm, tn, tiles.parts]);
        // Never read.
        let none = e.temp(DType::U32, &[Dim::Known(1)])?.slot;
        let args = [self.x.slot, self.dy.slot, none, sums.slot];
        e.dispatch(kernel, &consts, &args, &params, [gx, gy, products]);
        match is_whole {
            true => Ok(()),
            false => self.finish(e, &sums, tiles.parts),
        }
    }
}
