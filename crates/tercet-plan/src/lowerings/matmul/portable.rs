//! Which kernels compute a product, and their numbers.

use tercet_ir::scalar::UnaryFn;
use tercet_ir::{CompileError, DType};

use super::gemm::{self, Tile};
use super::gemv;
use super::kernels::{INTS, NARROW, NarrowParams, ProductParams};
use super::narrowed;
use super::product::{Product, activation_code, least};
use super::skinny_laid::{self, Laid};
use crate::caps::FEW_ROWS;
use crate::emit::{Emit, View};
use crate::families::dequant::Blocks;
use crate::families::{code, map, norm};
use crate::kernel::Kernel;
use crate::num::Num;
use crate::program::SlotId;

/// The ways of a product, by the number of its rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum RowRange {
    /// As rows, at most so many.
    UpTo(u32),
    /// As rows, at most so many, in blocks of the most that are taken together.
    Blocks(u32),
    /// Laid out, at most so many.
    Dozens(u32),
    /// As tiles.
    Many,
}

/// One row, and a few rows.
const FEW: [RowRange; 2] = [RowRange::UpTo(1), RowRange::UpTo(FEW_ROWS as u32)];

impl RowRange {
    /// The most rows, where there is such a number.
    fn most(self) -> Option<u32> {
        match self {
            RowRange::UpTo(most) | RowRange::Blocks(most) | RowRange::Dozens(most) => Some(most),
            RowRange::Many => None,
        }
    }
}

/// Emits the way of a product, or each of them where the number of rows decides: [`FEW`], `others`, and more.
fn by_rows<'a>(
    e: &mut Emit<'a>,
    p: &Product,
    others: &[RowRange],
    mut way: impl FnMut(&mut Emit<'a>, RowRange) -> Result<(), CompileError>,
) -> Result<(), CompileError> {
    // No run has rows in a range that ends below their least number but for those without any, which every kernel takes.
    let least = least(&p.m);
    let is_reached = |rows: &&RowRange| rows.most().is_none_or(|most| most as usize >= least);
    let all = FEW.iter().chain(others).filter(is_reached);
    let all: Vec<RowRange> = all.copied().collect();
    let bounds: Vec<u32> = all.iter().filter_map(|rows| rows.most()).collect();
    e.choose(&p.m, &bounds, |e, arm| {
        way(e, all.get(arm).copied().unwrap_or(RowRange::Many))
    })
}

/// Two kernels that differ in what functions of a sum they have.
pub(super) struct Pair {
    pub(super) plain: &'static Kernel<ProductParams>,
    pub(super) activated: &'static Kernel<ProductParams>,
}

impl Pair {
    pub(super) fn pick(&self, activation: Option<UnaryFn>) -> &'static Kernel<ProductParams> {
        match activation {
            None | Some(UnaryFn::Relu | UnaryFn::Relu6) => self.plain,
            Some(_) => self.activated,
        }
    }
}

/// What all kernels of a product are given.
pub(super) struct Given {
    pub(super) params: ProductParams,
    /// The operands, the bias or what stands in for it, the result.
    pub(super) args: [SlotId; 4],
    /// The gains of the norm, or what stands in for them.
    gains: SlotId,
    /// The keys of rows that have matrices of their own.
    keys: Option<SlotId>,
    /// The codebook of packed weights, for kernels that take one.
    grid: Option<SlotId>,
    /// BIAS, ACTIVATION, A_TYPE, Y_TYPE.
    pub(super) consts: [u32; 4],
    /// Workgroups along z.
    pub(super) batches: Num,
}

pub(super) fn given(e: &mut Emit<'_>, p: &Product, y: &View) -> Result<Given, CompileError> {
    let mut params = ProductParams {
        batch_sizes: [Num::ONE; 8],
        a_batches: [Num::ZERO; 8],
        b_batches: [Num::ZERO; 8],
        batch_axes: Num::Const(p.batch.len() as i64),
        batch: e.numel(&p.batch),
        m: e.num(&p.m),
        n: e.num(&p.n),
        k: e.num(&p.k),
        a_offset: p.a.offset,
        a_row: p.a.own.stride,
        a_col: p.a.summed.stride,
        b_offset: p.b.offset,
        b_row: p.b.summed.stride,
        b_col: p.b.own.stride,
        bias_offset: Num::ZERO,
        bias_row: Num::ZERO,
        bias_stride: Num::ZERO,
        zero: Num::ZERO,
        eps: p.norm.as_ref().map_or(0.0, |norm| norm.eps),
        chain_waits: Num::ZERO,
        chain_wanted: Num::ZERO,
        chain_own: Num::ZERO,
    };
    for (axis, size) in e.sizes(&p.batch).into_iter().enumerate() {
        params.batch_sizes[axis] = size;
        params.a_batches[axis] = p.a.batch[axis].stride;
        params.b_batches[axis] = p.b.batch[axis].stride;
    }
    let bias = match p.bias.as_ref().or(p.residual.as_ref()) {
        Some(view) => {
            params.bias_offset = e.offset(view);
            let strides = e.strides(view);
            if let [row, _] = strides[..] {
                params.bias_row = row;
            }
            params.bias_stride = strides[strides.len() - 1];
            view.slot
        }
        None => e.absent()?,
    };
    let gains = match &p.norm {
        Some(norm) => norm.gain.slot,
        None => e.absent()?,
    };
    let limit = e.caps.max_grid;
    let batches = e.tape().min(params.batch, limit);
    Ok(Given {
        args: [p.a.slot, p.b.slot, bias, y.slot],
        gains,
        keys: None,
        grid: None,
        consts: [
            u32::from(p.bias.is_some() || p.residual.is_some()),
            activation_code(p.function()).unwrap_or(0),
            code(p.a.dtype),
            code(y.dtype),
        ],
        params,
        batches,
    })
}

impl Given {
    /// The same with the codebook of the weights, where kernels take one.
    pub(super) fn of_blocks(
        self,
        e: &mut Emit<'_>,
        blocks: &Blocks,
    ) -> Result<Given, CompileError> {
        let grid = blocks.grid(e)?;
        Ok(Given { grid, ..self })
    }

    /// The same with the keys of rows that have matrices of their own.
    pub(super) fn keyed(self, keys: SlotId) -> Given {
        Given {
            keys: Some(keys),
            ..self
        }
    }

    /// True if the weights are decoded with a codebook among the arguments.
    pub(super) fn is_coded(&self) -> bool {
        self.grid.is_some()
    }

    /// The same into sums of parts of `k`, to which nothing is done yet.
    pub(super) fn sums(&self, sums: SlotId) -> Given {
        let [a, b, bias, _] = self.args;
        let [_, _, a_type, _] = self.consts;
        Given {
            args: [a, b, bias, sums],
            consts: [0, 0, a_type, code(DType::F32)],
            params: self.params.clone(),
            ..*self
        }
    }

    pub(super) fn dispatch(
        &self,
        e: &mut Emit<'_>,
        kernel: &Kernel<ProductParams>,
        own: &[u32],
        grid: [Num; 3],
    ) {
        let consts: Vec<u32> = self.consts.iter().chain(own).copied().collect();
        let args: Vec<SlotId> = self.args.into_iter().chain(self.grid).collect();
        e.dispatch(kernel, &consts, &args, &self.params, grid);
    }

    /// As [`Given::dispatch`], for kernels that take the gains of a norm and the keys of rows, too.
    pub(super) fn dispatch_rows(
        &self,
        e: &mut Emit<'_>,
        kernel: &Kernel<ProductParams>,
        own: &[u32],
        grid: [Num; 3],
    ) {
        let consts: Vec<u32> = self.consts.iter().chain(own).copied().collect();
        let args = self.args.into_iter().chain([self.gains]);
        let args: Vec<SlotId> = args.chain(self.keys).chain(self.grid).collect();
        e.dispatch(kernel, &consts, &args, &self.params, grid);
    }

    /// As [`Given::dispatch_rows`], for kernels that are links of a chain where the device has them.
    pub(super) fn dispatch_held(
        &self,
        e: &mut Emit<'_>,
        kernels: [&Kernel<ProductParams>; 2],
        own: &[u32],
        grid: [Num; 3],
    ) {
        let consts: Vec<u32> = self.consts.iter().chain(own).copied().collect();
        let [alone, chained] = kernels;
        let chain = e.chain();
        let args = self.args.into_iter().chain([self.gains]);
        let args: Vec<SlotId> = args.chain(chain).collect();
        let kernel = if chain.is_some() { chained } else { alone };
        e.dispatch(kernel, &consts, &args, &self.params, grid);
    }

    /// The grid of tiles of so many rows and columns; flat over x and y.
    pub(super) fn tile_grid(&self, e: &mut Emit<'_>, tile: [u32; 2]) -> [Num; 3] {
        self.tile_grid_of_columns(e, self.params.n, tile, None)
    }

    /// The same of so many columns, in so many groups at most, where there is a limit.
    pub(super) fn tile_grid_of_columns(
        &self,
        e: &mut Emit<'_>,
        columns: Num,
        tile: [u32; 2],
        most: Option<u32>,
    ) -> [Num; 3] {
        let tape = e.tape();
        let down = tape.ceil_div(self.params.m, tile[0]);
        let across = tape.ceil_div(columns, tile[1]);
        let groups = tape.mul(down, across);
        let groups = most.map_or(groups, |most| tape.min(groups, most));
        let [x, y, _] = e.flat_grid(groups);
        [x, y, self.batches]
    }

    pub(super) fn tiles(
        &self,
        e: &mut Emit<'_>,
        kernel: &Kernel<ProductParams>,
        own: &[u32],
        tile: Tile,
    ) {
        let grid = self.tile_grid(e, [tile.len(); 2]);
        self.dispatch(e, kernel, own, grid);
    }
}

/// The sums of a product of floats, in the dtype of `y` where rows of `y` begin with words, else in
/// F32 and rounded by a kernel of its own.
pub(super) fn floats(e: &mut Emit<'_>, p: &Product, y: &View) -> Result<(), CompileError> {
    let mut p = p.clone().of_one_column_as_row();
    if !gemv::floats_take(e, &p, 1)?.norm {
        let rounded = narrowed::dtype_of(e, &p);
        p = with_norm_before(e, p, rounded)?;
    }
    let p = &p;
    through_f32(e, p, y, |e, sums| {
        by_rows(e, p, &[], |e, rows| {
            let takes = match rows {
                RowRange::UpTo(rows) => gemv::floats_take(e, p, rows)?,
                RowRange::Blocks(_) | RowRange::Dozens(_) => Takes::NOTHING,
                RowRange::Many => Takes::nothing_of(e, p),
            };
            takes.emit(e, p, sums, |e, p, sums| {
                let given = given(e, p, sums)?;
                match rows {
                    RowRange::UpTo(rows) => gemv::floats(e, p, &given, rows),
                    RowRange::Blocks(_) | RowRange::Dozens(_) | RowRange::Many => {
                        gemm::floats(e, p, &given, sums)
                    }
                }
            })
        })
    })
}

/// As [`floats`], for weights in packed blocks.
pub(super) fn packed(
    e: &mut Emit<'_>,
    p: &Product,
    blocks: &Blocks,
    y: &View,
) -> Result<(), CompileError> {
    let dozens = e.caps.device.rates.rows.laid_rows;
    let bare = Product {
        norm: None,
        ..p.clone()
    };
    let has_dozens = Laid::of(e, &bare, blocks, dozens)?.is_some();
    let others: &[RowRange] = match has_dozens {
        true => &[skinny_laid::FEWEST.min(dozens), dozens].map(RowRange::Dozens),
        false => &[RowRange::Blocks(e.caps.device.rates.rows.block_rows)],
    };
    through_f32(e, p, y, |e, sums| {
        by_rows(e, p, others, |e, rows| {
            let takes = match rows {
                RowRange::UpTo(rows) | RowRange::Blocks(rows) => gemv::packed_take(p, rows),
                RowRange::Dozens(_) => Takes {
                    gate: true,
                    ..Takes::NOTHING
                },
                RowRange::Many => Takes::nothing_of(e, p),
            };
            takes.emit(e, p, sums, |e, p, sums| {
                let given = given(e, p, sums)?.of_blocks(e, blocks)?;
                match rows {
                    RowRange::UpTo(rows) | RowRange::Blocks(rows) => {
                        gemv::packed(e, p, &given, blocks, rows)
                    }
                    RowRange::Dozens(rows) => match Laid::of(e, p, blocks, rows)? {
                        Some(laid) => laid.dispatch(e, p, &given),
                        None => unreachable!("invariant: a norm leaves rows that the kernels take"),
                    },
                    RowRange::Many => gemm::packed(e, p, &given, blocks, sums, has_dozens),
                }
            })
        })
    })
}

/// The same with its norm, if it has one, as a step before it, which also writes the rows in 16 bits where that is given.
fn with_norm_before(
    e: &mut Emit<'_>,
    mut p: Product,
    rounded: Option<DType>,
) -> Result<Product, CompileError> {
    let Some(norm) = p.norm.take() else {
        return Ok(p);
    };
    let rows = norm::rows(e, &norm, rounded)?;
    p.with_rows(e, &rows)
}

/// What of the norm before a product and the gate after it a kernel does by the way.
#[derive(Clone, Copy)]
pub(super) struct Takes {
    pub(super) norm: bool,
    pub(super) gate: bool,
    /// The dtype that products of as many rows may round them to.
    pub(super) rounds: Option<DType>,
}

impl Takes {
    pub(super) const NOTHING: Takes = Takes {
        norm: false,
        gate: false,
        rounds: None,
    };

    /// Nothing, of a product of many rows.
    fn nothing_of(e: &Emit<'_>, p: &Product) -> Takes {
        Takes {
            rounds: narrowed::dtype_of(e, p),
            ..Takes::NOTHING
        }
    }

    /// Emits a product through such a kernel, with the rest as steps of their own.
    fn emit(
        self,
        e: &mut Emit<'_>,
        p: &Product,
        y: &View,
        kernel: impl FnOnce(&mut Emit<'_>, &Product, &View) -> Result<(), CompileError>,
    ) -> Result<(), CompileError> {
        let mut p = match self.norm {
            true => p.clone(),
            false => with_norm_before(e, p.clone(), self.rounds)?,
        };
        match p.gate.take_if(|_| !self.gate) {
            Some(gate) => {
                let both = e.temp(y.dtype, &e.graph.node(gate.product).outputs[0].shape)?;
                kernel(e, &p, &both)?;
                let rounds = self
                    .rounds
                    .filter(|_| gate.is_rows && y.dtype == DType::F32);
                let rounded = match rounds {
                    Some(to) => e.round(y, to)?,
                    None => None,
                };
                map::gate(e, &gate, both, y, rounded);
                Ok(())
            }
            None => kernel(e, &p, y),
        }
    }
}

fn through_f32(
    e: &mut Emit<'_>,
    p: &Product,
    y: &View,
    emit: impl FnOnce(&mut Emit<'_>, &View) -> Result<(), CompileError>,
) -> Result<(), CompileError> {
    // No rows in any run. Their slots are shorter than what some kernels read at a time.
    if e.bound(&p.m)? == 0 {
        return Ok(());
    }
    if y.dtype == DType::F32 || rows_are_words(e, p)? {
        return emit(e, y);
    }
    let sums = e.temp(DType::F32, y.layout.shape())?;
    emit(e, &sums)?;
    let count = e.numel(y.layout.shape());
    let words = e.words(y.dtype, y.layout.shape());
    let grid = e.grid_of(words, 256);
    let params = NarrowParams { count };
    e.dispatch(
        &NARROW,
        &[code(y.dtype)],
        &[sums.slot, y.slot],
        &params,
        grid,
    );
    Ok(())
}

/// True if every row of a 16-bit result begins with a word.
fn rows_are_words(e: &Emit<'_>, p: &Product) -> Result<bool, CompileError> {
    let mut rows = e.bound(&p.m)?;
    for dim in &p.batch {
        rows = rows.saturating_mul(e.bound(dim)?);
    }
    Ok(rows <= 1 || p.columns().known().is_some_and(|n| n % 2 == 0))
}

/// A product of integers.
pub(super) fn ints(e: &mut Emit<'_>, p: &Product, y: &View) -> Result<(), CompileError> {
    let given = given(e, p, y)?;
    let words = e.words(y.dtype, y.layout.shape());
    let grid = e.grid_of(words, 64);
    let consts = [given.consts[0], given.consts[1], code(y.dtype)];
    e.dispatch(&INTS, &consts, &given.args, &given.params, grid);
    Ok(())
}
