//! Kernels that run matmuls, attention, convolutions and scans of typical model sizes, on each
//! profile. Changes of these snapshots change what users run and need review like code.

use std::fmt::Write;

use tercet_ir::ops::{AttentionLayout, AttentionOptions, Window};
use tercet_ir::{Bindings, CompileOptions, DType, Dim, Graph, OpError, Scheme, Type, Value};
use tercet_plan::{DeviceCaps, GpuProgram, LaunchSizes, StepOp, check_races, compile};

use crate::common::{in_parallel, profiles};

/// A graph with a symbolic number of rows, and the row counts to test.
struct Sized {
    name: String,
    graph: Graph,
    rows: &'static [usize],
}

const ROWS: &[usize] = &[1, 4, 8, 16, 128, 512, 4096];
const ONCE: &[usize] = &[1];

fn built(
    name: String,
    rows: &'static [usize],
    build: impl FnOnce(&mut Graph) -> Result<Value, OpError>,
) -> Sized {
    let mut graph = Graph::new();
    let y = build(&mut graph).expect("a graph");
    graph.output("y", y).expect("an output");
    Sized { name, graph, rows }
}

/// A matmul of activation rows and weights `[k, n]`, or `[n, k]` if transposed.
fn product(dtype: DType, [n, k]: [usize; 2], b_transposed: bool) -> Sized {
    let layout = if b_transposed { "nt" } else { "nn" };
    built(format!("{dtype} {layout} {n}x{k}"), ROWS, |g| {
        let x = g.input("x", Type::new(dtype, [Dim::sym("m"), Dim::Known(k)]))?;
        let w = match b_transposed {
            true => {
                let w = g.param("w", Type::new(dtype, [n, k]))?;
                g.transpose(w, &[1, 0])?
            }
            false => g.param("w", Type::new(dtype, [k, n]))?,
        };
        g.matmul(x, w)
    })
}

fn packed(dtype: DType, scheme: Scheme, [n, k]: [usize; 2]) -> Sized {
    built(format!("{dtype} x {scheme:?} {n}x{k}"), ROWS, |g| {
        let bytes = scheme.row_bytes(k).expect("whole blocks");
        let x = g.input("x", Type::new(dtype, [Dim::sym("m"), Dim::Known(k)]))?;
        let w = g.param("w", Type::new(DType::U8, [n, bytes]))?;
        g.dequant_matmul(x, w, scheme)
    })
}

fn batches(dtype: DType, [batch, m, n, k]: [usize; 4]) -> Sized {
    built(format!("{dtype} {batch} of {m}x{n}x{k}"), ONCE, |g| {
        let a = g.input("a", Type::new(dtype, [batch, m, k]))?;
        let b = g.input("b", Type::new(dtype, [batch, k, n]))?;
        g.matmul(a, b)
    })
}

/// Attention with these sizes: query and KV heads, queries and keys, head size.
fn attention(dtype: DType, heads: [usize; 2], [queries, keys]: [usize; 2], dim: usize) -> Sized {
    let [q, kv] = heads;
    let name = format!("attention {dtype} {q}/{kv} heads of {dim}, {queries}x{keys}");
    built(name, ONCE, |g| {
        let ty = |heads, len| Type::new(dtype, [1, heads, len, dim]);
        let q_ = g.input("q", ty(q, queries))?;
        let k = g.input("k", ty(kv, keys))?;
        let v = g.input("v", ty(kv, keys))?;
        g.attention(
            q_,
            k,
            v,
            AttentionOptions::new(q, kv, AttentionLayout::Bhsd).causal(),
        )
    })
}

/// A convolution with windows of `size` by `size` and "same" padding at stride 1.
fn conv(dtype: DType, x: [usize; 4], channels: usize, [size, stride]: [usize; 2]) -> Sized {
    let [batch, own, height, width] = x;
    let name =
        format!("conv {dtype} {batch}x{own}x{height}x{width} to {channels}, {size}/{stride}");
    built(name, ONCE, |g| {
        let x = g.input("x", Type::new(dtype, x))?;
        let w = g.param("w", Type::new(dtype, [channels, own, size, size]))?;
        let bias = g.param("bias", Type::new(dtype, [channels]))?;
        let pads = [size / 2; 2];
        let windows = Window::new(2)
            .with_stride(&[stride; 2])
            .with_pads(&pads, &pads);
        g.conv(x, w, Some(bias), windows, 1)
    })
}

fn scans(dtype: DType, batch: usize) -> [Sized; 3] {
    const STEPS: usize = 4096;
    let selective = built(format!("selective scan {dtype} {batch}"), ONCE, |g| {
        let x = g.input("x", Type::new(dtype, [batch, STEPS, 4096]))?;
        let delta = g.input("delta", Type::new(dtype, [batch, STEPS, 4096]))?;
        let a = g.input("a", Type::new(dtype, [4096, 16]))?;
        let b = g.input("b", Type::new(dtype, [batch, STEPS, 16]))?;
        let c = g.input("c", Type::new(dtype, [batch, STEPS, 16]))?;
        g.selective_scan(x, delta, a, b, c)
    });
    let mamba = built(format!("mamba2 {dtype} {batch}"), ONCE, |g| {
        let x = g.input("x", Type::new(dtype, [batch, STEPS, 64, 64]))?;
        let dt = g.input("dt", Type::new(dtype, [batch, STEPS, 64]))?;
        let a = g.input("a", Type::new(dtype, [64]))?;
        let b = g.input("b", Type::new(dtype, [batch, STEPS, 1, 128]))?;
        let c = g.input("c", Type::new(dtype, [batch, STEPS, 1, 128]))?;
        g.mamba2(x, dt, a, b, c)
    });
    let delta = built(format!("gated delta net {dtype} {batch}"), ONCE, |g| {
        let key = Type::new(dtype, [batch, STEPS, 32, 128]);
        let gates = Type::new(dtype, [batch, STEPS, 32]);
        let q = g.input("q", key.clone())?;
        let k = g.input("k", key.clone())?;
        let v = g.input("v", key)?;
        let decay = g.input("g", gates.clone())?;
        let beta = g.input("beta", gates)?;
        g.gated_delta_net([q, k, v, decay, beta], None, false)
    });
    [selective, mamba, delta]
}

fn all() -> Vec<Sized> {
    const LAYERS: [[usize; 2]; 6] = [
        [768, 768],
        [3072, 768],
        [768, 3072],
        [2048, 2048],
        [14336, 4096],
        [4096, 14336],
    ];
    let mut all = Vec::new();
    for dtype in [DType::F32, DType::F16, DType::BF16] {
        all.extend(LAYERS.map(|size| product(dtype, size, false)));
        all.extend([[5632, 2048], [14336, 4096]].map(|size| product(dtype, size, true)));
        all.push(batches(dtype, [16, 1024, 64, 1024]));
        all.push(batches(dtype, [96, 128, 128, 64]));
    }
    let schemes = [
        Scheme::Q4_0,
        Scheme::Q8_0,
        Scheme::Q4K,
        Scheme::Q6K,
        Scheme::Iq4Xs,
    ];
    for scheme in schemes {
        let layers = [[2048, 2048], [5632, 2048], [14336, 4096], [4096, 14336]];
        all.extend(layers.map(|size| packed(DType::F32, scheme, size)));
        all.push(packed(DType::F16, scheme, [14336, 4096]));
    }
    for dtype in [DType::F32, DType::F16] {
        all.push(attention(dtype, [16, 16], [1024, 1024], 64));
        all.push(attention(dtype, [32, 8], [512, 512], 128));
        all.push(attention(dtype, [32, 8], [65, 1600], 128));
        all.push(attention(dtype, [12, 12], [128, 128], 64));
        all.push(attention(dtype, [32, 8], [1, 4096], 128));
        all.push(attention(dtype, [64, 8], [1, 32768], 128));
        all.push(attention(dtype, [32, 4], [1, 512], 64));
        all.push(attention(dtype, [32, 8], [4, 4096], 96));
        all.push(conv(dtype, [32, 64, 56, 56], 64, [3, 1]));
        all.push(conv(dtype, [1, 64, 56, 56], 64, [3, 1]));
        all.push(conv(dtype, [32, 512, 7, 7], 512, [3, 1]));
        all.push(conv(dtype, [32, 64, 56, 56], 256, [1, 1]));
        all.push(conv(dtype, [32, 3, 224, 224], 64, [7, 2]));
        all.extend(scans(dtype, 1));
        all.extend(scans(dtype, 8));
    }
    all
}

/// The kernels of a run with their grids; with constants if `all`.
fn played(program: &GpuProgram, launch: &LaunchSizes, all: bool) -> Vec<String> {
    let steps = program.active_steps(&program.steps, &launch.selected_branches);
    let kernels = steps
        .iter()
        .filter_map(|p| match &program.steps[p.step].work {
            StepOp::Dispatch(d) => {
                let [x, y, z] = launch.grids[p.step];
                let kernel = program.kernels[d.kernel.0 as usize].name.as_str();
                let kernel = match all {
                    true => kernel,
                    false => kernel.split(' ').next().unwrap_or_default(),
                };
                Some(format!("{kernel} over {x}x{y}x{z}"))
            }
            StepOp::Copy { .. } | StepOp::Fill { .. } => None,
        });
    kernels.collect()
}

fn listing(caps: &DeviceCaps, with_constants: bool) -> String {
    let mut text = String::new();
    for sized in all() {
        let options = CompileOptions::new().bound("m", 4096);
        let program = match compile(&sized.graph, &options, caps) {
            Ok(program) => program,
            Err(e) => {
                writeln!(text, "{}: {e}", sized.name).expect("text");
                continue;
            }
        };
        check_races(&program).unwrap_or_else(|race| panic!("{}: {race}", sized.name));
        let mut before: Option<Vec<String>> = None;
        for &rows in sized.rows {
            let sizes = match program.symbols.is_empty() {
                true => Bindings::new(),
                false => Bindings::new().with("m", rows),
            };
            let mut launch = LaunchSizes::default();
            launch
                .compute(&program, &sizes, tercet_ir::random::RngState::default())
                .expect("sizes within bounds");
            let played = played(&program, &launch, with_constants);
            if before.as_ref() == Some(&played) {
                continue;
            }
            match program.symbols.is_empty() {
                true => writeln!(text, "{}:", sized.name),
                false => writeln!(text, "{rows} rows, {}:", sized.name),
            }
            .expect("text");
            for kernel in &played {
                writeln!(text, "    {kernel}").expect("text");
            }
            before = Some(played);
        }
    }
    text
}

#[test]
fn what_sizes_of_models_run_on_each_profile() {
    let listings = in_parallel(profiles(), |(profile, caps)| {
        // Constants are listed only for the device that was measured.
        (profile, listing(&caps, profile == "h200"))
    });
    for (profile, listing) in listings {
        insta::assert_snapshot!(format!("sizes_{profile}"), listing);
    }
}
