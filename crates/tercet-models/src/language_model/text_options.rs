//! Options of a generated text.

use tercet_networks::SamplingOptions;
#[cfg(feature = "grammar")]
use tercet_text::constraint::Grammar;

/// Options of a generated text: its length, its ends and the sampling of tokens. The defaults are
/// greedy decoding and no stop string. The sampling options are checked when the text starts.
///
/// ```
/// use tercet_models::TextOptions;
/// let options = TextOptions::new().max_tokens(64).temperature(0.7).top_p(0.9).seed(7);
/// let options = options.stop("\n\n");
/// assert_eq!(options.sampling_options().top_p, 0.9);
/// ```
#[derive(Clone, Debug, Default)]
pub struct TextOptions {
    pub(super) max_tokens: Option<usize>,
    pub(super) stop: Vec<String>,
    pub(super) stop_tokens: Vec<u32>,
    pub(super) sampling: SamplingOptions,
    pub(super) seed: u64,
    #[cfg(feature = "grammar")]
    pub(super) grammar: Option<Grammar>,
}

impl TextOptions {
    /// The defaults.
    pub fn new() -> TextOptions {
        TextOptions::default()
    }

    /// Sets the maximum number of tokens. The default is 128 for a prompt, and the rest of the
    /// context for a conversation.
    #[must_use]
    pub fn max_tokens(mut self, tokens: usize) -> Self {
        self.max_tokens = Some(tokens);
        self
    }

    /// Adds a stop string. The text ends before the first one.
    #[must_use]
    pub fn stop(mut self, text: impl Into<String>) -> Self {
        self.stop.push(text.into());
        self
    }

    /// Adds a token that ends the text, in addition to those of the model.
    #[must_use]
    pub fn stop_token(mut self, token: u32) -> Self {
        self.stop_tokens.push(token);
        self
    }

    /// Sets the temperature; 0 is greedy decoding.
    #[must_use]
    pub fn temperature(mut self, temperature: f64) -> Self {
        self.sampling.temperature = temperature;
        self
    }

    /// Samples from the `k` most likely tokens; 0 is all.
    #[must_use]
    pub fn top_k(mut self, k: usize) -> Self {
        self.sampling.top_k = k;
        self
    }

    /// Samples from the smallest set of tokens with this total probability.
    #[must_use]
    pub fn top_p(mut self, p: f64) -> Self {
        self.sampling.top_p = p;
        self
    }

    /// Sets all sampling options, such as penalties and further samplers.
    #[must_use]
    pub fn sampling(mut self, options: SamplingOptions) -> Self {
        self.sampling = options;
        self
    }

    /// Sets the seed of sampling, 0 by default. The same seed gives the same text.
    #[must_use]
    pub fn seed(mut self, seed: u64) -> Self {
        self.seed = seed;
        self
    }

    /// Constrains the text to a JSON schema, a regular expression or a grammar.
    #[cfg(feature = "grammar")]
    #[must_use]
    pub fn grammar(mut self, grammar: Grammar) -> Self {
        self.grammar = Some(grammar);
        self
    }

    /// The sampling options.
    pub fn sampling_options(&self) -> &SamplingOptions {
        &self.sampling
    }

    /// The maximum number of tokens, the stop strings and all end tokens.
    pub(super) fn limits(&self, max_tokens: usize, eos: &[u32]) -> (usize, &[String], Vec<u32>) {
        (max_tokens, &self.stop, [eos, &self.stop_tokens].concat())
    }
}
