//! Elements as kernels compute with them, and fixed cuts of results into parallel tasks.

use half::{bf16, f16};
use tercet_ir::{DType, Element, Support};

use crate::kernels::parallel::{Chunks, for_each_part};
use crate::kernels::{SimdLevel, Threads, convert};

/// Elements of the buffers on the stack that narrow floats are widened into.
pub(crate) const BUFFER: usize = 1024;

/// A float that kernels compute with in `f32`.
pub(crate) trait Real: Element {
    /// The elements as `f32`: themselves, or converted into `buffer`, which is as long or longer.
    fn widen<'a>(level: SimdLevel, x: &'a [Self], buffer: &'a mut [f32]) -> &'a [f32];

    /// Rounds to nearest even; the lengths agree.
    fn narrow(level: SimdLevel, x: &[f32], out: &mut [Self]);

    /// One element as `f32`.
    fn wide(self) -> f32;
}

impl Real for f32 {
    fn widen<'a>(_: SimdLevel, x: &'a [f32], _: &'a mut [f32]) -> &'a [f32] {
        x
    }

    fn narrow(_: SimdLevel, x: &[f32], out: &mut [f32]) {
        out.copy_from_slice(x);
    }

    fn wide(self) -> f32 {
        self
    }
}

impl Real for f16 {
    fn widen<'a>(level: SimdLevel, x: &'a [f16], buffer: &'a mut [f32]) -> &'a [f32] {
        let buffer = &mut buffer[..x.len()];
        convert::f16_to_f32(level, bytemuck::cast_slice(x), buffer);
        buffer
    }

    fn narrow(level: SimdLevel, x: &[f32], out: &mut [f16]) {
        convert::f32_to_f16(level, x, bytemuck::cast_slice_mut(out));
    }

    fn wide(self) -> f32 {
        self.to_f32()
    }
}

impl Real for bf16 {
    fn widen<'a>(level: SimdLevel, x: &'a [bf16], buffer: &'a mut [f32]) -> &'a [f32] {
        let buffer = &mut buffer[..x.len()];
        convert::bf16_to_f32(level, bytemuck::cast_slice(x), buffer);
        buffer
    }

    fn narrow(level: SimdLevel, x: &[f32], out: &mut [bf16]) {
        convert::f32_to_bf16(level, x, bytemuck::cast_slice_mut(out));
    }

    fn wide(self) -> f32 {
        self.to_f32()
    }
}

/// An integer, whose sums and products wrap.
pub(crate) trait Int: Element + Ord {
    /// Zero.
    const ZERO: Self;
    /// One.
    const ONE: Self;
    /// The least value.
    const LEAST: Self;
    /// The greatest value.
    const GREATEST: Self;

    /// `self + other`, wrapped.
    fn plus(self, other: Self) -> Self;

    /// `self * other`, wrapped.
    fn times(self, other: Self) -> Self;
}

macro_rules! ints {
    ($($t:ty),*) => {$(impl Int for $t {
        const ZERO: $t = 0;
        const ONE: $t = 1;
        const LEAST: $t = <$t>::MIN;
        const GREATEST: $t = <$t>::MAX;
        fn plus(self, other: $t) -> $t { self.wrapping_add(other) }
        fn times(self, other: $t) -> $t { self.wrapping_mul(other) }
    })*};
}
ints!(i32, u32, i64, i8, u8);

/// The floats that are a [`Real`].
pub(crate) const REALS: &[DType] = &[DType::F32, DType::F16, DType::BF16];

/// `Native` for a dtype of the list.
pub(crate) fn native_for(dtypes: &[DType], dtype: DType) -> Support {
    match dtypes.contains(&dtype) {
        true => Support::Native,
        false => Support::Missing {
            reason: format!("no kernel for {dtype}"),
        },
    }
}

/// `f::<T>` for the [`Real`] of a dtype that [`native_for`] accepted out of [`REALS`].
macro_rules! for_real {
    ($dtype:expr, $f:ident) => {
        match $dtype {
            tercet_ir::DType::F16 => $f::<half::f16>,
            tercet_ir::DType::BF16 => $f::<half::bf16>,
            tercet_ir::DType::F32
            | tercet_ir::DType::F64
            | tercet_ir::DType::I32
            | tercet_ir::DType::U32
            | tercet_ir::DType::I64
            | tercet_ir::DType::I8
            | tercet_ir::DType::U8
            | tercet_ir::DType::Bool => $f::<f32>,
        }
    };
}
pub(crate) use for_real;

/// `f::<T>` for the element type of a dtype; truth values as their bytes.
macro_rules! for_element {
    ($dtype:expr, $f:ident) => {
        match $dtype {
            tercet_ir::DType::F32 => $f::<f32>,
            tercet_ir::DType::F16 => $f::<half::f16>,
            tercet_ir::DType::BF16 => $f::<half::bf16>,
            tercet_ir::DType::F64 => $f::<f64>,
            tercet_ir::DType::I32 => $f::<i32>,
            tercet_ir::DType::U32 => $f::<u32>,
            tercet_ir::DType::I64 => $f::<i64>,
            tercet_ir::DType::I8 => $f::<i8>,
            tercet_ir::DType::U8 | tercet_ir::DType::Bool => $f::<u8>,
        }
    };
}
pub(crate) use for_element;

/// A tensor seen as `[outer, len, inner]` around one axis.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct AxisView {
    pub(crate) outer: usize,
    pub(crate) len: usize,
    pub(crate) inner: usize,
}

impl AxisView {
    pub(crate) fn of(shape: &[usize], axis: usize) -> AxisView {
        AxisView {
            outer: shape[..axis].iter().product(),
            len: shape[axis],
            inner: shape[axis + 1..].iter().product(),
        }
    }
}

/// Calls `f(i, part)` for each part of `len` elements (the last may be shorter), on the current
/// team if `parallel`. Parts of an empty length are none.
pub(crate) fn parts<T: Send>(
    parallel: bool,
    out: &mut [T],
    len: usize,
    f: impl Fn(usize, &mut [T]) + Send + Sync,
) {
    for_each_part(Threads::parallel(parallel), Chunks::new(out, len), f);
}
