//! Tercet: one typed graph, sibling executors that agree.
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
//! | feature | executor |
//! |---|---|
//! | `cpu` (default) | [`Device::cpu`], the fast CPU executor, and [`Device::reference`] |
//! | `vulkan` | `Device::by_name("vulkan")`: recorded command buffers, cooperative matrices |
//! | `wgpu` | `Device::by_name("wgpu")`: Metal, DX12, Vulkan, WebGPU |
//! | `train` | no executor: training steps, optimizers and checkpoints (module `train`), on each of them |
//! | `splat` | no executor: 3-D Gaussian splatting, on each of them |
//!
//! The executors are chosen by feature; nothing falls back from one to another. What a device cannot
//! run is an error of [`Device::compile`] that lists every node with the reason and a remedy.
#![forbid(unsafe_code)]

mod build_info;
mod device;
mod non_finite;
mod once;
#[cfg(feature = "train")]
pub mod train;
mod tune;
#[cfg(feature = "cpu")]
mod verify;

pub use build_info::{BUILD, BuildInfo};
pub use device::{Device, DeviceError, DeviceInfo, DeviceOptions, devices};
pub use once::{NodeValues, VerifyError, node_values};
pub use tercet_ir::backend::{DeviceMemory, DeviceTensor, Kept};
pub use tercet_ir::backend::{Explanation, Fetch, KernelUse, StepTime, Wanted};
pub use tercet_ir::{
    Backend, BatchNorm, BatchStatistics, Bindings, ByteOwner, CompileError, CompileOptions, DType,
    Dim, DimError, Element, EvalCtx, EvalError, Evaluation, Executable, Found, GradError, Graph,
    Keep, MAX_RANK, Miscompiled, Node, NodeId, NonFinite, Op, OpError, OpKind, Port, RunError,
    Scheme, Shape, Signature, Span, SubGraph, Support, Symbol, Target, Tensor, TensorError,
    TensorType, TextError, Tier, Type, TypeError, UnsupportedNode, Value, accuracy, attr, attrs,
    case, compiler_trial, counted, custom, decode_text, evaluate, grad, one_line, ops, parse,
    parse_literal, parse_with, passes, quant, random, scalar, spelled,
};
pub use tune::{TuneError, TuneOptions, TunedProduct, tune};
#[cfg(feature = "cpu")]
pub use verify::{NodeError, Verification, verify};
