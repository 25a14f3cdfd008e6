//! The numbers of a run: parameter blocks and grids for actual sizes.

use tercet_ir::random::Random;
use tercet_ir::{Bindings, EvalError, RunError};

use crate::flow::StageId;
use crate::kernel::Word;
use crate::num::get;
use crate::played::Played;
use crate::program::{Program, SizeCheck, SizeRule, Work};

/// The numbers of a run. Reused from run to run: the same sizes allocate nothing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Launch {
    /// The parameter blocks as the device reads them: the words of [`Program::params`].
    pub params: Vec<u32>,
    /// The grid of each step of [`Program::steps`]; for copies, the bytes in the first number. Zeros
    /// where the step's arm is not chosen.
    pub grids: Vec<[u32; 3]>,
    /// The grid of each step of [`Program::prepare`].
    pub prepare_grids: Vec<[u32; 3]>,
    /// The arm of each choice of the program.
    pub chosen: Vec<u32>,
    /// Parameters, by their places in the signature, whose weights do not keep their values in F16. Not
    /// computed: whoever sets parameters says it.
    pub unfit: Vec<u32>,
    /// The checks of sizes that fail, of nodes that a run may not come to, with their errors.
    pub refused: Vec<(usize, RunError)>,
    values: Vec<i64>,
    linked: Linked,
}

/// What is played, for the links of chains.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Linked {
    /// Where these arms are chosen.
    chosen: Option<Vec<u32>>,
    played: Vec<Played>,
    /// Of each link, and whether another one waits for it.
    workgroups: Vec<u32>,
    awaited: Vec<bool>,
}

impl Launch {
    /// Computes the numbers for these sizes, checked against the bounds, and where the
    /// executable stands in its random numbers.
    ///
    /// # Errors
    /// [`RunError::Dim`] when a size is not possible, [`RunError::Node`] when a slice does not
    /// exist for these sizes.
    pub fn compute(
        &mut self,
        program: &Program,
        sizes: &Bindings,
        random: Random,
    ) -> Result<(), RunError> {
        self.refused.clear();
        for (at, check) in program.size_checks.iter().enumerate() {
            let failed = match &check.rule {
                SizeRule::Size { dim } => dim.eval(sizes).err().map(EvalError::Dim),
                SizeRule::Slice { slice, from, to } => {
                    let both = from
                        .eval(sizes)
                        .and_then(|from| Ok((from, to.eval(sizes)?)));
                    match both {
                        Ok((from, to)) => slice.axes(&from, &to).err(),
                        Err(e) if check.site.inside.is_empty() => return Err(e.into()),
                        Err(e) => Some(EvalError::Dim(e)),
                    }
                }
                // Compares numbers, which are not there yet.
                SizeRule::AtMost { .. } => None,
            };
            if let Some(source) = failed {
                self.refuse(at, check, source)?;
            }
        }
        program
            .tape
            .eval(sizes, random, &self.unfit, &mut self.values)?;
        for (at, check) in program.size_checks.iter().enumerate() {
            if let SizeRule::AtMost { less, more, reason } = &check.rule {
                let (less, more) = (self.value(*less), self.value(*more));
                if less > more {
                    let reason = reason.replace("{less}", &less.to_string());
                    let reason = reason.replace("{more}", &more.to_string());
                    self.refuse(at, check, EvalError::Data(reason))?;
                }
            }
        }
        let values = &self.values;
        self.params.clear();
        self.params.extend(program.params.iter().map(|w| match *w {
            Word::Num(n) => get(n, values) as u32,
            Word::F32(x) => x.to_bits(),
        }));
        let choices = program.choices.iter();
        self.chosen.clear();
        self.chosen
            .extend(choices.map(|c| c.arm(get(c.value, values))));
        let chosen = &self.chosen;
        let grids = [
            (&program.steps, &mut self.grids),
            (&program.prepare, &mut self.prepare_grids),
        ];
        for (steps, out) in grids {
            out.clear();
            out.extend(steps.iter().map(|step| match &step.work {
                _ if !step.runs(chosen) => [0; 3],
                Work::Dispatch(d) => d.grid.map(|n| get(n, values) as u32),
                Work::Copy { bytes, .. } => [get(*bytes, values) as u32, 1, 1],
                Work::Fill { .. } => [1, 1, 1],
            }));
        }
        self.link(program);
        Ok(())
    }

    /// Writes into their parameter blocks what the links of chains wait for.
    fn link(&mut self, program: &Program) {
        let Some(chain) = &program.chain else {
            return;
        };
        if program.flow.is_empty() && self.linked.chosen.as_ref() != Some(&self.chosen) {
            self.linked.played = program.played_stage(StageId(0), &self.chosen);
            self.linked.chosen = Some(self.chosen.clone());
        }
        let Linked {
            played,
            workgroups,
            awaited,
            ..
        } = &mut self.linked;
        let links = || played.iter().filter_map(|p| Some((p.step, p.link?)));
        workgroups.clear();
        awaited.clear();
        for (step, link) in links() {
            let own = link.own as usize;
            workgroups.resize(workgroups.len().max(own + 1), 0);
            awaited.resize(workgroups.len(), false);
            workgroups[own] += self.grids[step].iter().product::<u32>();
            if let Some(other) = link.waits {
                awaited[other as usize] = true;
            }
        }
        for (step, link) in links() {
            let numbers = match &program.steps[step].work {
                Work::Dispatch(d) => chain.numbers.get(&d.block),
                Work::Copy { .. } | Work::Fill { .. } => None,
            };
            if let Some(&at) = numbers {
                let wanted = link.waits.map_or(0, |other| workgroups[other as usize]);
                // Nobody counts for nobody.
                let own = match awaited[link.own as usize] {
                    true => link.own + 1,
                    false => 0,
                };
                let numbers = [link.waits.unwrap_or(0), wanted, own];
                self.params[at as usize..][..3].copy_from_slice(&numbers);
            }
        }
    }

    /// Ends the run, or notes that it may not come to this node.
    fn refuse(&mut self, at: usize, check: &SizeCheck, source: EvalError) -> Result<(), RunError> {
        let error = check.site.fail(source);
        match check.site.inside.is_empty() {
            true => Err(error),
            false => {
                self.refused.push((at, error));
                Ok(())
            }
        }
    }

    /// The value of a number for the sizes last computed.
    pub fn value(&self, n: crate::Num) -> i64 {
        get(n, &self.values)
    }
}
