//! Emits dispatch steps: kernel instances, parameter blocks and arguments.

use tercet_ir::DType;

use super::{LoweringCtx, PendingSlot, SlotPlacement};
use tercet_program::RECORD_BYTES;
use tercet_program::SymInt;
use tercet_program::{
    ArgAccess, KernelInstance, KernelSource, ParamBlock, ParamWord, TypedKernel, block_bytes,
};
use tercet_program::{
    KernelDispatch, KernelId, ProgramBuffer, ProgramStep, ShapeBranches, SlotId, StepOp,
};

impl LoweringCtx<'_> {
    /// Emits a dispatch of a kernel: `consts` are in the order of its specialization constants,
    /// `args` in the order of its bindings. Emits nothing if the grid is known to be empty.
    pub fn dispatch<P: ParamBlock>(
        &mut self,
        kernel: &TypedKernel<P>,
        consts: &[u32],
        args: &[SlotId],
        params: &P,
        grid: [SymInt; 3],
    ) {
        let instance = KernelInstance::new(&kernel.def, consts);
        debug_assert_eq!(instance.block_bytes, block_bytes(P::FIELDS));
        let before = self.draft.params.len();
        self.dispatch_instance(instance, args, &params.words(), grid);
        if self.draft.params.len() > before && self.is_link(args) {
            self.record_dependency::<P>();
        }
    }

    /// Like [`LoweringCtx::dispatch`], for a kernel that writes a state. The kernel receives the
    /// fault records of all data checks as its last argument, and their number as its last
    /// parameter. The kernel must not write the state if the first word of any fault record is
    /// nonzero. Fault records are 64 words apart.
    pub fn dispatch_guarded<P: ParamBlock>(
        &mut self,
        kernel: &TypedKernel<P>,
        consts: &[u32],
        args: &[SlotId],
        params: &P,
        grid: [SymInt; 3],
    ) {
        let faults = self.faults();
        let mut args = args.to_vec();
        args.push(faults);
        let words = params.words();
        let before = self.draft.params.len();
        let instance = KernelInstance::new(&kernel.def, consts);
        self.dispatch_instance(instance, &args, &words, grid);
        if self.draft.params.len() > before {
            let block = self.last_block();
            self.draft
                .check_count_words
                .push(block as usize + words.len() - 1);
            if self.is_link(&args) {
                self.record_dependency::<P>();
            }
        }
    }

    pub(super) fn last_block(&self) -> u32 {
        let list = if self.cursor.constant {
            &self.draft.prepare
        } else {
            &self.draft.steps
        };
        list.last().map_or(0, |s| match &s.work {
            StepOp::Dispatch(d) => d.block,
            StepOp::Copy { .. } | StepOp::Fill { .. } => 0,
        })
    }

    pub(super) fn faults(&mut self) -> SlotId {
        if let Some(slot) = self.draft.faults {
            return slot;
        }
        let slot = self.slot(PendingSlot {
            bytes: RECORD_BYTES,
            dtype: DType::U32,
            numel: None,
            home: SlotPlacement::At(ProgramBuffer::Faults, 0),
        });
        self.draft.faults = Some(slot);
        slot
    }

    /// Emits a dispatch of a generated WGSL kernel; `words` is its parameter block.
    pub fn dispatch_wgsl(
        &mut self,
        name: &str,
        text: String,
        access: &[ArgAccess],
        args: &[SlotId],
        words: &[ParamWord],
        grid: [SymInt; 3],
    ) {
        let instance = KernelInstance {
            name: name.to_string(),
            source: KernelSource::Wgsl(text.into()),
            args: access.to_vec(),
            block_bytes: (words.len() as u32 * 4).next_multiple_of(16),
        };
        self.dispatch_instance(instance, args, words, grid);
    }

    /// Dispatches a kernel instance.
    ///
    /// # Panics
    /// If the number of arguments is not that of the kernel, which is a bug of the lowering.
    pub fn dispatch_instance(
        &mut self,
        mut instance: KernelInstance,
        args: &[SlotId],
        words: &[ParamWord],
        grid: [SymInt; 3],
    ) {
        assert_eq!(
            instance.args.len(),
            args.len(),
            "invariant: wrong number of arguments for {}",
            instance.name
        );
        if grid.contains(&SymInt::ZERO) {
            return;
        }
        self.own_source(&mut instance);
        let block = self.block(words);
        let kernel = match self.draft.kernel_ids.get(&instance) {
            Some(&id) => id,
            None => {
                let id = KernelId(self.draft.kernels.len() as u32);
                self.draft.kernels.push(instance.clone());
                self.draft.kernel_ids.insert(instance, id);
                id
            }
        };
        if let Some(at) = self.cursor.variant {
            let known = &mut self.draft.variants[at].kernels;
            if !known.contains(&kernel) {
                known.push(kernel);
            }
        }
        self.push(StepOp::Dispatch(KernelDispatch {
            kernel,
            args: args.iter().copied().collect(),
            block,
            grid,
        }));
    }

    /// Id of the instance of a kernel with these constants, if the program already contains it.
    pub(crate) fn known_kernel<P: ParamBlock>(
        &self,
        kernel: &TypedKernel<P>,
        consts: &[u32],
    ) -> Option<KernelId> {
        let mut instance = KernelInstance::new(&kernel.def, consts);
        self.own_source(&mut instance);
        self.draft.kernel_ids.get(&instance).copied()
    }

    /// Replaces the portable WGSL source of a kernel by the version specialized for this device, if
    /// there is one.
    fn own_source(&self, instance: &mut KernelInstance) {
        if let KernelSource::Wgsl(text) = &instance.source
            && let Some(own) = self.caps.own_text(text)
        {
            instance.source = KernelSource::Wgsl(own.into());
        }
    }

    pub(super) fn push(&mut self, work: StepOp) {
        let step = ProgramStep {
            work,
            barrier: false,
            // Steps that execute once before the first run belong to no shape branch.
            branches: match self.cursor.constant {
                true => ShapeBranches::new(),
                false => self.cursor.branches.clone(),
            },
            node: self.cursor.at,
            op: self.cursor.op,
        };
        match self.cursor.constant {
            true => self.draft.prepare.push(step),
            false => self.draft.steps.push(step),
        }
    }

    /// Appends a parameter block, padded so that the next block is aligned. Returns the index of
    /// the block's first word.
    pub(crate) fn block(&mut self, words: &[ParamWord]) -> u32 {
        self.draft.append_block(words, self.caps)
    }
}
