//! Hand-made programs and helpers for tests.

pub(crate) mod ahead;
pub(crate) mod kept;
pub(crate) mod tuned;
pub(crate) mod wgsl_matrices;

use std::sync::Arc;

use tercet_ir::{
    Bindings, DType, Dim, Executable, NodeId, Port, RunError, Signature, Tensor, Type,
};
use tercet_plan::{
    ArgAccess, BufferSlot, ExprArena, GpuProgram, IoBinding, KernelDispatch, KernelId,
    KernelInstance, KernelSource, ParamWord, ProgramBuffer, ProgramStep, SlotId, StepOp, SymInt,
};

use tercet_wgpu::WgpuBackend;

pub(crate) type Done = Result<(), Box<dyn std::error::Error>>;

pub(crate) type Test = fn(&WgpuBackend) -> Done;

/// The source of a kernel that computes `y[i] = scale * a[i] + b[i]` in F32.
pub(crate) const AXPY: &str = "
struct Params { count: u32, scale: f32 }
@group(0) @binding(0) var<uniform> p: Params;
@group(0) @binding(1) var<storage, read> a: array<u32>;
@group(0) @binding(2) var<storage, read> b: array<u32>;
@group(0) @binding(3) var<storage, read_write> y: array<u32>;
@compute @workgroup_size(64)
fn main(@builtin(global_invocation_id) id: vec3<u32>) {
    if (id.x < p.count) {
        let sum = p.scale * bitcast<f32>(a[id.x]) + bitcast<f32>(b[id.x]);
        y[id.x] = bitcast<u32>(sum);
    }
}
";

/// Builds a program step by step.
pub(crate) struct Maker {
    pub(crate) program: GpuProgram,
    pub(crate) count: SymInt,
}

impl Maker {
    /// A program over the symbol `s` without steps.
    pub(crate) fn new() -> Maker {
        let mut tape = ExprArena::default();
        let count = tape.dim(&Dim::sym("s"));
        let program = GpuProgram {
            signature: Signature::default(),
            symbols: Vec::new(),
            kernels: Vec::new(),
            shape_switches: Vec::new(),
            slots: Vec::new(),
            redzones: Vec::new(),
            chain: None,
            prepare: Vec::new(),
            steps: Vec::new(),
            stages: Vec::new(),
            flow: Vec::new(),
            params: Vec::new(),
            tape,
            consts: Vec::new(),
            inputs: Vec::new(),
            param_io: Vec::new(),
            states: Vec::new(),
            outputs: Vec::new(),
            data_checks: Vec::new(),
            size_checks: Vec::new(),
            variants: Vec::new(),
            debug: tercet_ir::DebugSwitches::default(),
        };
        Maker { program, count }
    }

    pub(crate) fn slot(&mut self, buffer: ProgramBuffer, offset_bytes: u64, bytes: u64) -> SlotId {
        self.program.slots.push(BufferSlot {
            buffer,
            offset_bytes,
            bytes,
            dtype: DType::F32,
        });
        SlotId(self.program.slots.len() as u32 - 1)
    }

    /// Declares the `s` F32 values of a slot as an input or output.
    pub(crate) fn io(&mut self, slot: SlotId) -> (Port, IoBinding) {
        let ty = Type::new(DType::F32, [Dim::sym("s")]);
        let bytes = self.program.tape.mul(self.count, SymInt::Const(4));
        let name = ["x", "y", "z"][self.program.inputs.len() + self.program.outputs.len()];
        let port = Port {
            name: name.to_string(),
            ty: ty.clone(),
        };
        let planes = None;
        (
            port,
            IoBinding {
                ty,
                slot,
                bytes,
                soa_layout: planes,
            },
        )
    }

    pub(crate) fn input(&mut self, slot: SlotId) {
        let (port, io) = self.io(slot);
        self.program.signature.inputs.push(port);
        self.program.inputs.push(io);
    }

    pub(crate) fn output(&mut self, slot: SlotId) {
        let (port, io) = self.io(slot);
        self.program.signature.outputs.push(port);
        self.program.outputs.push(io);
    }

    pub(crate) fn step(&mut self, work: StepOp) {
        self.program.steps.push(ProgramStep {
            work,
            barrier: true,
            branches: Default::default(),
            node: NodeId(0),
            op: "test",
        });
    }

    /// Adds a step `y = scale * a + b`.
    pub(crate) fn axpy(&mut self, scale: f32, a: SlotId, b: SlotId, y: SlotId) {
        self.kernel("axpy", AXPY, scale, &[a, b, y]);
    }

    /// Adds a kernel with the parameter block of [`AXPY`].
    pub(crate) fn kernel(&mut self, name: &str, text: &str, scale: f32, args: &[SlotId]) {
        let block = self.program.params.len() as u32;
        self.program
            .params
            .extend([ParamWord::SymInt(self.count), ParamWord::F32(scale)]);
        let padded = (block as usize + 2).next_multiple_of(64);
        self.program
            .params
            .resize(padded, ParamWord::SymInt(SymInt::ZERO));
        let groups = self.program.tape.ceil_div(self.count, 64u32);
        let mut access = vec![ArgAccess::Read; args.len()];
        access[args.len() - 1] = ArgAccess::Write;
        self.program.kernels.push(KernelInstance {
            name: name.to_string(),
            source: KernelSource::Wgsl(text.into()),
            args: access,
            block_bytes: 16,
        });
        self.step(StepOp::Dispatch(KernelDispatch {
            kernel: KernelId(self.program.kernels.len() as u32 - 1),
            args: args.iter().copied().collect(),
            block,
            grid: [groups, SymInt::ONE, SymInt::ONE],
        }));
    }

    pub(crate) fn finish(self) -> Arc<GpuProgram> {
        Arc::new(self.program)
    }
}

/// `y = 16 x` in four steps, with intermediate values in the arena and one slot read under two
/// names.
pub(crate) fn two_steps(bound: u64) -> Arc<GpuProgram> {
    let mut m = Maker::new();
    let bytes = 4 * bound;
    let far = bytes.next_multiple_of(256);
    let x = m.slot(ProgramBuffer::Input, 0, bytes);
    let t = m.slot(ProgramBuffer::Arena, 0, bytes);
    let u = m.slot(ProgramBuffer::Arena, far, bytes);
    let v = m.slot(ProgramBuffer::Arena, 2 * far, bytes);
    let y = m.slot(ProgramBuffer::Output, 0, bytes);
    m.input(x);
    m.axpy(3.0, x, x, t);
    // The same slot is read twice, in a buffer that the step also writes.
    m.axpy(0.5, t, t, u);
    m.axpy(1.0, t, u, v);
    m.axpy(1.0, v, u, y);
    m.output(y);
    m.finish()
}

pub(crate) fn bounds(s: usize) -> Bindings {
    Bindings::new().with("s", s)
}

pub(crate) fn floats(n: usize) -> Tensor {
    let values: Vec<f32> = (0..n).map(|i| i as f32 - 3.0).collect();
    Tensor::from_slice(&[n], &values).unwrap()
}

/// Runs a program with one input and returns its outputs.
pub(crate) fn run(exe: &mut dyn Executable, x: &Tensor) -> Result<Vec<Vec<f32>>, RunError> {
    let outputs = exe.run(&[("x", x)])?;
    let values = outputs
        .iter()
        .map(|t| t.as_slice::<f32>().map(<[f32]>::to_vec));
    Ok(values.collect::<Result<_, _>>()?)
}

/// The expected output of [`two_steps`].
pub(crate) fn want(x: &Tensor) -> Vec<f32> {
    let x = x.as_slice::<f32>().unwrap();
    x.iter().map(|x| 16.0 * x).collect()
}
