//! Tokens ahead: the run of a token that the graph chooses is started before the host has seen which it is.
//!
//! Greedy or drawn, a text mostly goes on with what was chosen. The device takes the token from where the run before left
//! it, so that it does not wait between tokens for the host to read, decide and submit. Where the text goes on otherwise,
//! the run that was started is thrown away: it wrote into the cache behind the last token alone, and random numbers go on
//! as if it had not been.

use tercet::Wanted;

use super::{Generator, INPUTS, fill};

/// What is known of runs ahead.
#[derive(Debug, Default)]
pub(super) struct Ahead {
    is_on: bool,
    /// The token whose run is under way, which begins at the end of the cache.
    pub(super) token: Option<u32>,
}

impl Generator {
    /// From the next token on, starts the run of a token that the graph chose before the host has seen it, where that can be done:
    /// after [`Generator::skip_logits`], on devices that take the token from the run before, while nothing but the
    /// graph chooses tokens, in models whose layers keep all that they read. Texts are the same. [`Generator::logits`]
    /// gives none while such a run is under way.
    pub fn run_ahead(&mut self) {
        self.ahead.is_on = true;
    }

    /// Whether the token after those in the cache may be run before it is known.
    fn runs_ahead(&self) -> bool {
        let keeps_all = !self.has_states && self.windows.is_empty() && self.filled.is_none();
        let by_graph = self.next_only && !self.on_host() && self.speculation.is_none();
        self.ahead.is_on && keeps_all && by_graph
    }

    /// Whether the run of these tokens at the end of the cache is under way. A run of others is thrown away.
    pub(super) fn is_under_way(&mut self, part: &[u32]) -> bool {
        let it_is = self.ahead.token.is_some_and(|token| part == [token]) && self.runs_ahead();
        if !it_is {
            self.drop_ahead();
        }
        self.ahead.token = None;
        it_is
    }

    /// Throws the run ahead away, if there is one: the next run finishes it, and random numbers do not count it.
    pub(super) fn drop_ahead(&mut self) {
        if self.ahead.token.take().is_some()
            && let Some(exe) = &mut self.exe
        {
            let random = exe.random();
            exe.set_random(random);
        }
    }

    /// Starts the run of the token that the run under way chooses, for its place `start`; false where it was not.
    pub(super) fn start_next(&mut self, start: usize) -> Result<bool, tercet::RunError> {
        if !self.runs_ahead() || start >= self.context {
            return Ok(false);
        }
        let Some(exe) = &mut self.exe else {
            return Ok(false);
        };
        let [_, positions, at, kv_len, rows] = &mut self.inputs;
        fill(positions, &[1], |_| start);
        fill(at, &[4], |i| if i == 1 { start } else { 0 });
        fill(kv_len, &[], |_| start + 1);
        fill(rows, &[1], |_| 0);
        let own = INPUTS.into_iter().zip(&self.inputs).skip(1);
        let inputs: Vec<(&str, &tercet::Tensor)> = own.collect();
        exe.submit_behind(&inputs, &[("tokens", "next")], Wanted::Only(&["next"]))
    }
}
