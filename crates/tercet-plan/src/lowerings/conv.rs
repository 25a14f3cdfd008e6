//! Convolutions and the windows they stand on.
//!
//! A convolution runs in one of these ways, decided by its channels, its dtype and the device:
//!
//! - one channel for each of the result's (depthwise): a direct kernel;
//! - one window of one element (what squeezes and excites channels): few rows times a matrix;
//! - 16-bit floats where the device has cooperative matrices: a product on them that gathers windows while
//!   it stages them; where windows have many taps, windows as columns, a product into F32 sums, then bias
//!   and function;
//! - F32 with windows of one element and nothing to add: a product;
//! - the rest: a product that gathers windows while it multiplies.
//!
//! Products that gather windows, and have too few tiles for the device, sum parts of `k` side by side, which
//! a second kernel adds with bias and function.
//!
//! Integers are decomposed. 16-bit results whose rows of windows do not begin with words are made in F32
//! and rounded by a kernel of its own.
//!
//! Next: `conv/windows.rs` for the numbers of windows, `conv/kernels.rs`, `conv/tiles.rs`, `conv/coop.rs`.

mod coop;
mod kernels;
mod rows;
mod tiles;
mod transpose;
mod weights;
mod weights_coop;
pub(super) mod windows;

pub(super) use transpose::TRANSPOSES;
pub(super) use weights::WEIGHT_GRADS;

use tercet_ir::ops::{Conv, Im2Col, Op};
use tercet_ir::scalar::UnaryFn;
use tercet_ir::{CompileError, DType, Dim, Graph, Node, OpKind, Support};

use self::coop::Coop;
use self::kernels::{DEPTHWISE, FINISH, FinishParams, IM2COL};
use self::windows::{Windows, known, product};
use super::matmul::product::activation_code;
use super::matmul::product_into;
use super::{Family, always, code, missing};
use crate::caps::{Caps, CoopType};
use crate::emit::{Emit, View};
use crate::num::Num;
use crate::program::SlotId;
use crate::tuning::Key;
use crate::variant::{self, Variant, needs};

/// Windows as columns.
pub(crate) static IM2COLS: Family = Family {
    name: "im2col",
    ops: &[OpKind::Im2Col],
    kernels: &[&IM2COL.def],
    supports: always,
    lower: lower_columns,
};

/// Convolutions of floats.
pub(crate) static CONVS: Family = Family {
    name: "conv",
    ops: &[OpKind::Conv],
    kernels: kernels::OF_CONV,
    supports,
    lower,
};

/// Windows of a row that an invocation of the depthwise kernel computes.
const STRIP: usize = 4;
/// Elements of a row that it holds at most.
const MOST_HELD: usize = 24;

fn supports(_: &Graph, node: &Node, _: &Caps) -> Support {
    let Op::Conv(o) = &node.op else {
        unreachable!("invariant: a family lowers its own operators")
    };
    if !node.outputs[0].dtype.is_float() {
        return missing("integers are convolved as columns and a product");
    }
    match o.activation {
        Some(f) if activation_code(Some(f)).is_none() => {
            missing("the kernels do not apply this activation")
        }
        _ => Support::Native,
    }
}

fn lower_columns(e: &mut Emit<'_>, node: &Node) -> Result<(), CompileError> {
    let Op::Im2Col(op) = &node.op else {
        unreachable!("invariant: a family lowers its own operators")
    };
    let x = e.view(node.inputs[0]);
    let y = e.result(0)?;
    columns_into(e, op, e.graph.ty(node.inputs[0]).shape.to_vec(), &x, &y);
    Ok(())
}

fn columns_into(e: &mut Emit<'_>, op: &Im2Col, shape: Vec<Dim>, x: &View, y: &View) {
    let ty = tercet_ir::Type::new(x.dtype, shape);
    let out = op.windows(&ty);
    let out = out.unwrap_or_else(|e| unreachable!("invariant: the node was checked: {e}"));
    let windows = Windows::of(&op.window(), &op.kernel, out);
    let mut params = windows.params(e, x);
    params.k = e.num(&y.layout.shape()[1]);
    let words = e.words(y.dtype, y.layout.shape());
    let grid = e.grid_of(words, 256);
    let mut consts = vec![x.dtype.size_bytes() as u32];
    consts.extend(windows.consts());
    e.dispatch(&IM2COL, &consts, &[x.slot, y.slot], &params, grid);
}

/// A convolution with its operands.
struct Given<'a> {
    op: &'a Conv,
    windows: Windows,
    x: View,
    /// Dense.
    w: View,
    bias: Option<View>,
    /// Channels of the result in a group, channels of x in a group.
    m: Dim,
    own: Dim,
    /// The sums of a result.
    k: Dim,
    y: View,
    /// True if it is transposed: windows of a result are the elements that reach it. On matrices only.
    is_spread: bool,
}

fn lower(e: &mut Emit<'_>, node: &Node) -> Result<(), CompileError> {
    let Op::Conv(op) = &node.op else {
        unreachable!("invariant: a family lowers its own operators")
    };
    let x = e.view(node.inputs[0]);
    let w = e.view(node.inputs[1]);
    let w = e.dense(&w)?;
    let bias = node.inputs.get(2).map(|v| e.view(*v));
    let shape = w.layout.shape().to_vec();
    let kernel: Vec<usize> = shape[2..].iter().map(known).collect();
    let groups = Dim::Known(op.groups);
    let m = shape[0].div_exact(&groups);
    let y = e.result(0)?;
    let out = y.layout.shape()[2..].to_vec();
    let given = Given {
        op,
        windows: Windows::of(&op.window(), &kernel, out),
        x,
        m: m.unwrap_or_else(|| unreachable!("invariant: groups divide channels")),
        own: shape[1].clone(),
        k: product(&shape[1..]),
        w,
        bias,
        y,
        is_spread: false,
    };
    let [entries, count, channels, sums] = [
        &given.x.layout.shape()[0],
        &given.windows.count,
        &given.m,
        &given.k,
    ]
    .map(|dim| e.bound(dim));
    let windows = entries?.saturating_mul(count?);
    let taps = given.windows.kernel.iter().product();
    let sizes = [op.groups, channels?, sums?, windows, taps];
    let measured = e
        .caps
        .device
        .tuning
        .find(|| Key::conv(given.x.dtype, sizes));
    variant::run(e, &variants(), measured, &given)
}

/// The variants of convolutions.
fn variants<'a>() -> [Variant<Given<'a>>; 5] {
    const SEVERAL: &str = "several channels in a group";
    [
        Variant {
            name: "depthwise",
            supports: |_, c| needs(c.own.is_one(), "one channel in a group"),
            // Each result takes the taps of a window.
            cost: |e, c| {
                let mut products = e.bound(&c.k)? as f64;
                for dim in c.y.layout.shape() {
                    products *= e.bound(dim)? as f64;
                }
                let units = e.caps.units() as f64;
                Ok(products / (e.caps.device.rates.tiles.per_s * units))
            },
            emit: |e, c| {
                let even = c.y.layout.shape().last().is_some_and(|n| n.twos() > 0);
                c.rounded(e, even, Given::depthwise)
            },
        },
        rows::variant(),
        Variant {
            name: "matrices",
            supports: |e, c| {
                needs(!c.own.is_one(), SEVERAL)?;
                let what =
                    "cooperative matrices of 16-bit floats, 16 channels and sums, up to 64 taps";
                needs(Coop::of(e, c)?.is_some(), what)
            },
            cost: |e, c| Ok(Coop::of(e, c)?.map_or(0.0, |coop| coop.seconds(e))),
            emit: |e, c| match Coop::of(e, c)? {
                Some(coop) => {
                    e.took_as(coop.name());
                    coop.dispatch(e, c)
                }
                None => unreachable!("invariant: the variant supports it"),
            },
        },
        Variant {
            name: "product",
            supports: |e, c| {
                needs(!c.own.is_one(), SEVERAL)?;
                let as_they_lie =
                    c.windows.are_elements() && c.is_plain() && c.y.dtype == DType::F32;
                let what = "matrices for windows in memory, or plain windows of one element in F32";
                needs(as_they_lie || c.by_matrices(e)?, what)
            },
            // Nothing is gathered while it multiplies: an estimate.
            cost: |e, c| Ok(tiles::seconds(e, c)? * 0.9),
            emit: |e, c| c.product(e, c.is_plain()),
        },
        Variant {
            name: "windows",
            supports: |_, c| needs(!c.own.is_one(), SEVERAL),
            cost: |e, c| tiles::seconds(e, c),
            emit: |e, c| c.gathered(e),
        },
    ]
}

impl Given<'_> {
    /// True if nothing but the sums is to be done.
    fn is_plain(&self) -> bool {
        self.bias.is_none() && self.op.activation.is_none()
    }

    /// Tiles that gather windows while they multiply.
    fn gathered(&self, e: &mut Emit<'_>) -> Result<(), CompileError> {
        let tiles = tiles::best(e, self)?;
        if tiles.parts > 1 {
            let sums = self.parts(e, tiles.parts)?;
            let none = Epilogue::none(e.temp(DType::U32, &[Dim::Known(1)])?.slot);
            tiles::emit(tiles, e, self, &sums, none);
            return self.finish(e, &sums, Sums::Parts(tiles.parts));
        }
        let even = self.windows.count.twos() > 0;
        self.rounded(e, even, |given, e, y, epilogue| {
            tiles::emit(tiles, e, given, y, epilogue);
        })
    }

    /// A slot for sums over parts of `k`: `[part, channel, column]`.
    fn parts(&self, e: &mut Emit<'_>, parts: u32) -> Result<View, CompileError> {
        let entries = &self.x.layout.shape()[0];
        let channels = &self.y.layout.shape()[1];
        let shape = [
            Dim::Known(parts as usize),
            channels.clone(),
            product(&[entries.clone(), self.windows.count.clone()]),
        ];
        e.temp(DType::F32, &shape)
    }

    /// The most parts of `k` whose sums fit a slot.
    fn most_parts(&self, e: &Emit<'_>) -> Result<u32, CompileError> {
        let mut bytes = e.bound(&self.m)?.saturating_mul(4 * self.op.groups);
        for dim in [&self.x.layout.shape()[0], &self.windows.count] {
            bytes = bytes.saturating_mul(e.bound(dim)?);
        }
        let most = e.caps.max_binding_bytes / 2 / bytes.max(1) as u64;
        Ok(most.min(u64::from(u32::MAX)) as u32)
    }

    /// True if a product on cooperative matrices is worth columns of their own.
    fn by_matrices(&self, e: &Emit<'_>) -> Result<bool, CompileError> {
        let ty = match self.x.dtype {
            DType::F16 => CoopType::F16,
            DType::BF16 => CoopType::BF16,
            _ => return Ok(false),
        };
        let (m, k) = (e.bound(&self.m)?, e.bound(&self.k)?);
        let mut bytes = k.saturating_mul(2 * self.op.groups);
        for dim in [&self.x.layout.shape()[0], &self.windows.count] {
            bytes = bytes.saturating_mul(e.bound(dim)?);
        }
        let fits = bytes as u64 <= e.caps.max_binding_bytes / 2;
        let has = e.caps.spirv && e.caps.coop.iter().any(|c| c.ty == ty);
        Ok(has && fits && m >= 16 && k >= 16)
    }

    /// Emits sums with bias and function into the result, or into F32 sums that are finished apart.
    fn rounded(
        &self,
        e: &mut Emit<'_>,
        whole_words: bool,
        emit: impl Fn(&Self, &mut Emit<'_>, &View, Epilogue),
    ) -> Result<(), CompileError> {
        if self.y.dtype == DType::F32 || whole_words {
            let epilogue = self.epilogue(e)?;
            emit(self, e, &self.y, epilogue);
            return Ok(());
        }
        let sums = e.temp(DType::F32, self.y.layout.shape())?;
        let none = Epilogue::none(e.temp(DType::U32, &[Dim::Known(1)])?.slot);
        emit(self, e, &sums, none);
        self.finish(e, &sums, Sums::Whole)
    }

    fn epilogue(&self, e: &mut Emit<'_>) -> Result<Epilogue, CompileError> {
        let (bias, offset, stride) = match &self.bias {
            Some(view) => (view.slot, e.offset(view), e.strides(view)[0]),
            // Never read; a slot of its own, as weights are bound under other types.
            None => {
                let slot = e.temp(DType::U32, &[Dim::Known(1)])?.slot;
                (slot, Num::ZERO, Num::ZERO)
            }
        };
        let activation = activation_code(self.op.activation).unwrap_or(0);
        Ok(Epilogue {
            bias,
            consts: [u32::from(self.bias.is_some()), activation],
            offset,
            stride,
        })
    }

    fn depthwise(&self, e: &mut Emit<'_>, y: &View, epilogue: Epilogue) {
        let params = self.params(e, &epilogue);
        let [.., taps] = self.windows.kernel;
        let [.., stride] = self.windows.stride;
        let [.., dilation] = self.windows.dilation;
        let span = (STRIP - 1) * stride + taps;
        let near = dilation == 1 && span <= MOST_HELD;
        let span = if near { span } else { 1 };
        let strips = e.tape().ceil_div(params.out_w, STRIP as u32);
        let lines = [
            params.batch,
            params.groups,
            params.m,
            params.out_d,
            params.out_h,
            strips,
        ];
        let items = super::words::product(e, &lines);
        let grid = e.grid_of(items, 128);
        let mut consts = self.consts(&epilogue, y);
        consts.extend([stride as u32, u32::from(near), span as u32]);
        let args = [self.x.slot, self.w.slot, epilogue.bias, y.slot];
        let kernel = DEPTHWISE.pick(epilogue.activation());
        e.dispatch(kernel, &consts, &args, &params, grid);
    }

    /// Columns, a product, and what follows it.
    fn product(&self, e: &mut Emit<'_>, plain: bool) -> Result<(), CompileError> {
        let shape = self.x.layout.shape().to_vec();
        let groups = Dim::Known(self.op.groups);
        let columns = match self.windows.are_elements() {
            true => e.dense(&self.x)?,
            false => {
                let op = Im2Col::of(self.windows.taps(), self.op.window());
                let rows = product(&[groups.clone(), self.k.clone()]);
                let columns = [shape[0].clone(), rows, self.windows.count.clone()];
                let columns = e.temp(self.x.dtype, &columns)?;
                columns_into(e, &op, shape.clone(), &self.x, &columns);
                columns
            }
        };
        let as_shape = |view: &View, dims: &[Dim]| -> View {
            let layout = view.layout.reshape(dims);
            View {
                layout: layout.unwrap_or_else(|| unreachable!("invariant: dense views reshape")),
                ..view.clone()
            }
        };
        let (m, k) = (self.m.clone(), self.k.clone());
        let count = self.windows.count.clone();
        let columns = as_shape(
            &columns,
            &[shape[0].clone(), groups.clone(), k.clone(), count.clone()],
        );
        let w = as_shape(&self.w, &[groups.clone(), m.clone(), k]);
        let dims = [shape[0].clone(), groups, m, count];
        if plain {
            return product_into(e, &w, &columns, &as_shape(&self.y, &dims));
        }
        let sums = e.temp(DType::F32, &dims)?;
        product_into(e, &w, &columns, &sums)?;
        self.finish(e, &sums, Sums::Whole)
    }

    /// Bias and function of F32 sums, rounded.
    fn finish(&self, e: &mut Emit<'_>, sums: &View, lie: Sums) -> Result<(), CompileError> {
        let epilogue = self.epilogue(e)?;
        let shape = self.y.layout.shape().to_vec();
        let (entries, channels) = (e.num(&shape[0]), e.num(&shape[1]));
        let windows = e.num(&self.windows.count);
        let tape = e.tape();
        let (parts, entry, channel) = match lie {
            Sums::Whole => (1, tape.mul(channels, windows), windows),
            Sums::Parts(parts) => (parts, windows, tape.mul(entries, windows)),
        };
        let params = FinishParams {
            count: e.numel(&shape),
            channels,
            windows,
            sums_part: e.numel(&shape),
            sums_entry: entry,
            sums_channel: channel,
            bias_offset: epilogue.offset,
            bias_row: Num::ZERO,
            bias_stride: epilogue.stride,
            zero: Num::ZERO,
        };
        let words = e.words(self.y.dtype, &shape);
        let grid = e.grid_of(words, 256);
        let [bias, activation] = epilogue.consts;
        let dtypes = [self.x.dtype, self.y.dtype].map(code);
        let consts = [bias, activation, dtypes[0], dtypes[1], parts];
        let args = [sums.slot, epilogue.bias, self.y.slot];
        let kernel = FINISH.pick(epilogue.activation());
        e.dispatch(kernel, &consts, &args, &params, grid);
        Ok(())
    }

    fn params(&self, e: &mut Emit<'_>, epilogue: &Epilogue) -> windows::WindowParams {
        let mut params = self.windows.params(e, &self.x);
        params.groups = Num::Const(self.op.groups as i64);
        params.m = e.num(&self.m);
        params.k = e.num(&self.k);
        params.channels = e.num(&self.own);
        params.bias_offset = epilogue.offset;
        params.bias_stride = epilogue.stride;
        params
    }

    fn consts(&self, epilogue: &Epilogue, y: &View) -> Vec<u32> {
        let mut consts = epilogue.consts.to_vec();
        consts.extend([code(self.x.dtype), code(y.dtype)]);
        consts.extend(self.windows.consts());
        consts
    }
}

/// What is done to a sum.
#[derive(Clone, Copy)]
struct Epilogue {
    bias: SlotId,
    /// BIAS, ACTIVATION.
    consts: [u32; 2],
    offset: Num,
    stride: Num,
}

/// How sums lie that are finished apart.
#[derive(Clone, Copy)]
enum Sums {
    /// As the result.
    Whole,
    /// So many times `[channel, column]`, to be added.
    Parts(u32),
}

impl Epilogue {
    /// Nothing; a slot that is never read stands in for the bias.
    fn none(bias: SlotId) -> Epilogue {
        Epilogue {
            bias,
            consts: [0, 0],
            offset: Num::ZERO,
            stride: Num::ZERO,
        }
    }

    /// True if its function takes the pieces of long ones.
    fn activation(&self) -> bool {
        let short = [UnaryFn::Relu, UnaryFn::Relu6].map(|f| activation_code(Some(f)));
        self.consts[1] > 0 && !short.contains(&Some(self.consts[1]))
    }
}
