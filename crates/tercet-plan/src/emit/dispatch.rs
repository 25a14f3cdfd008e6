//! Dispatches of kernels: their parameter blocks and their arguments.

use tercet_ir::DType;

use super::{Emit, Home, RECORD_BYTES, SlotDraft};
use crate::kernel::{Access, Instance, Kernel, Params, Source, Word, block_bytes};
use crate::num::Num;
use crate::program::{Arms, Buffer, Dispatch, KernelId, SlotId, Step, Work};

impl Emit<'_> {
    /// Runs a kernel: `consts` in the order of its constants, `args` in the order of its bindings. A
    /// grid that is known to be empty emits nothing.
    pub fn dispatch<P: Params>(
        &mut self,
        kernel: &Kernel<P>,
        consts: &[u32],
        args: &[SlotId],
        params: &P,
        grid: [Num; 3],
    ) {
        let instance = Instance::of(&kernel.def, consts);
        debug_assert_eq!(instance.block_bytes, block_bytes(P::FIELDS));
        let before = self.draft.params.len();
        self.dispatch_instance(instance, args, &params.words(), grid);
        if self.draft.params.len() > before && self.is_link(args) {
            self.note_link::<P>();
        }
    }

    /// As [`Emit::dispatch`], for a kernel that writes a state: its last argument, the records of
    /// data checks, and its last parameter, their number, are added here. It must write nothing if
    /// the first word of any record is not zero; records are 64 words apart.
    pub fn dispatch_guarded<P: Params>(
        &mut self,
        kernel: &Kernel<P>,
        consts: &[u32],
        args: &[SlotId],
        params: &P,
        grid: [Num; 3],
    ) {
        let faults = self.faults();
        let mut args = args.to_vec();
        args.push(faults);
        let words = params.words();
        let before = self.draft.params.len();
        let instance = Instance::of(&kernel.def, consts);
        self.dispatch_instance(instance, &args, &words, grid);
        if self.draft.params.len() > before {
            let block = self.last_block();
            self.draft.guards.push(block as usize + words.len() - 1);
            if self.is_link(&args) {
                self.note_link::<P>();
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
            Work::Dispatch(d) => d.block,
            Work::Copy { .. } | Work::Fill { .. } => 0,
        })
    }

    pub(super) fn faults(&mut self) -> SlotId {
        if let Some(slot) = self.draft.faults {
            return slot;
        }
        let slot = self.slot(SlotDraft {
            bytes: RECORD_BYTES,
            dtype: DType::U32,
            numel: None,
            home: Home::At(Buffer::Faults, 0),
        });
        self.draft.faults = Some(slot);
        slot
    }

    /// Runs generated WGSL whose parameter block is `words`.
    pub fn dispatch_wgsl(
        &mut self,
        name: &str,
        text: String,
        access: &[Access],
        args: &[SlotId],
        words: &[Word],
        grid: [Num; 3],
    ) {
        let instance = Instance {
            name: name.to_string(),
            source: Source::Wgsl(text.into()),
            args: access.to_vec(),
            block_bytes: (words.len() as u32 * 4).next_multiple_of(16),
        };
        self.dispatch_instance(instance, args, words, grid);
    }

    /// Runs a kernel that is ready.
    ///
    /// # Panics
    /// When it takes another number of arguments: a bug of the family.
    pub fn dispatch_instance(
        &mut self,
        mut instance: Instance,
        args: &[SlotId],
        words: &[Word],
        grid: [Num; 3],
    ) {
        assert_eq!(
            instance.args.len(),
            args.len(),
            "invariant: {} takes other arguments",
            instance.name
        );
        if grid.contains(&Num::ZERO) {
            return;
        }
        self.own_source(&mut instance);
        let block = self.block(words);
        let kernel = match self.draft.known.get(&instance) {
            Some(&id) => id,
            None => {
                let id = KernelId(self.draft.kernels.len() as u32);
                self.draft.kernels.push(instance.clone());
                self.draft.known.insert(instance, id);
                id
            }
        };
        self.push(Work::Dispatch(Dispatch {
            kernel,
            args: args.iter().copied().collect(),
            block,
            grid,
        }));
    }

    /// A kernel with these constants, if it runs anywhere in the program so far.
    pub(crate) fn known_kernel<P: Params>(
        &self,
        kernel: &Kernel<P>,
        consts: &[u32],
    ) -> Option<KernelId> {
        let mut instance = Instance::of(&kernel.def, consts);
        self.own_source(&mut instance);
        self.draft.known.get(&instance).copied()
    }

    /// Puts the device's own text of a kernel in the place of the portable one, where it has some.
    fn own_source(&self, instance: &mut Instance) {
        if let Source::Wgsl(text) = &instance.source
            && let Some(own) = self.caps.own_text(text)
        {
            instance.source = Source::Wgsl(own.into());
        }
    }

    pub(super) fn push(&mut self, work: Work) {
        let step = Step {
            work,
            barrier: false,
            // What is prepared is there in every run.
            arms: match self.cursor.constant {
                true => Arms::new(),
                false => self.cursor.arms.clone(),
            },
            node: self.cursor.at,
            op: self.cursor.op,
        };
        match self.cursor.constant {
            true => self.draft.prepare.push(step),
            false => self.draft.steps.push(step),
        }
    }

    /// Appends a parameter block, padded so that the next one is aligned.
    pub(crate) fn block(&mut self, words: &[Word]) -> u32 {
        let at = self.draft.params.len();
        self.draft.params.extend_from_slice(words);
        let align = (self.caps.uniform_align_bytes.max(16) / 4) as usize;
        let end = self
            .draft
            .params
            .len()
            .next_multiple_of(align)
            .max(at + align);
        self.draft.params.resize(end, Word::Num(Num::ZERO));
        at as u32
    }
}
