//! Test data of cooperative-matrix matmuls: shapes, layouts, operands and expected results.

use tercet_ir::{DType, Tensor, TensorType};
use tercet_plan::gemm_coop::CoopGemmOptions;

use crate::common::ints;

/// The initial contents of C, which expose stores outside of the result.
pub(crate) const UNTOUCHED: u32 = 0xABAB_ABAB;

/// An `m x n x k` matmul in `outer x inner` batches.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Case {
    pub(crate) m: usize,
    pub(crate) n: usize,
    pub(crate) k: usize,
    pub(crate) outer: usize,
    pub(crate) inner: usize,
    /// Padding elements between the rows of A, B and C.
    pub(crate) pad: [usize; 3],
    /// Elements before A, B and C.
    pub(crate) offset: [usize; 3],
    /// True if all batches share one B.
    pub(crate) one_b: bool,
    /// True if the tiles are distributed over several rows of the grid, and the grid covers only
    /// some batches at once.
    pub(crate) folded_grid: bool,
    pub(crate) options: CoopGemmOptions,
}

pub(crate) const PLAIN: CoopGemmOptions = CoopGemmOptions {
    b_transposed: false,
    aligned_a: false,
    aligned_b: false,
    activation: None,
    bias_f32: None,
    residual_f32: None,
    out_f32: false,
    aligned_c: false,
    planes: true,
    native_f16_conversions: false,
    min_rows: 1,
    known_lda: 0,
    a_panels: false,
};

pub(crate) const ALIGNED: CoopGemmOptions = CoopGemmOptions {
    aligned_a: true,
    aligned_b: true,
    aligned_c: true,
    native_f16_conversions: true,
    ..PLAIN
};

/// Covers inner tiles and tiles at both edges, inner and last steps of k, and two rows of a folded
/// grid.
pub(crate) const LARGE: Case = Case {
    m: 300,
    n: 424,
    k: 136,
    pad: [8, 16, 8],
    offset: [8, 16, 24],
    options: ALIGNED,
    ..ODD
};

pub(crate) const ODD: Case = Case {
    m: 37,
    n: 45,
    k: 53,
    outer: 1,
    inner: 1,
    pad: [0; 3],
    offset: [0; 3],
    one_b: false,
    folded_grid: false,
    options: PLAIN,
};

/// The tested shapes, each for both layouts of B.
pub(crate) const SHAPES: &[Case] = &[
    ODD,
    Case {
        m: 1,
        n: 1,
        k: 1,
        ..ODD
    },
    Case {
        m: 1,
        n: 130,
        k: 257,
        ..ODD
    },
    Case { k: 0, ..ODD },
    Case {
        m: 70,
        n: 2,
        k: 8,
        offset: [1, 3, 5],
        ..ODD
    },
    Case {
        pad: [3, 1, 1],
        offset: [1, 3, 5],
        ..ODD
    },
    Case {
        outer: 3,
        inner: 2,
        pad: [3, 1, 2],
        offset: [1, 3, 4],
        folded_grid: true,
        ..ODD
    },
    Case {
        outer: 3,
        inner: 2,
        one_b: true,
        ..ODD
    },
    Case {
        m: 300,
        n: 100,
        k: 24,
        folded_grid: true,
        ..ODD
    },
    Case {
        m: 130,
        n: 72,
        k: 104,
        pad: [8, 16, 0],
        offset: [8, 16, 0],
        options: CoopGemmOptions {
            aligned_a: true,
            aligned_b: true,
            ..PLAIN
        },
        ..ODD
    },
    Case {
        m: 64,
        n: 61,
        k: 64,
        options: CoopGemmOptions {
            aligned_a: true,
            ..PLAIN
        },
        ..ODD
    },
    Case {
        outer: 2,
        pad: [0, 0, 3],
        options: CoopGemmOptions {
            bias_f32: Some(true),
            residual_f32: Some(true),
            out_f32: true,
            ..PLAIN
        },
        ..ODD
    },
    Case {
        options: CoopGemmOptions {
            bias_f32: Some(false),
            residual_f32: Some(false),
            ..PLAIN
        },
        ..ODD
    },
];

/// A pseudo-random generator of numbers in [-1, 1), without repetitions that could hide a wrong
/// index.
pub(crate) struct Numbers(u64);

impl Numbers {
    pub(crate) fn next(&mut self) -> f64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 40) as f64 / f64::from(1u32 << 23) - 1.0
    }
}

/// A buffer of elements of a dtype, initially NaN.
pub(crate) struct Elements {
    pub(crate) dtype: DType,
    pub(crate) values: Vec<f64>,
}

impl Elements {
    pub(crate) fn new(dtype: DType, len: usize) -> Elements {
        let values = vec![f64::NAN; len];
        Elements { dtype, values }
    }

    /// Sets an element and returns the rounded value.
    pub(crate) fn set(&mut self, at: usize, value: f64) -> f64 {
        let one = Tensor::from_f64s(TensorType::new(self.dtype, &[1]), &[value]).unwrap();
        self.values[at] = one.to_f64s()[0];
        self.values[at]
    }

    /// The buffer as at least `words` words.
    pub(crate) fn words(&self, words: usize) -> Tensor {
        let ty = TensorType::new(self.dtype, &[self.values.len()]);
        let mut bytes = Tensor::from_f64s(ty, &self.values)
            .unwrap()
            .bytes()
            .to_vec();
        bytes.resize(words * 4, 0xFF);
        ints(
            bytes
                .chunks_exact(4)
                .map(|w| i32::from_le_bytes(w.try_into().unwrap())),
        )
    }
}

/// The offsets of the elements of the operands.
pub(crate) struct Places {
    pub(crate) lda: usize,
    pub(crate) ldb: usize,
    pub(crate) ldc: usize,
    pub(crate) ldr: usize,
    pub(crate) inner: [usize; 4],
    pub(crate) outer: [usize; 4],
}

pub(crate) const OFFSET_BIAS: usize = 5;
pub(crate) const OFFSET_RESIDUAL: usize = 7;

impl Places {
    pub(crate) fn of(c: &Case) -> Places {
        let (b_lines, b_cols) = match c.options.b_transposed {
            true => (c.n, c.k),
            false => (c.k, c.n),
        };
        let (lda, ldb, ldc, ldr) = (c.k + c.pad[0], b_cols + c.pad[1], c.n + c.pad[2], c.n + 3);
        let b = if c.one_b { 0 } else { b_lines * ldb };
        let inner = [c.m * lda, b, c.m * ldc, c.m * ldr];
        Places {
            lda,
            ldb,
            ldc,
            ldr,
            inner,
            outer: inner.map(|stride| stride * c.inner),
        }
    }

    pub(crate) fn batch(&self, c: &Case, operand: usize, t: usize) -> usize {
        t / c.inner * self.outer[operand] + t % c.inner * self.inner[operand]
    }

    pub(crate) fn a(&self, c: &Case, t: usize, i: usize, l: usize) -> usize {
        c.offset[0] + self.batch(c, 0, t) + i * self.lda + l
    }

    pub(crate) fn b(&self, c: &Case, t: usize, l: usize, j: usize) -> usize {
        let (line, col) = match c.options.b_transposed {
            true => (j, l),
            false => (l, j),
        };
        c.offset[1] + self.batch(c, 1, t) + line * self.ldb + col
    }

    pub(crate) fn c(&self, c: &Case, t: usize, i: usize, j: usize) -> usize {
        c.offset[2] + self.batch(c, 2, t) + i * self.ldc + j
    }

    pub(crate) fn residual(&self, c: &Case, t: usize, i: usize, j: usize) -> usize {
        OFFSET_RESIDUAL + self.batch(c, 3, t) + i * self.ldr + j
    }
}

/// The operands and the expected result of a case.
pub(crate) struct Data {
    pub(crate) a: Elements,
    pub(crate) b: Elements,
    pub(crate) bias: Elements,
    pub(crate) residual: Elements,
    /// The expected elements, each as its offset in C and its value.
    pub(crate) wanted: Vec<(usize, f64)>,
    /// The length of C.
    pub(crate) len_c: usize,
}

pub(crate) fn data(c: &Case, p: &Places, element: DType) -> Data {
    let mut numbers = Numbers(0x9E37_79B9_7F4A_7C15);
    let batches = c.outer * c.inner;
    let dtype = |f32_: Option<bool>| {
        if f32_ == Some(true) {
            DType::F32
        } else {
            element
        }
    };
    let last = batches - 1;
    // The buffer ends after the last element, without the padding of the last row.
    let end = |at: usize| at + 1;
    let some = |n: usize| n.max(1) - 1;
    let mut a = Elements::new(
        element,
        end(p.a(c, last, c.m - 1, some(c.k))).next_multiple_of(8),
    );
    let end_b = end(p.b(c, last, some(c.k), c.n - 1));
    let mut b = Elements::new(element, end_b.next_multiple_of(8));
    let mut bias = Elements::new(dtype(c.options.bias_f32), OFFSET_BIAS + c.n);
    let len = end(p.residual(c, last, c.m - 1, c.n - 1));
    let mut residual = Elements::new(dtype(c.options.residual_f32), len);
    for t in 0..batches {
        for i in 0..c.m {
            for l in 0..c.k {
                a.set(p.a(c, t, i, l), numbers.next());
            }
            for j in 0..c.n {
                residual.set(p.residual(c, t, i, j), numbers.next());
            }
        }
        for l in 0..c.k {
            for j in 0..c.n {
                b.set(p.b(c, t, l, j), numbers.next());
            }
        }
    }
    for j in 0..c.n {
        bias.set(OFFSET_BIAS + j, numbers.next());
    }
    let mut wanted = Vec::new();
    for t in 0..batches {
        for i in 0..c.m {
            for j in 0..c.n {
                let product = |l| a.values[p.a(c, t, i, l)] * b.values[p.b(c, t, l, j)];
                let mut x: f64 = (0..c.k).map(product).sum();
                if c.options.bias_f32.is_some() {
                    x += bias.values[OFFSET_BIAS + j];
                }
                if let Some(f) = c.options.activation {
                    x = f.eval_f64(x);
                }
                if c.options.residual_f32.is_some() {
                    x += residual.values[p.residual(c, t, i, j)];
                }
                wanted.push((p.c(c, t, i, j), x));
            }
        }
    }
    let len_c = end(p.c(c, last, c.m - 1, c.n - 1));
    Data {
        a,
        b,
        bias,
        residual,
        wanted,
        len_c,
    }
}
