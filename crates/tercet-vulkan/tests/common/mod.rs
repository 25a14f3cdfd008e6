//! One device for all tests of a file, and hand-made programs.
#![allow(clippy::unwrap_used, reason = "tests")]
#![allow(dead_code, unreachable_pub, reason = "each test file uses a part")]

use std::sync::{Arc, OnceLock};

use tercet_ir::{
    Bindings, CompileError, DType, Dim, Executable, NodeId, Port, Shape, Signature, Tensor, Type,
};
use tercet_plan::{
    ArgAccess, BufferSlot, ExprArena, GpuExecutable, GpuProgram, IoBinding, KernelDispatch,
    KernelId, KernelInstance, KernelSource, ParamWord, ProgramBuffer, ProgramStep, SlotId, StepOp,
    SymInt,
};
use tercet_vulkan::{VulkanBackend, VulkanDriver, VulkanOpenError, VulkanOptions};

/// Opens a device, or prints why there is none. Panics without a device if `TERCET_REQUIRE` names
/// `vulkan`.
pub fn open(options: VulkanOptions) -> Option<VulkanBackend> {
    match VulkanBackend::new(options) {
        Ok(backend) => Some(backend),
        Err(e) => {
            let required = std::env::var("TERCET_REQUIRE").unwrap_or_default();
            let required = required.split(',').any(|name| name.trim() == "vulkan");
            assert!(!required, "TERCET_REQUIRE names vulkan: {e}");
            eprintln!("ignored: {e}");
            None
        }
    }
}

/// As [`open`], with validation if its layer is installed. `TERCET_VALIDATION=0` disables
/// validation; `TERCET_VALIDATION=1` makes a missing layer a failure.
pub fn open_validated(options: VulkanOptions) -> Option<VulkanBackend> {
    let choice = std::env::var("TERCET_VALIDATION").unwrap_or_default();
    if choice == "0" {
        return open(options);
    }
    let validated = VulkanOptions {
        validation: true,
        ..options.clone()
    };
    match VulkanBackend::new(validated) {
        Err(e @ VulkanOpenError::NoValidation) => {
            assert!(choice != "1", "TERCET_VALIDATION is 1: {e}");
            eprintln!("without validation: {e}");
            open(options)
        }
        Ok(backend) => Some(backend),
        Err(_) => open(options),
    }
}

/// The shared device of the tests of a file, with validation if its layer is installed.
pub fn backend() -> Option<&'static VulkanBackend> {
    static BACKEND: OnceLock<Option<VulkanBackend>> = OnceLock::new();
    BACKEND
        .get_or_init(|| open_validated(VulkanOptions::default()))
        .as_ref()
}

/// Runs an executable on one input.
pub fn run(exe: &mut dyn Executable, x: &Tensor) -> Vec<Tensor> {
    exe.run(&[("x", x)]).unwrap()
}

/// Asserts that the validation layer reported nothing.
pub fn assert_silent(backend: &VulkanBackend) {
    let messages = backend.messages();
    assert!(messages.is_empty(), "{}", messages.join("\n"));
}

/// A kernel `y[i] = f(x[i])` over `n` words. `body` is the expression `f` of `x`; the parameter
/// block contains `n`.
pub fn kernel(name: &str, body: &str) -> KernelInstance {
    let text = format!(
        "struct Params {{ n: u32 }}
        @group(0) @binding(0) var<uniform> p: Params;
        @group(0) @binding(1) var<storage, read> a: array<u32>;
        @group(0) @binding(2) var<storage, read_write> y: array<u32>;
        @compute @workgroup_size(64)
        fn main(@builtin(global_invocation_id) id: vec3<u32>) {{
            let i = id.x;
            if (i < p.n) {{ let x = a[i]; y[i] = {body}; }}
        }}"
    );
    KernelInstance {
        name: name.to_string(),
        source: KernelSource::Wgsl(text.into()),
        args: vec![ArgAccess::Read, ArgAccess::Write],
        block_bytes: 16,
    }
}

/// Builds a program over `I32` vectors.
pub struct Builder {
    pub program: GpuProgram,
    len: SymInt,
    shape: Shape,
    align_words: usize,
    bound: usize,
}

impl Builder {
    /// A program over vectors of `len` elements, at most `bound`.
    pub fn new(backend: &VulkanBackend, len: Dim, bound: usize) -> Builder {
        let mut tape = ExprArena::default();
        let n = tape.dim(&len);
        Builder {
            program: GpuProgram {
                signature: Signature::default(),
                symbols: Vec::new(),
                kernels: Vec::new(),
                shape_switches: Vec::new(),
                slots: Vec::new(),
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
                redzones: Vec::new(),
                chain: None,
            },
            len: n,
            shape: [len].into_iter().collect(),
            align_words: backend.caps().uniform_align_bytes as usize / 4,
            bound,
        }
    }

    pub fn slot(&mut self, buffer: ProgramBuffer) -> SlotId {
        let bytes = (self.bound * 4) as u64;
        let same = self.program.slots.iter().filter(|s| s.buffer == buffer);
        let at = same.map(|s| s.offset_bytes + s.bytes).max().unwrap_or(0);
        self.program.slots.push(BufferSlot {
            buffer,
            offset_bytes: at.next_multiple_of(64),
            bytes,
            dtype: DType::I32,
        });
        SlotId(self.program.slots.len() as u32 - 1)
    }

    fn io(&mut self, name: &str, buffer: ProgramBuffer) -> (Port, IoBinding, SlotId) {
        let slot = self.slot(buffer);
        let ty = Type::new(DType::I32, self.shape.clone());
        let name = name.to_string();
        let bytes = self.program.tape.mul(self.len, 4u32.into());
        let port = Port {
            name,
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
            slot,
        )
    }

    pub fn input(&mut self, name: &str) -> SlotId {
        let (port, io, slot) = self.io(name, ProgramBuffer::Input);
        self.program.signature.inputs.push(port);
        self.program.inputs.push(io);
        slot
    }

    pub fn output(&mut self, name: &str) -> SlotId {
        let (port, io, slot) = self.io(name, ProgramBuffer::Output);
        self.program.signature.outputs.push(port);
        self.program.outputs.push(io);
        slot
    }

    pub fn state(&mut self, name: &str) -> SlotId {
        let at = self.program.states.len() as u32;
        let (port, io, slot) = self.io(name, ProgramBuffer::State(at));
        self.program.signature.states.push(port);
        self.program.states.push(io);
        slot
    }

    pub fn param(&mut self, name: &str) -> SlotId {
        let at = self.program.param_io.len() as u32;
        let (port, io, slot) = self.io(name, ProgramBuffer::Param(at));
        self.program.signature.params.push(port);
        self.program.param_io.push(io);
        slot
    }

    /// Adds a step `y = kernel(x)`.
    pub fn map(&mut self, kernel: KernelInstance, x: SlotId, y: SlotId, barrier: bool) {
        let step = self.step_of(kernel, x, y, barrier);
        self.program.steps.push(step);
    }

    /// Adds a preparation step `y = kernel(x)`.
    pub fn prepare(&mut self, kernel: KernelInstance, x: SlotId, y: SlotId) {
        let step = self.step_of(kernel, x, y, false);
        self.program.prepare.push(step);
    }

    pub fn copy(&mut self, src: SlotId, dst: SlotId, barrier: bool) {
        let bytes = self.program.tape.mul(self.len, 4u32.into());
        self.program
            .steps
            .push(step(StepOp::Copy { src, dst, bytes }, barrier));
    }

    pub fn fill(&mut self, dst: SlotId, word: u32, barrier: bool) {
        self.program
            .steps
            .push(step(StepOp::Fill { dst, word }, barrier));
    }

    /// Adds a constant.
    pub fn constant(&mut self, tensor: Tensor) -> SlotId {
        self.program.consts.push(tensor);
        self.slot(ProgramBuffer::Const(self.program.consts.len() as u32 - 1))
    }

    fn step_of(
        &mut self,
        kernel: KernelInstance,
        x: SlotId,
        y: SlotId,
        barrier: bool,
    ) -> ProgramStep {
        let kernels = &mut self.program.kernels;
        let known = kernels.iter().position(|k| *k == kernel);
        let at = known.unwrap_or_else(|| {
            kernels.push(kernel);
            kernels.len() - 1
        });
        let params = &mut self.program.params;
        let block = params.len().next_multiple_of(self.align_words);
        params.resize(block, ParamWord::SymInt(SymInt::ZERO));
        params.push(ParamWord::SymInt(self.len));
        params.extend([ParamWord::SymInt(SymInt::ZERO); 3]);
        let groups = self.program.tape.ceil_div(self.len, 64u32);
        let dispatch = KernelDispatch {
            kernel: KernelId(at as u32),
            args: [x, y].into_iter().collect(),
            block: block as u32,
            grid: [groups, SymInt::ONE, SymInt::ONE],
        };
        step(StepOp::Dispatch(dispatch), barrier)
    }

    pub fn load(self, backend: &VulkanBackend) -> GpuExecutable<VulkanDriver> {
        self.try_load(backend).unwrap()
    }

    pub fn try_load(
        self,
        backend: &VulkanBackend,
    ) -> Result<GpuExecutable<VulkanDriver>, CompileError> {
        let program = Arc::new(self.program);
        let driver = backend.load(&program)?;
        let bounds = Bindings::new().with("n", self.bound);
        Ok(GpuExecutable::new(program, driver, bounds))
    }
}

fn step(work: StepOp, barrier: bool) -> ProgramStep {
    ProgramStep {
        work,
        barrier,
        branches: Default::default(),
        node: NodeId(0),
        op: "test",
    }
}

pub fn ints(values: impl IntoIterator<Item = i32>) -> Tensor {
    let values: Vec<i32> = values.into_iter().collect();
    Tensor::from_slice(&[values.len()], &values).unwrap()
}

/// `y = 3 x + 1` by two kernels over vectors of `n` elements.
pub fn affine(backend: &VulkanBackend, len: Dim, bound: usize) -> Builder {
    let mut b = Builder::new(backend, len, bound);
    let (x, y, t) = (b.input("x"), b.output("y"), b.slot(ProgramBuffer::Arena));
    b.map(kernel("times_three", "x * 3u"), x, t, false);
    b.map(kernel("plus_one", "x + 1u"), t, y, true);
    b
}
