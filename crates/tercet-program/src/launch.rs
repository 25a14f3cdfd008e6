//! Launch-time values of a run: parameter blocks and dispatch grids, evaluated for the sizes of the
//! run.

use tercet_ir::random::RngState;
use tercet_ir::{Bindings, EvalError, RunError};

use crate::active_steps::ActiveStep;
use crate::flow::StageId;
use crate::kernel::ParamWord;
use crate::program::{GpuProgram, LaunchSizeCheck, SizeRule, StepOp};
use crate::sym_int::sym_value;

/// The launch-time values of a run. The struct is reused between runs, so a run with unchanged
/// sizes allocates no memory.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LaunchSizes {
    /// All parameter blocks in device format: the words of [`GpuProgram::params`], evaluated for
    /// the run.
    pub params: Vec<u32>,
    /// Dispatch grid of each step of [`GpuProgram::steps`]. For a copy step, the first number is
    /// the number of bytes to copy. All three numbers are 0 if the run does not select the step's
    /// shape branch.
    pub grids: Vec<[u32; 3]>,
    /// For each step of [`GpuProgram::steps`], whether it has workgroups, or bytes to copy. A run
    /// leaves the others out: they cost a dispatch and often a barrier each.
    pub has_workgroups: Vec<bool>,
    /// Dispatch grid of each step of [`GpuProgram::prepare`].
    pub prepare_grids: Vec<[u32; 3]>,
    /// For each shape switch of the program: the index of the branch that the run executes.
    pub selected_branches: Vec<u32>,
    /// Parameters, as indices into the signature, whose weights F16 cannot represent accurately.
    /// The code that sets the parameters must fill in `non_f16_params`.
    pub non_f16_params: Vec<u32>,
    /// Failed size checks of nodes in nested graphs, which the run may not reach: the index of each
    /// check, and its error.
    pub failed_checks: Vec<(usize, RunError)>,
    values: Vec<i64>,
    linked: LinkedSteps,
}

/// Cached active steps and reusable memory for linking dependent launches.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct LinkedSteps {
    /// The steps with workgroups that `active_steps` was computed for.
    has_workgroups: Option<Vec<bool>>,
    active_steps: Vec<ActiveStep>,
    /// `workgroups` is the number of workgroups of each link in the chain of dependent launches.
    /// `is_awaited` tells whether another link waits on the link's counter.
    workgroups: Vec<u32>,
    is_awaited: Vec<bool>,
}

impl LaunchSizes {
    /// Evaluates all launch-time values for these sizes and this random state, and performs all
    /// size checks.
    ///
    /// # Errors
    /// [`RunError::Dim`] if a dimension is invalid; [`RunError::Node`] if a size check of a node
    /// fails, such as a slice that does not exist for these sizes.
    pub fn compute(
        &mut self,
        program: &GpuProgram,
        sizes: &Bindings,
        random: RngState,
    ) -> Result<(), RunError> {
        self.failed_checks.clear();
        for (at, check) in program.size_checks.iter().enumerate() {
            let failed = match &check.rule {
                SizeRule::Size { dim } => dim.eval(sizes).err().map(EvalError::Dim),
                SizeRule::Slice { slice, from, to } => {
                    let both = from
                        .eval(sizes)
                        .and_then(|from| Ok((from, to.eval(sizes)?)));
                    match both {
                        Ok((from, to)) => slice.axes(&from, &to).err(),
                        Err(e) if check.site.path.is_empty() => return Err(e.into()),
                        Err(e) => Some(EvalError::Dim(e)),
                    }
                }
                // `AtMost` rules are checked below, after the symbolic integers are evaluated.
                SizeRule::AtMost { .. } => None,
            };
            if let Some(source) = failed {
                self.record_failed_check(at, check, source)?;
            }
        }
        program
            .tape
            .eval(sizes, random, &self.non_f16_params, &mut self.values)?;
        for (at, check) in program.size_checks.iter().enumerate() {
            if let SizeRule::AtMost { less, more, reason } = &check.rule {
                let (less, more) = (self.value(*less), self.value(*more));
                if less > more {
                    let reason = reason.replace("{less}", &less.to_string());
                    let reason = reason.replace("{more}", &more.to_string());
                    self.record_failed_check(at, check, EvalError::Data(reason))?;
                }
            }
        }
        let values = &self.values;
        self.params.clear();
        self.params.extend(program.params.iter().map(|w| match *w {
            ParamWord::SymInt(n) => sym_value(n, values) as u32,
            ParamWord::F32(x) => x.to_bits(),
        }));
        let choices = program.shape_switches.iter();
        self.selected_branches.clear();
        self.selected_branches
            .extend(choices.map(|c| c.branch_for(sym_value(c.value, values))));
        let chosen = &self.selected_branches;
        let grids = [
            (&program.steps, &mut self.grids),
            (&program.prepare, &mut self.prepare_grids),
        ];
        for (steps, out) in grids {
            out.clear();
            out.extend(steps.iter().map(|step| match &step.work {
                _ if !step.runs(chosen) => [0; 3],
                StepOp::Dispatch(d) => d.grid.map(|n| sym_value(n, values) as u32),
                StepOp::Copy { bytes, .. } => [sym_value(*bytes, values) as u32, 1, 1],
                StepOp::Fill { .. } => [1, 1, 1],
            }));
        }
        self.has_workgroups.clear();
        let has_workgroups = self.grids.iter().map(|grid| !grid.contains(&0));
        self.has_workgroups.extend(has_workgroups);
        self.link(program);
        Ok(())
    }

    /// The branch of each shape switch that a run of these sizes takes.
    ///
    /// # Errors
    /// [`RunError::Dim`] if a dimension is invalid.
    pub fn branches(&self, program: &GpuProgram, sizes: &Bindings) -> Result<Vec<u32>, RunError> {
        let (random, mut values) = (RngState::default(), Vec::new());
        let unfit = &self.non_f16_params;
        program.tape.eval(sizes, random, unfit, &mut values)?;
        let switches = program.shape_switches.iter();
        Ok(switches
            .map(|switch| switch.variant_for(sym_value(switch.value, &values)))
            .collect())
    }

    /// Writes into each linked parameter block which counter the kernel waits on and which counter
    /// it increments.
    fn link(&mut self, program: &GpuProgram) {
        let Some(chain) = &program.chain else {
            return;
        };
        if program.flow.is_empty()
            && self.linked.has_workgroups.as_ref() != Some(&self.has_workgroups)
        {
            self.linked.active_steps =
                program.active_steps_of_stage(StageId(0), &self.has_workgroups);
            self.linked.has_workgroups = Some(self.has_workgroups.clone());
        }
        let LinkedSteps {
            active_steps: played,
            workgroups,
            is_awaited: awaited,
            ..
        } = &mut self.linked;
        let links = || played.iter().filter_map(|p| Some((p.step, p.link?)));
        workgroups.clear();
        awaited.clear();
        for (step, link) in links() {
            let own = link.signals as usize;
            workgroups.resize(workgroups.len().max(own + 1), 0);
            awaited.resize(workgroups.len(), false);
            workgroups[own] += self.grids[step].iter().product::<u32>();
            if let Some(other) = link.waits_on {
                awaited[other as usize] = true;
            }
        }
        for (step, link) in links() {
            let numbers = match &program.steps[step].work {
                StepOp::Dispatch(d) => chain.numbers.get(&d.block),
                StepOp::Copy { .. } | StepOp::Fill { .. } => None,
            };
            if let Some(&at) = numbers {
                let wanted = link.waits_on.map_or(0, |other| workgroups[other as usize]);
                // The workgroups of a link increment its counter only if another link waits on it.
                let own = match awaited[link.signals as usize] {
                    true => link.signals + 1,
                    false => 0,
                };
                let numbers = [link.waits_on.unwrap_or(0), wanted, own];
                self.params[at as usize..][..3].copy_from_slice(&numbers);
            }
        }
    }

    /// Returns the error of a failed size check if its node is in the outermost graph. For a node
    /// in a nested graph, records the error until the run reaches the node.
    fn record_failed_check(
        &mut self,
        at: usize,
        check: &LaunchSizeCheck,
        source: EvalError,
    ) -> Result<(), RunError> {
        let error = check.site.fail(source);
        match check.site.path.is_empty() {
            true => Err(error),
            false => {
                self.failed_checks.push((at, error));
                Ok(())
            }
        }
    }

    /// Value of a symbolic integer for the sizes of the last [`LaunchSizes::compute`].
    pub fn value(&self, n: crate::SymInt) -> i64 {
        sym_value(n, &self.values)
    }
}
