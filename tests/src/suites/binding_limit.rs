//! Tests of values above the binding limit, which the tests lower: results must equal those below
//! the limit. This file tests parameters that are read by rows. `binding_limit/values.rs` tests all
//! other values.

mod values;

use tercet::scalar::UnaryFn;
use tercet::{
    Backend, Bindings, CompileError, CompileOptions, DType, Dim, EvalError, Executable, Graph,
    RunError, Scheme, Tensor, TensorType, Type,
};

use crate::{SuiteTest, executors};

type BoxError = Box<dyn std::error::Error>;

/// The lowered binding limit in bytes.
const LIMIT: u64 = 64 << 10;
const VOCAB: usize = 3001;
const WIDTH: usize = 32;

/// A test of a GPU with its own limit and with the lowered one.
type WithAndWithoutLimit<'a> = dyn Fn(&dyn Backend, &dyn Backend) -> Result<(), BoxError> + 'a;

/// Runs the test on this GPU with its own limit and with the lowered one. Does nothing if the
/// device is not a GPU.
#[cfg_attr(
    not(any(feature = "vulkan", feature = "wgpu")),
    allow(unused_variables, reason = "there is no GPU to run this on")
)]
fn on_gpu(name: &str, test: &WithAndWithoutLimit<'_>) -> Option<Result<(), BoxError>> {
    match name {
        #[cfg(feature = "vulkan")]
        "vulkan" => Some(match crate::vulkan::backend() {
            Ok(backend) => test(&backend, &backend.with_binding_limit(LIMIT)),
            Err(e) => Err(e.into()),
        }),
        #[cfg(feature = "wgpu")]
        "wgpu" => {
            let options = tercet_wgpu::WgpuOptions::new();
            Some(match tercet_wgpu::WgpuBackend::new(&options) {
                Ok(backend) => test(&backend, &backend.with_binding_limit(LIMIT)),
                Err(e) => Err(e.into()),
            })
        }
        _ => None,
    }
}

/// Runs the test on each GPU with its own limit and with the lowered one.
fn on_gpus(test: impl Fn(&dyn Backend, &dyn Backend) -> Result<(), BoxError>) {
    for executor in executors() {
        let Some(done) = on_gpu(executor.name, &test) else {
            continue;
        };
        if executor.device().is_ok() || executor.is_required() {
            done.unwrap_or_else(|e| panic!("{}: {}", executor.name, tercet::one_line(&*e)));
        }
        let complaints = (executor.complaints)();
        assert!(complaints.is_empty(), "{}", complaints.join("\n"));
    }
}

fn wave(ty: TensorType, by: f64) -> Tensor {
    let values: Vec<f64> = (0..ty.numel()).map(|i| (i as f64 * by).sin()).collect();
    Tensor::from_f64s(ty, &values).expect("the list has the number of elements of its shape")
}

fn indices(values: &[i32]) -> Tensor {
    Tensor::from_slice(&[values.len()], values)
        .expect("the list has the number of elements of its shape")
}

/// Quantized rows of `row` weights each.
fn packed(rows: usize, row: usize) -> Tensor {
    let (block, bytes) = (32, Scheme::Q8_0.block_bytes());
    let mut data = Vec::new();
    for i in 0..rows * row / block {
        // F16 block scales around 2^-7.
        data.extend((0x2000 + 37 * (i % 7) as u16).to_le_bytes());
        data.extend((0..bytes - 2).map(|j| (i * 31 + j * 17) as u8));
    }
    let ty = TensorType::new(DType::U8, &[rows, row / block * bytes]);
    Tensor::from_bytes(ty, &data).expect("whole blocks")
}

fn compiled(
    backend: &dyn Backend,
    g: &Graph,
    params: &[(&str, Tensor)],
) -> Result<Box<dyn Executable>, BoxError> {
    let options = CompileOptions {
        bounds: Bindings::new().with("s", 5),
        ..CompileOptions::new()
    };
    let mut exe = backend.compile(g, &options)?;
    for (name, tensor) in params {
        exe.set_param(name, tensor.clone())?;
    }
    Ok(exe)
}

/// Compares results with those of the device with its own limit.
fn agree(
    (plain, low): (&dyn Backend, &dyn Backend),
    g: &Graph,
    params: &[(&str, Tensor)],
    inputs: &[(&str, &Tensor)],
) -> Result<(), BoxError> {
    let want = compiled(plain, g, params)?.run(inputs)?;
    let got = compiled(low, g, params)?.run(inputs)?;
    for (got, want) in got.iter().zip(&want) {
        assert_eq!(got.ty(), want.ty());
        for (i, (got, want)) in got.to_f64s().into_iter().zip(want.to_f64s()).enumerate() {
            let off = (got - want).abs();
            assert!(
                off <= 1e-5 * want.abs().max(1.0),
                "element {i}: {got} {want}"
            );
        }
    }
    Ok(())
}

fn rows_are_gathered_from_parts() {
    on_gpus(|plain, low| {
        for dtype in [DType::F32, DType::F16, DType::I8] {
            let mut g = Graph::new();
            let table = g.param("table", Type::new(dtype, [VOCAB, WIDTH]))?;
            let ids = g.input("ids", Type::new(DType::I32, [Dim::sym("s")]))?;
            let rows = g.gather(table, ids, 0)?;
            g.output("rows", rows)?;
            let table = wave(TensorType::new(dtype, &[VOCAB, WIDTH]), 0.37);
            let last = VOCAB as i32 - 1;
            let params = [("table", table)];
            for ids in [[0, last, -1, -3001, 511], [512, 1023, 1024, 2000, 1]] {
                agree((plain, low), &g, &params, &[("ids", &indices(&ids))])?;
            }
            let mut exe = compiled(low, &g, &params)?;
            for wrong in [VOCAB as i32, -3002, i32::MAX, i32::MIN] {
                let e = exe.run(&[("ids", &indices(&[5, wrong]))]);
                let Err(RunError::Node { node, op, source }) = e else {
                    panic!("{wrong}: {e:?}");
                };
                assert_eq!(node, rows.node);
                let index = i64::from(wrong);
                assert_eq!(source, EvalError::Index { index, len: VOCAB });
                assert_eq!(op, "gather");
            }
        }
        Ok(())
    });
}

fn products_have_columns_from_parts() {
    on_gpus(|plain, low| {
        let mut g = Graph::new();
        let x = g.input("x", Type::new(DType::F32, [Dim::sym("s"), WIDTH.into()]))?;
        let w = g.param("w", Type::new(DType::F32, [VOCAB, WIDTH]))?;
        let bias = g.param("bias", Type::new(DType::F32, [VOCAB]))?;
        let t = g.transpose(w, &[1, 0])?;
        let y = g.matmul(x, t)?;
        let top = g.arg_max(y, 1, false)?;
        let half = g.slice_axis(x, 1, 0, WIDTH as i64, 1)?;
        let biased = g.linear(half, t, Some(bias), Some(UnaryFn::Relu))?;
        let sum = g.reduce_sum(biased, &[1], false)?;
        g.output("y", y)?;
        g.output("top", top)?;
        g.output("sum", sum)?;
        let params = [
            (
                "w",
                wave(TensorType::new(DType::F32, &[VOCAB, WIDTH]), 0.11),
            ),
            ("bias", wave(TensorType::new(DType::F32, &[VOCAB]), 0.5)),
        ];
        for rows in [1, 2, 5] {
            let x = wave(TensorType::new(DType::F32, &[rows, WIDTH]), 0.9);
            agree((plain, low), &g, &params, &[("x", &x)])?;
        }
        Ok(())
    });
}

fn a_tied_packed_table_is_embedding_and_head() {
    on_gpus(|plain, low| {
        for is_tied in [true, false] {
            let mut g = Graph::new();
            let scheme = Scheme::Q8_0;
            let w = packed(VOCAB, WIDTH);
            let ty = Type::from(w.ty());
            let head = g.param("head", ty.clone())?;
            let table = match is_tied {
                true => head,
                false => g.param("table", ty)?,
            };
            let ids = g.input("ids", Type::new(DType::I32, [Dim::sym("s")]))?;
            let rows = g.gather(table, ids, 0)?;
            let x = g.dequantize(rows, scheme)?;
            let logits = g.dequant_matmul(x, head, scheme)?;
            g.output("x", x)?;
            g.output("logits", logits)?;
            let mut params = vec![("head", w.clone())];
            if !is_tied {
                params.push(("table", w));
            }
            for ids in [&[7][..], &[0, 1926, 1927, 1928, 3000]] {
                agree((plain, low), &g, &params, &[("ids", &indices(ids))])?;
            }
        }
        Ok(())
    });
}

/// A graph with an operator that must bind a complete value.
type WholeValueGraph = fn(&mut Graph) -> Result<(), BoxError>;

fn what_needs_the_whole_is_refused() {
    on_gpus(|_, low| {
        let whole: [WholeValueGraph; 4] = [
            |g| {
                let w = g.param("w", Type::new(DType::F32, [VOCAB, WIDTH]))?;
                let y = g.cum_sum(w, 0)?;
                Ok(g.output("y", y)?)
            },
            |g| {
                let x = g.input("x", Type::new(DType::F32, [VOCAB, WIDTH]))?;
                let y = g.unary(UnaryFn::Exp, x)?;
                let y = g.arg_max(y, 0, false)?;
                Ok(g.output("y", y)?)
            },
            |g| {
                // The elements at a single index of the first axis exceed the binding limit.
                let x = g.input("x", Type::new(DType::F32, [2, 353, 97]))?;
                let y = g.reduce_sum(x, &[1, 2], false)?;
                Ok(g.output("y", y)?)
            },
            |g| {
                // The number of rows is known only at run time, and therefore also the end of a
                // chunk.
                let x = g.input("x", Type::new(DType::F32, [Dim::sym("s"), 20_000.into()]))?;
                let y = g.unary(UnaryFn::Exp, x)?;
                Ok(g.output("y", y)?)
            },
        ];
        let options = CompileOptions {
            bounds: Bindings::new().with("s", 5),
            ..CompileOptions::new()
        };
        for (at, build) in whole.into_iter().enumerate() {
            let mut g = Graph::new();
            build(&mut g)?;
            match low.compile(&g, &options) {
                Err(CompileError::TooLarge { limit, .. }) => assert_eq!(limit, LIMIT),
                Err(e) => panic!("{at}: {e}"),
                Ok(_) => panic!("{at}: it compiled"),
            }
        }
        Ok(())
    });
}

/// The tests of this suite.
pub(super) fn tests() -> Vec<SuiteTest> {
    let mut tests = values::tests();
    tests.extend([
        SuiteTest::asserting(
            "split/rows_are_gathered_from_parts",
            rows_are_gathered_from_parts,
        ),
        SuiteTest::asserting(
            "split/products_have_columns_from_parts",
            products_have_columns_from_parts,
        ),
        SuiteTest::asserting(
            "split/a_tied_packed_table_is_embedding_and_head",
            a_tied_packed_table_is_embedding_and_head,
        ),
        SuiteTest::asserting(
            "split/what_needs_the_whole_is_refused",
            what_needs_the_whole_is_refused,
        ),
    ]);
    tests
}
