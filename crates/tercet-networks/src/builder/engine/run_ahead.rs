//! Run-ahead: the decode run of the next token is enqueued before the host knows the token.
//!
//! The device reads the token from the output buffer of the previous run. The device therefore does
//! not idle while the host reads, decides and submits. If the sequence continues with a different
//! token, the result of the enqueued run is discarded. The discarded run wrote only cache positions
//! after the last token, and the random number counter is restored.

use tercet::OutputSelection;

use super::super::ModelError;
use super::inputs::ProgramInputs;
use super::{Engine, NEXT};

/// State of run-ahead execution.
#[derive(Debug, Default)]
pub(super) struct RunAhead {
    is_on: bool,
    /// Token of the pending run, which starts at the end of the cache.
    pub(super) token: Option<u32>,
}

impl Engine {
    /// Enables run-ahead, from the next token on.
    pub(crate) fn run_ahead(&mut self) {
        self.run_ahead.is_on = true;
    }

    /// True while the run of the next token is pending.
    pub(crate) fn is_ahead(&self) -> bool {
        self.run_ahead.token.is_some()
    }

    /// True if the run of the next token may be enqueued before the token is known, after a run with
    /// these outputs.
    pub(super) fn runs_ahead(&self, outputs: &[&str]) -> bool {
        let by_graph = outputs == NEXT && self.speculation.is_none();
        self.run_ahead.is_on && self.goes_back() && by_graph
    }

    /// True if the pending run computes exactly this token. Discards any other pending run.
    pub(super) fn is_in_flight(&mut self, token: Option<u32>) -> bool {
        let it_is = token.is_some() && self.run_ahead.token == token;
        if !it_is {
            self.drop_ahead();
        }
        self.run_ahead.token = None;
        it_is
    }

    /// Discards the pending run, if any. The next run waits for the discarded one, whose random
    /// numbers are drawn again.
    pub(crate) fn drop_ahead(&mut self) {
        if self.run_ahead.token.take().is_some()
            && let Ok(exe) = self.compiled.exe()
        {
            let random = exe.random();
            exe.set_random(random);
        }
    }

    /// Enqueues the run at position `start` of the token that the current run will sample. Returns
    /// false if run-ahead does not apply.
    pub(super) fn start_next(&mut self, start: usize) -> Result<bool, ModelError> {
        let ProgramInputs::Text(inputs) = &mut self.inputs else {
            return Ok(false);
        };
        if start >= self.context {
            return Ok(false);
        }
        let (Some(inputs), Ok(exe)) = (inputs.ahead(start), self.compiled.exe()) else {
            return Ok(false);
        };
        let passed = [("tokens", "next")];
        Ok(exe.submit_pipelined(&inputs, &passed, OutputSelection::Only(NEXT))?)
    }
}
