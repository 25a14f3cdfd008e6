//! Run-ahead: the decode run of the next token is enqueued before the host knows the token.
//!
//! The device reads the token from the output buffer of the previous run. The device therefore does
//! not idle while the host reads, decides and submits. If the sequence continues with a different
//! token, the result of the enqueued run is discarded. The discarded run wrote only cache positions
//! after the last token, and the random number counter is restored.

use tercet::OutputSelection;

use super::{Generator, INPUTS, fill};

/// State of run-ahead execution.
#[derive(Debug, Default)]
pub(super) struct RunAhead {
    is_on: bool,
    /// Token of the pending run, which starts at the end of the cache.
    pub(super) token: Option<u32>,
}

impl Generator {
    /// Enables run-ahead: each decode run is enqueued before the host has read its input token. The
    /// generated tokens stay the same. Takes effect at the next token.
    ///
    /// Run-ahead requires [`Generator::skip_logits`] and a device that can pass the token from run
    /// to run. Run-ahead also requires that the graph alone samples tokens, and that no layer has
    /// recurrent states or a window cache. [`Generator::logits`] is an error while such a run is
    /// pending.
    pub fn run_ahead(&mut self) {
        self.run_ahead.is_on = true;
    }

    /// True if the run of the next token may be enqueued before the token is known.
    fn runs_ahead(&self) -> bool {
        let keeps_all = !self.has_states && self.windows.is_empty() && self.filled.is_none();
        let by_graph = self.next_only && !self.on_host() && self.speculation.is_none();
        self.run_ahead.is_on && keeps_all && by_graph
    }

    /// True if the pending run computes exactly these tokens. Discards any other pending run.
    pub(super) fn is_in_flight(&mut self, part: &[u32]) -> bool {
        let it_is = self.run_ahead.token.is_some_and(|token| part == [token]) && self.runs_ahead();
        if !it_is {
            self.drop_ahead();
        }
        self.run_ahead.token = None;
        it_is
    }

    /// Discards the pending run, if any. The next run waits for the discarded one, whose random
    /// numbers are drawn again.
    pub(super) fn drop_ahead(&mut self) {
        if self.run_ahead.token.take().is_some()
            && let Ok(exe) = self.compiled.exe()
        {
            let random = exe.random();
            exe.set_random(random);
        }
    }

    /// Enqueues the run at position `start` of the token that the current run will sample. Returns
    /// false if run-ahead does not apply.
    pub(super) fn start_next(&mut self, start: usize) -> Result<bool, tercet::RunError> {
        if !self.runs_ahead() || start >= self.context {
            return Ok(false);
        }
        let Ok(exe) = self.compiled.exe() else {
            return Ok(false);
        };
        let [_, positions, at, kv_len, rows] = &mut self.inputs;
        fill(positions, &[1], |_| start);
        fill(at, &[4], |i| if i == 1 { start } else { 0 });
        fill(kv_len, &[], |_| start + 1);
        fill(rows, &[1], |_| 0);
        let own = INPUTS.into_iter().zip(&self.inputs).skip(1);
        let inputs: Vec<(&str, &tercet::Tensor)> = own.collect();
        exe.submit_pipelined(
            &inputs,
            &[("tokens", "next")],
            OutputSelection::Only(&["next"]),
        )
    }
}
