//! A run allocates nothing if an earlier run had the same sizes.
//!
//! The allocator of this test counts only the allocations of the testing thread. Other threads run
//! the same kernels; distributing the work is done by the calling thread.
#![allow(unsafe_code, reason = "a counting global allocator")]

use std::alloc::{GlobalAlloc, Layout as AllocLayout, System};
use std::cell::Cell;

use tercet_cpu::CpuBackend;
use tercet_cpu::kernels::parallel::helpers_called;
use tercet_ir::fill::InputFill;
use tercet_ir::ops::{AttentionLayout, AttentionOptions, ReduceFn};
use tercet_ir::scalar::UnaryFn;
use tercet_ir::{Backend, CompileOptions, DType, Dim, Graph, OpError, Tensor, TensorType, Type};

thread_local! {
    static COUNT: Cell<usize> = const { Cell::new(0) };
}

struct Counting;

// SAFETY: every call is forwarded unchanged to the system allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: AllocLayout) -> *mut u8 {
        let _ = COUNT.try_with(|c| c.set(c.get() + 1));
        // SAFETY: the caller fulfills the contract of this method.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, p: *mut u8, layout: AllocLayout) {
        // SAFETY: the caller fulfills the contract of this method.
        unsafe { System.dealloc(p, layout) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

/// Number of allocations of the third run, after two runs of the same sizes, on one thread and on
/// three.
fn allocations(graph: &Graph, inputs: &[(&str, &Tensor)]) -> usize {
    let on = |threads| allocations_on(threads, graph, inputs);
    on(1) + on(3)
}

fn allocations_on(threads: usize, graph: &Graph, inputs: &[(&str, &Tensor)]) -> usize {
    let backend = CpuBackend::with_threads(threads).expect("the pool starts");
    let options = CompileOptions::new().bound("s", 16);
    let mut exe = backend
        .compile(graph, &options)
        .expect("the graph compiles");
    for port in exe.signature().params.clone() {
        let shape = port.ty.shape.as_known().expect("params have known sizes");
        let ty = TensorType::new(port.ty.dtype, &shape);
        exe.set_param(&port.name, InputFill::Normal.tensor(&port.name, ty))
            .expect("the type is right");
    }
    let mut outputs = Vec::new();
    for _ in 0..2 {
        exe.run_into(inputs, &mut outputs).expect("the graph runs");
    }
    // If a helper has returned its thread to rayon, the pool requests it again through a rayon job.
    // Such a request allocates a box, and sometimes a block of rayon's queue.
    let (before, called) = (COUNT.get(), helpers_called());
    exe.run_into(inputs, &mut outputs).expect("the graph runs");
    (COUNT.get() - before).saturating_sub(2 * (helpers_called() - called))
}

fn f32s(shape: &[usize]) -> Type {
    Type::new(DType::F32, shape)
}

fn filled(name: &str, shape: &[usize]) -> Tensor {
    InputFill::Normal.tensor(name, TensorType::new(DType::F32, shape))
}

#[test]
fn the_counter_counts() {
    let before = COUNT.get();
    let data = std::hint::black_box(vec![1u8; 100]);
    assert!(COUNT.get() > before, "{}", data.len());
}

#[test]
fn an_mlp_allocates_nothing() -> Result<(), OpError> {
    let mut g = Graph::new();
    let x = g.input("x", Type::new(DType::F32, [Dim::sym("s"), Dim::Known(32)]))?;
    let w = g.param("w", f32s(&[32, 64]))?;
    let b = g.param("b", f32s(&[64]))?;
    let h = g.linear(x, w, Some(b), Some(UnaryFn::Gelu))?;
    let v = g.param("v", f32s(&[64, 32]))?;
    let y = g.linear(h, v, None, None)?;
    let z = g.plus(x, y)?;
    g.output("z", z)?;
    assert_eq!(allocations(&g, &[("x", &filled("x", &[7, 32]))]), 0);
    Ok(())
}

#[test]
fn work_for_several_threads_allocates_nothing() -> Result<(), OpError> {
    let mut g = Graph::new();
    let x = g.input("x", f32s(&[256, 256]))?;
    let w = g.param("w", f32s(&[256, 256]))?;
    let y = g.linear(x, w, None, Some(UnaryFn::Gelu))?;
    let y = g.plus(x, y)?;
    let y = g.softmax(y, 1)?;
    let y = g.transpose(y, &[1, 0])?;
    let y = g.unary(UnaryFn::Exp, y)?;
    let best = g.top_k(y, 3, 1, true)?;
    let sums = g.reduce(ReduceFn::Sum, y, &[1], false)?;
    g.output("best", best)?;
    g.output("sums", sums)?;
    assert_eq!(allocations(&g, &[("x", &filled("x", &[256, 256]))]), 0);
    Ok(())
}

#[test]
fn narrow_floats_allocate_nothing() -> Result<(), OpError> {
    for dtype in [DType::F16, DType::BF16] {
        let mut g = Graph::new();
        let x = g.input("x", Type::new(dtype, [7, 32]))?;
        let w = g.param("w", Type::new(dtype, [32, 32]))?;
        let gamma = g.param("gamma", Type::new(dtype, [32]))?;
        let y = g.linear(x, w, None, Some(UnaryFn::Silu))?;
        let y = g.rms_norm(y, gamma, None, 1e-5)?;
        let y = g.softmax(y, 1)?;
        let y = g.matmul(y, w)?;
        g.output("y", y)?;
        let x = InputFill::Normal.tensor("x", TensorType::new(dtype, &[7, 32]));
        assert_eq!(allocations(&g, &[("x", &x)]), 0, "{dtype}");
    }
    Ok(())
}

#[test]
fn attention_with_a_cache_allocates_nothing() -> Result<(), OpError> {
    let mut g = Graph::new();
    let x = g.input("x", f32s(&[1, 1, 2, 16]))?;
    let at = g.input("at", Type::new(DType::I32, [4]))?;
    let n = g.input("n", Type::new(DType::I32, [0usize; 0]))?;
    let k = g.state("k", f32s(&[1, 8, 2, 16]))?;
    let new_k = g.dynamic_update_slice(k, x, at)?;
    g.assign(k, new_k)?;
    let options = AttentionOptions {
        kv_len: Some(n),
        ..AttentionOptions::new(2, 2, AttentionLayout::Bshd)
    };
    let y = g.attention(x, new_k, new_k, options)?;
    g.output("y", y)?;
    let x = filled("x", &[1, 1, 2, 16]);
    let at = Tensor::from_slice(&[4], &[0i32, 3, 0, 0]).expect("four starts");
    let n = Tensor::scalar(4i32);
    assert_eq!(allocations(&g, &[("x", &x), ("at", &at), ("n", &n)]), 0);
    Ok(())
}

#[cfg(feature = "splat")]
#[test]
fn splats_allocate_nothing() -> Result<(), OpError> {
    use tercet_ir::ops::splat::{CAMERA_LEN, SplatSceneOperands};
    let mut g = Graph::new();
    let scene = SplatSceneOperands {
        positions: g.param("positions", f32s(&[100, 3]))?,
        log_scales: g.param("log_scales", f32s(&[100, 3]))?,
        rotations: g.param("rotations", f32s(&[100, 4]))?,
        opacities: g.param("opacities", f32s(&[100]))?,
        colors: g.param("colors", f32s(&[100, 9, 3]))?,
    };
    let camera = g.input("camera", f32s(&[CAMERA_LEN]))?;
    let y = g.gaussian_splat_render(&scene, camera, [70, 40])?;
    g.output("y", y)?;
    let mut block = [0f32; CAMERA_LEN];
    for (at, value) in [
        (0, 1.0),
        (5, 1.0),
        (10, 1.0),
        (11, 3.0),
        (16, 40.0),
        (17, 40.0),
    ] {
        block[at] = value;
    }
    block[18..22].copy_from_slice(&[35.0, 20.0, 0.1, 100.0]);
    let camera = Tensor::from_slice(&[CAMERA_LEN], &block).expect("a block");
    assert_eq!(allocations(&g, &[("camera", &camera)]), 0);
    Ok(())
}
