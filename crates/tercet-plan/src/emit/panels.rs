//! Panel-packed activation rows. If the only reader of 16-bit rows is a matmul with prepacked
//! weights, the rows are stored in panels of 32 columns, `[k / 32, rows, 32]`. In this layout, a
//! subgroup reads eight rows of one k step as 512 contiguous bytes.
//!
//! The lowering of a kernel that can write panels registers it as a producer; the lowering of the
//! matmul later requests panels. If both happen, a word of the producer's parameter block enables
//! panels. Only this matmul reads a panel-packed slot.

use tercet_ir::{NodeId, Value};

use super::{LoweringCtx, SlotPlacement};
use crate::kernel::{ParamBlock, ParamWord};
use crate::program::{ProgramStep, ShapeBranch, ShapeBranches, SlotId, StepOp};
use crate::sym_int::SymInt;

/// A dispatch that can write the rows of its result slot panel-packed.
#[derive(Clone, Debug)]
pub(super) struct PanelProducer {
    slot: SlotId,
    /// Shape branches that the dispatch belongs to.
    branches: ShapeBranches,
    /// Number of rows and number of columns of the slot.
    size: [SymInt; 2],
    /// Index of the dispatch in the stage under construction, and the start of its parameter block.
    step: usize,
    block: u32,
    /// Index of the parameter word that is set to 1 if the dispatch must write panels.
    word: usize,
}

impl LoweringCtx<'_> {
    /// Registers the last dispatch as a producer: it writes the `[rows, columns]` values of `slot`
    /// panel-packed if its parameter `field` is 1.
    pub(crate) fn offer_panels<P: ParamBlock>(
        &mut self,
        field: &'static str,
        slot: SlotId,
        size: [SymInt; 2],
    ) {
        let known = P::FIELDS.iter().find(|f| f.name == field);
        let is_last = |work: &StepOp| matches!(work, StepOp::Dispatch(d) if d.args.contains(&slot));
        let writes = self.draft.steps.last().is_some_and(|s| is_last(&s.work));
        let runs = writes && !self.cursor.constant && !self.facts.has_flow;
        let (Some(field), SlotPlacement::Arena, true) = (known, self.home(slot), runs) else {
            return;
        };
        let block = self.last_block();
        self.values.panels.push(PanelProducer {
            slot,
            branches: self.cursor.branches.clone(),
            size,
            step: self.draft.steps.len() - 1,
            block,
            word: (block + field.offset_bytes / 4) as usize,
        });
    }

    /// Requests that the `[rows, columns]` values of `slot` are panel-packed in the current shape
    /// branches. Returns true if the producer can write panels and only the current node reads the
    /// slot.
    pub(crate) fn accept_panels(&mut self, slot: SlotId, size: [SymInt; 2]) -> bool {
        let arms = self.cursor.branches.clone();
        let fits = |o: &&PanelProducer| {
            let is_near = o.branches == arms || o.branches.is_empty();
            o.slot == slot && o.size == size && is_near
        };
        let Some(offer) = self.values.panels.iter().rev().find(fits).cloned() else {
            return false;
        };
        let steps = &self.draft.steps;
        let is_there = steps
            .get(offer.step)
            .is_some_and(|s| matches!(&s.work, StepOp::Dispatch(d) if d.block == offer.block));
        // A step of another branch of the same shape switch never executes in the same run as the
        // current step.
        let is_elsewhere = |step: &ProgramStep| {
            let other = |a, b: &ShapeBranch| b.choice == a && !arms.contains(b);
            arms.iter()
                .any(|arm| step.branches.iter().any(|of| other(arm.choice, of)))
        };
        let touches = |step: &ProgramStep| match &step.work {
            StepOp::Dispatch(d) => d.args.contains(&slot),
            StepOp::Copy { src, dst, .. } => *src == slot || *dst == slot,
            StepOp::Fill { dst, .. } => *dst == slot,
        };
        let since = steps.get(offer.step + 1..).unwrap_or_default();
        let is_read = since.iter().any(|s| touches(s) && !is_elsewhere(s));
        if !is_there || is_read || self.is_read_later(slot) {
            return false;
        }
        let taken = match offer.branches == arms {
            true => Some(SymInt::ONE),
            false => self.are_taken(&arms),
        };
        if let Some(taken) = taken {
            self.draft.params[offer.word] = ParamWord::SymInt(taken);
        }
        taken.is_some()
    }

    /// A symbolic value that is 1 in runs that execute these shape branches, else 0. `None` unless
    /// each branch is the last one of its shape switch and all switches test the same value.
    fn are_taken(&mut self, arms: &ShapeBranches) -> Option<SymInt> {
        let mut last: Option<(SymInt, u32)> = None;
        for arm in arms {
            let choice = &self.draft.shape_switches[arm.choice.0 as usize];
            let bound = *choice.bounds.last()?;
            let is_last = arm.index as usize == choice.bounds.len();
            let (value, above) = last.unwrap_or((choice.value, bound));
            if !is_last || value != choice.value {
                return None;
            }
            last = Some((value, above.max(bound)));
        }
        let (value, above) = last?;
        let tape = &mut self.draft.tape;
        let over = tape.sub(value, SymInt::Const(above.into()));
        let over = tape.max(over, SymInt::ZERO);
        Some(tape.min(over, SymInt::ONE))
    }

    /// True if a later node, an output or a state may read a value in this slot.
    fn is_read_later(&self, slot: SlotId) -> bool {
        let lies_there = |v: Value| {
            let places = &self.values.views[v.node.index()];
            places
                .get(usize::from(v.port))
                .is_some_and(|view| view.slot == slot)
        };
        // The later readers of a value that is computed on demand are unknown.
        let mut on_demand = self.values.materialized.iter();
        if on_demand.any(|(.., view)| view.slot == slot) {
            return true;
        }
        let NodeId(at) = self.cursor.at;
        let later = self.graph.nodes().filter(|(id, _)| id.0 > at);
        let mut inputs = later.flat_map(|(_, node)| node.inputs.iter().copied());
        let mut results = self.graph.outputs().iter().map(|o| o.value);
        let mut states = self.graph.assigns().iter().map(|a| a.value);
        inputs.any(lies_there) || results.any(lies_there) || states.any(lies_there)
    }
}

#[cfg(test)]
mod tests {
    use tercet_ir::ops::{AttentionLayout, AttentionOptions};
    use tercet_ir::random::RngState;
    use tercet_ir::scalar::UnaryFn;
    use tercet_ir::{Bindings, CompileOptions, DType, Dim, Graph, Type, Value};

    use crate::caps::DeviceCaps;
    use crate::kernel::ParamWord;
    use crate::launch::LaunchSizes;
    use crate::program::{GpuProgram, StepOp};

    const WIDTH: usize = 768;

    /// Test graph: a layer norm of `[rows, 768]`, followed by a matmul with GELU and by a second
    /// matmul.
    fn graph(rows: &[Dim]) -> (Graph, [Value; 3]) {
        let mut g = Graph::new();
        let shape = rows.iter().cloned().chain([Dim::Known(WIDTH)]);
        let shape: Vec<Dim> = shape.collect();
        let x = g.input("x", Type::new(DType::F16, shape)).unwrap();
        let weights = |g: &mut Graph, name: &str, shape: &[usize]| {
            let shape: Vec<Dim> = shape.iter().copied().map(Dim::Known).collect();
            g.param(name, Type::new(DType::F16, shape)).unwrap()
        };
        let [gamma, beta] = ["gamma", "beta"].map(|name| weights(&mut g, name, &[WIDTH]));
        let up = weights(&mut g, "up", &[WIDTH, 4 * WIDTH]);
        let down = weights(&mut g, "down", &[4 * WIDTH, WIDTH]);
        let axis = rows.len();
        let normed = g.layer_norm(x, gamma, Some(beta), axis, 1e-12).unwrap();
        let hidden = g.linear(normed, up, None, Some(UnaryFn::Gelu)).unwrap();
        let y = g.linear(hidden, down, None, None).unwrap();
        g.output("y", y).unwrap();
        (g, [normed, hidden, y])
    }

    fn compile(g: &Graph) -> GpuProgram {
        let options = CompileOptions::new().bound("b", 32).bound("s", 64);
        crate::compile(g, &options, &DeviceCaps::h200()).unwrap()
    }

    /// For each dispatch of a run: the kernel name, whether its constants select panel-packed
    /// input, and whether its parameter block selects panel-packed output.
    fn run(program: &GpuProgram, sizes: [usize; 2]) -> Vec<(String, bool, bool)> {
        let [b, s] = sizes;
        let mut launch = LaunchSizes::default();
        let sizes = Bindings::new().with("b", b).with("s", s);
        launch
            .compute(program, &sizes, RngState::default())
            .unwrap();
        let steps = program.steps.iter().zip(&launch.grids);
        let on = steps.filter_map(|(step, grid)| match &step.work {
            StepOp::Dispatch(d) if !grid.contains(&0) => Some(d),
            StepOp::Dispatch(_) | StepOp::Copy { .. } | StepOp::Fill { .. } => None,
        });
        let all = on.map(|d| {
            let name = &program.kernels[d.kernel.0 as usize].name;
            // The fields `y_panels` and `c_panels`, which select panel-packed output, are the last
            // words of their parameter blocks.
            let word = match name {
                name if name.starts_with("norm") => Some(8),
                name if name.starts_with("gemm_laid") => Some(26),
                name if name.starts_with("attention_lanes") => Some(38),
                _ => None,
            };
            let writes = word.is_some_and(|at| {
                let word = program.params[d.block as usize + at];
                matches!(word, ParamWord::SymInt(n) if launch.value(n) == 1)
            });
            let kernel = name.split(' ').next().unwrap().to_string();
            (kernel, name.contains("A_PANELS=1"), writes)
        });
        all.collect()
    }

    fn laid(reads: bool, writes: bool) -> (String, bool, bool) {
        ("gemm_laid_f16".to_string(), reads, writes)
    }

    #[test]
    fn rows_that_one_product_reads_lie_in_panels() {
        let (g, _) = graph(&[Dim::sym("b"), Dim::Known(197)]);
        let all = run(&compile(&g), [32, 0]);
        let norm = ("norm_vectors".to_string(), false, true);
        assert_eq!(all, [norm, laid(true, true), laid(true, false)]);
    }

    #[test]
    fn only_runs_that_fill_parts_of_tiles_have_panels() {
        let (g, _) = graph(&[Dim::sym("b"), Dim::sym("s")]);
        let program = compile(&g);
        for (sizes, panels) in [([32, 64], true), ([3, 16], true), ([1, 47], false)] {
            let all = run(&program, sizes);
            let norm = ("norm_vectors".to_string(), false, panels);
            let wanted = [norm, laid(panels, panels), laid(panels, false)];
            assert_eq!(all, wanted, "{sizes:?}");
        }
        let few = run(&program, [1, 3]);
        assert!(few.iter().all(|(_, reads, _)| !reads), "{few:?}");
        assert!(!few[0].2, "{few:?}");
    }

    #[test]
    fn rows_that_somebody_else_reads_lie_as_they_are() {
        for at in [0, 1] {
            let (mut g, values) = graph(&[Dim::sym("b"), Dim::Known(197)]);
            let twice = g.unary(UnaryFn::Relu, values[at]).unwrap();
            g.output("more", twice).unwrap();
            let all = run(&compile(&g), [32, 0]);
            let writers = all.iter().filter(|(.., writes)| *writes);
            assert_eq!(writers.count(), 1, "{at}: {all:?}");
            let (mut g, values) = graph(&[Dim::sym("b"), Dim::Known(197)]);
            g.output("more", values[at]).unwrap();
            let all = run(&compile(&g), [32, 0]);
            let writers = all.iter().filter(|(.., writes)| *writes);
            assert_eq!(writers.count(), 1, "{at}: {all:?}");
        }
    }

    /// Test graph: attention with head size 64 whose queries, keys and values are column ranges of
    /// one matmul result, starting at these columns.
    fn attention(begins: [usize; 3], is_read: bool) -> Graph {
        let mut g = Graph::new();
        let (b, s) = (Dim::sym("b"), Dim::Known(197));
        let shape = [b.clone(), s.clone(), Dim::Known(WIDTH)];
        let x = g.input("x", Type::new(DType::F16, shape)).unwrap();
        let w = Type::new(DType::F16, [WIDTH, 3 * WIDTH]);
        let w = g.param("w", w).unwrap();
        let all = g.linear(x, w, None, None).unwrap();
        let parts = begins.map(|first| {
            let own = g.narrow(all, 2, first, WIDTH).unwrap();
            let apart = [b.clone(), s.clone(), Dim::Known(WIDTH / 64), Dim::Known(64)];
            g.reshape(own, apart).unwrap()
        });
        let [q, k, v] = parts;
        let options = AttentionOptions::new(WIDTH / 64, WIDTH / 64, AttentionLayout::Bshd);
        let y = g.attention(q, k, v, options).unwrap();
        let joined = g.reshape(y, [b, s, Dim::Known(WIDTH)]).unwrap();
        let w = Type::new(DType::F16, [WIDTH, WIDTH]);
        let w = g.param("out", w).unwrap();
        let y = g.linear(joined, w, None, None).unwrap();
        g.output("y", y).unwrap();
        if is_read {
            let sums = g.unary(UnaryFn::Relu, all).unwrap();
            g.output("more", sums).unwrap();
        }
        g
    }

    #[test]
    fn heads_that_are_columns_of_one_product_lie_in_panels() {
        let begins = [0, WIDTH, 2 * WIDTH];
        for (begins, is_read, panels) in [
            (begins, false, true),
            (begins, true, false),
            ([0, WIDTH + 32, 2 * WIDTH], false, true),
            ([0, WIDTH + 8, 2 * WIDTH], false, false),
        ] {
            let program = compile(&attention(begins, is_read));
            let mut all = run(&program, [32, 0]);
            all.retain(|(kernel, ..)| kernel != "map");
            let attention = ("attention_lanes_f16".to_string(), false, true);
            let wanted = [laid(false, panels), attention, laid(true, false)];
            assert_eq!(all, wanted, "{begins:?} {is_read}");
        }
    }
}
