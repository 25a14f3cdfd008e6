//! The typed tensor IR of Tercet.
//!
//! A [`Graph`] is an append-only list of nodes. [`Graph::add`] infers and checks types, so every
//! existing graph is well typed. Each operator is declared once, in [`ops`]; its `eval` defines the
//! result that every executor must reproduce. [`passes`] rewrite graphs, [`legalize`] replaces
//! unsupported nodes of a target, and executors implement [`Backend`] and [`Executable`].
//!
//! Invariants: this crate does no I/O and does not read the environment; no input makes it panic.
//!
//! ```
//! use std::collections::BTreeMap;
//! use tercet_ir::{DType, EvalCtx, Graph, Tensor, Type, evaluate};
//!
//! let mut g = Graph::new();
//! let x = g.input("x", Type::new(DType::F32, [3]))?;
//! let y = g.relu(x)?;
//! g.output("y", y)?;
//! let leaves = BTreeMap::from([("x".to_string(), Tensor::from_slice(&[3], &[-1f32, 0.5, 2.0])?)]);
//! let done = evaluate(&g, &EvalCtx::default(), &leaves)?;
//! assert_eq!(done.get(y).as_slice::<f32>()?, [0.0, 0.5, 2.0]);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
#![forbid(unsafe_code)]

pub mod attr;
pub mod backend;
pub mod custom;
mod error;
pub mod grad;
mod graph;
mod interp;
mod layers;
pub mod layout;
pub mod legalize;
mod non_finite;
mod op;
pub mod ops;
pub mod passes;
pub mod rules;
pub mod scalar;
pub mod subgraph;
mod text;
pub mod verify;

pub use backend::{
    Backend, BarrierOverride, CompileOptions, DebugSwitches, DeviceMemory, DeviceSwitches,
    DeviceTensor, Executable, PerSizeError, PerSizeExecutable, Port, RetainValues, Signature,
    Support, SwitchError, SwitchableFeature, Target, VariantFamily, VariantName,
};
pub use error::{
    CompileError, EvalError, OpError, RunError, TypeError, UnsupportedNode, counted, one_line,
};
pub use grad::{GradError, Gradient, GradientKind};
pub use graph::{
    Graph, GraphOutput, InnerOrigin, Node, NodeId, NodeOrigin, SizesError, StateAssign, Value,
};
pub use interp::{Evaluation, evaluate};
pub use layers::{BatchNorm, BatchStatistics};
pub use non_finite::{NonFinite, NonFiniteKind, TensorSummary};
pub use op::{EvalCtx, OpDoc, OpSpec, Tier};
pub use ops::{Op, OpKind};
pub use subgraph::SubGraph;
pub use tercet_tensor::{
    Bindings, ByteOwner, DType, DTypeClass, Dim, DimError, DimFactor, DimQuotient, Element,
    MAX_ELEMENTS_LOG2, MAX_RANK, Miscompiled, Scheme, Shape, Symbol, Tensor, TensorError,
    TensorIdentity, TensorType, Type, accuracy, broadcast_shapes, compiler_trial, fill, next_index,
    quant, random, row_major_strides,
};
pub use text::{TextError, decode as decode_text, parse, parse_literal, parse_with};

/// Private items that the tests of this crate use. They are no interface: they change without notice.
#[doc(hidden)]
pub mod internals {
    pub use crate::layout::arena::{best_gap, place_counted};
    pub use crate::ops::resize::table::{
        Quotient, cubic, exact, nearest, place, rest, scaled, scaled_dim,
    };
    #[cfg(feature = "splat")]
    pub use crate::ops::splat::{
        prepare, project::harmonics, raster::alpha, raster::covers, raster::drawn,
    };
    pub use crate::rules::spectral::greatest_prime;
}
