//! Element types of kernels, and the fixed split of results into parallel tasks.

use half::{bf16, f16};
use tercet_ir::{DType, Element, Support};

use crate::kernels::parallel::{DisjointChunks, for_each_part};
use crate::kernels::{KernelThreads, SimdLevel, convert};

/// Number of elements of the stack buffers into which F16 and BF16 are converted.
pub(crate) const BUFFER: usize = 1024;

/// Float type that kernels compute in `f32`.
pub(crate) trait ComputeF32: Element {
    /// The elements as `f32`: the slice itself, or converted into `buffer`, which must be at least
    /// as long.
    fn widen<'a>(level: SimdLevel, x: &'a [Self], buffer: &'a mut [f32]) -> &'a [f32];

    /// Rounds to nearest even; the lengths must agree.
    fn narrow(level: SimdLevel, x: &[f32], out: &mut [Self]);

    /// Converts one element to `f32`.
    fn wide(self) -> f32;
}

impl ComputeF32 for f32 {
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

impl ComputeF32 for f16 {
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

impl ComputeF32 for bf16 {
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

/// Integer type with wrapping sums and products.
pub(crate) trait WrappingInt: Element + Ord {
    /// Zero.
    const ZERO: Self;
    /// One.
    const ONE: Self;
    /// Minimum value.
    const LOWEST: Self;
    /// Maximum value.
    const GREATEST: Self;

    /// Wrapping sum `self + other`.
    fn plus(self, other: Self) -> Self;

    /// Wrapping product `self * other`.
    fn times(self, other: Self) -> Self;
}

macro_rules! ints {
    ($($t:ty),*) => {$(impl WrappingInt for $t {
        const ZERO: $t = 0;
        const ONE: $t = 1;
        const LOWEST: $t = <$t>::MIN;
        const GREATEST: $t = <$t>::MAX;
        fn plus(self, other: $t) -> $t { self.wrapping_add(other) }
        fn times(self, other: $t) -> $t { self.wrapping_mul(other) }
    })*};
}
ints!(i32, u32, i64, i16, i8, u8);

/// Dtypes that implement [`ComputeF32`].
pub(crate) const REALS: &[DType] = &[DType::F32, DType::F16, DType::BF16];

/// [`Support::Native`] if `dtypes` contains the dtype.
pub(crate) fn native_for(dtypes: &[DType], dtype: DType) -> Support {
    match dtypes.contains(&dtype) {
        true => Support::Native,
        false => Support::Missing {
            reason: format!("no kernel for {dtype}"),
        },
    }
}

/// Selects `f::<T>` for the [`ComputeF32`] type of a dtype that [`native_for`] accepted from [`REALS`].
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
            | tercet_ir::DType::I16
            | tercet_ir::DType::I8
            | tercet_ir::DType::U8
            | tercet_ir::DType::Bool => $f::<f32>,
        }
    };
}
pub(crate) use for_real;

/// Selects `f::<T>` for the element type of a dtype; booleans use `u8`.
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
            tercet_ir::DType::I16 => $f::<i16>,
            tercet_ir::DType::I8 => $f::<i8>,
            tercet_ir::DType::U8 | tercet_ir::DType::Bool => $f::<u8>,
        }
    };
}
pub(crate) use for_element;

/// A tensor as `[outer, len, inner]` around one axis.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct AxisBlocks {
    pub(crate) outer: usize,
    pub(crate) len: usize,
    pub(crate) inner: usize,
}

impl AxisBlocks {
    pub(crate) fn new(shape: &[usize], axis: usize) -> AxisBlocks {
        AxisBlocks {
            outer: shape[..axis].iter().product(),
            len: shape[axis],
            inner: shape[axis + 1..].iter().product(),
        }
    }
}

/// Calls `f(i, part)` for each part of `len` elements; the last part may be shorter. Uses the
/// current thread pool if `parallel`. Does nothing if `len` is 0.
pub(crate) fn parts<T: Send>(
    parallel: bool,
    out: &mut [T],
    len: usize,
    f: impl Fn(usize, &mut [T]) + Send + Sync,
) {
    for_each_part(
        KernelThreads::parallel(parallel),
        DisjointChunks::new(out, len),
        f,
    );
}
