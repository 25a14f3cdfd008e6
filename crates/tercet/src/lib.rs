//! Tercet compiles a typed graph for several executors, which agree within documented tolerances.
//!
//! Build a [`Graph`] (or load a model with `tercet-models`), pick a [`Device`], compile, run:
//!
//! ```
//! use tercet::{CompileOptions, DType, Device, Dim, Graph, Tensor, Type};
//!
//! let mut g = Graph::new();
//! let x = g.input("x", Type::new(DType::F32, [Dim::sym("rows"), Dim::Known(3)]))?;
//! let y = g.softmax(x, 1)?;
//! g.output("y", y)?;
//!
//! let device = Device::cpu();
//! let mut exe = device.compile(&g, &CompileOptions::new().bound("rows", 64))?;
//! let x = Tensor::from_slice(&[1, 3], &[0f32, 0.0, 0.0])?;
//! let outputs = exe.run(&[("x", &x)])?;
//! assert_eq!(outputs[0].as_slice::<f32>()?, [1.0 / 3.0; 3]);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! | feature | contents |
//! |---|---|
//! | `cpu` (default) | [`Device::cpu`], the optimized CPU executor, and [`Device::reference`] |
//! | `vulkan` | `Device::by_name("vulkan")`: recorded command buffers, cooperative matrices |
//! | `wgpu` | `Device::by_name("wgpu")`: Metal, DX12, Vulkan, WebGPU |
//! | `train` | training steps, optimizers and checkpoints (module `train`), on every executor |
//! | `splat` | 3D Gaussian splatting, on every executor |
//! | `ndarray` | tensors from and to arrays of the crate `ndarray` |
//!
//! Cargo features select the executors, and no executor falls back to another. If a device does not
//! support a graph, [`Device::compile`] returns an error that lists every unsupported node with the
//! reason and a remedy.
#![forbid(unsafe_code)]

#[cfg(feature = "ndarray")]
mod arrays;
mod bound_graph;
mod build_info;
mod device;
mod graph_builder;
mod non_finite;
mod optimized;
mod trace;
#[cfg(feature = "train")]
pub mod train;
mod tune;
#[cfg(feature = "cpu")]
mod verify;

#[cfg(feature = "ndarray")]
pub use arrays::TensorArrays;
pub use bound_graph::{EvaluateError, NodeValues, node_values, optimized_values};
pub use build_info::{BUILD, BuildInfo};
pub use device::{Device, DeviceError, DeviceInfo, DeviceOptions, devices, switches_in_effect};
pub use graph_builder::{GraphBuilder, GraphExpr};
pub use tercet_ir::backend::{DeviceMemory, DeviceTensor, NamedOutputs, RetainedValue};
pub use tercet_ir::backend::{Explanation, KernelUse, OutputSelection, StepTime, TensorFuture};
pub use tercet_ir::{
    Backend, BarrierOverride, BatchNorm, BatchStatistics, Bindings, ByteOwner, CompileError,
    CompileOptions, DType, DebugSwitches, DeviceSwitches, Dim, DimError, Element, EvalCtx,
    EvalError, Evaluation, Executable, GradError, Graph, MAX_RANK, Miscompiled, Node, NodeId,
    NonFinite, NonFiniteKind, Op, OpError, OpKind, Port, RetainValues, RunError, Scheme, Shape,
    Signature, SubGraph, Support, SwitchError, SwitchableFeature, Symbol, Target, Tensor,
    TensorError, TensorSummary, TensorType, TextError, Tier, Type, TypeError, UnsupportedNode,
    Value, VariantFamily, VariantName, accuracy, attr, attrs, compiler_trial, counted, custom,
    decode_text, evaluate, fill, grad, one_line, ops, parse, parse_literal, parse_with, passes,
    quant, random, scalar, spelled,
};
pub use tune::{TuneError, TuneOptions, TunedProblem, tune};
#[cfg(feature = "cpu")]
pub use verify::{NodeDivergence, Verification, verify, verify_optimized};

/// Private items that the tests of this crate use. They are no interface: they change without
/// notice.
#[doc(hidden)]
pub mod internals {
    pub use crate::trace::escaped;
    #[cfg(feature = "train")]
    pub use crate::train::sample::FORWARD_PASSES;
}

/// The example of the README, as a documentation test.
#[cfg(all(doctest, feature = "cpu"))]
#[doc = include_str!("../README.md")]
mod readme {}
