//! Moonshine: a recording in pieces of samples.
//!
//! A piece of up to 30 seconds is read at once, and its text is written with the likeliest tokens. A longer recording is cut where
//! it is quietest, late in each piece: the model has no timestamps that would say where a text ends.

use std::time::Instant;

use tercet::{Device, Tensor};

use super::engine::Engine;
use super::recognizer::{Progress, check_samples};
use super::segments::{Segment, Transcript};
use super::timing::WindowTime;
use super::{SpeechError, SpeechOptions};
use crate::Error;
use crate::builder::{ModelError, Moonshine, PIECE_SECONDS};
use crate::config::MoonshineSpec;
use crate::config::speech::RATE;
use crate::tokenizer::Tokenizer;

/// Samples of a piece at most.
const PIECE: usize = PIECE_SECONDS * RATE;
/// Samples at the end of a piece among which it is cut.
const LATE: usize = 10 * RATE;
/// Samples whose energy is compared.
const QUIET: usize = RATE / 10;
/// Tokens of a second at most: a text that is longer repeats itself.
const TOKENS_OF_SECOND: f64 = 6.5;

/// A compiled model and the recording that it hears.
pub(super) struct Raw {
    engine: Engine,
    tokenizer: Tokenizer,
    spec: MoonshineSpec,
    samples: Vec<f32>,
}

impl Raw {
    pub(super) fn new(
        model: &Moonshine,
        tokenizer: Tokenizer,
        device: &Device,
    ) -> Result<Raw, ModelError> {
        let spec = &model.spec;
        let sizes = [spec.vocab, spec.text_positions];
        Ok(Raw {
            engine: Engine::new(model.compile(device)?, spec.decoder_layers, sizes),
            tokenizer,
            spec: spec.clone(),
            samples: Vec::new(),
        })
    }

    pub(super) fn push(&mut self, samples: &[f32]) -> Result<(), SpeechError> {
        check_samples(self.samples.len(), samples)?;
        self.samples.extend_from_slice(samples);
        Ok(())
    }

    pub(super) fn discard(&mut self) {
        self.samples = Vec::new();
    }

    pub(super) fn finish(
        &mut self,
        options: &SpeechOptions,
        progress: &mut dyn FnMut(&Progress<'_>) -> bool,
    ) -> Result<Transcript, Error> {
        let samples = std::mem::take(&mut self.samples);
        options.check()?;
        if options.language.is_some() || options.task.is_some() {
            return Err(SpeechError::OneLanguage.into());
        }
        if samples.is_empty() {
            return Err(SpeechError::Empty.into());
        }
        let seconds = |samples: usize| samples as f64 / RATE as f64;
        let mut transcript = Transcript {
            language: None,
            segments: Vec::new(),
            seconds: seconds(samples.len()),
        };
        let mut from = 0;
        while from < samples.len() {
            let len = piece(&samples[from..]);
            let own = &samples[from..from + len];
            self.listen(own)?;
            let most = (seconds(len) * TOKENS_OF_SECOND) as usize;
            let (tokens, log_probability) = self.write(most, true)?;
            let text = self.tokenizer.decode(&tokens)?;
            if !text.is_empty() {
                let between = transcript.segments.last().is_some_and(|last: &Segment| {
                    !last.text.ends_with(char::is_whitespace)
                        && !text.starts_with(char::is_whitespace)
                });
                transcript.segments.push(Segment {
                    start: seconds(from),
                    end: seconds(from + len),
                    text: if between { format!(" {text}") } else { text },
                    tokens,
                    temperature: 0.0,
                    log_probability,
                    compression: 0.0,
                    no_speech: 0.0,
                });
            }
            from += len;
            let written = transcript.segments.len().saturating_sub(1);
            let progress_now = Progress {
                done: seconds(from),
                seconds: transcript.seconds,
                segments: &transcript.segments[written..],
            };
            if !progress(&progress_now) {
                break;
            }
        }
        Ok(transcript)
    }

    /// Reads a piece.
    fn listen(&mut self, samples: &[f32]) -> Result<(), ModelError> {
        let inputs = Moonshine::inputs(samples);
        let inputs = inputs.map_err(|e| ModelError::Unsupported(format!("samples: {e}")))?;
        let inputs: Vec<(&str, &Tensor)> = inputs.iter().map(|(name, x)| (*name, x)).collect();
        self.engine.listen(&inputs)
    }

    /// The likeliest tokens for the piece that was read last, without those around them, and the mean of the logarithms of their
    /// probabilities.
    fn write(&mut self, most: usize, ends: bool) -> Result<(Vec<u32>, f64), ModelError> {
        let most = most.clamp(2, self.spec.max_length);
        let mut text = vec![self.spec.start];
        let mut sum = 0.0;
        while text.len() < most {
            let at = text.len() - 1;
            let logits = self.engine.feed(&text[at..], at, &[0])?;
            let usable = |token: &usize| ends || !self.spec.end.contains(&(*token as u32));
            let candidates = (0..logits.len()).filter(usable);
            let best = candidates.fold(None, |best: Option<usize>, token| match best {
                Some(best) if logits[token] > logits[best] => Some(token),
                None if !logits[token].is_nan() => Some(token),
                found => found,
            });
            // The model gives what is no number.
            let Some(best) = best else {
                break;
            };
            sum += f64::from(logits[best]) - super::rules::log_sum(logits);
            if self.spec.end.contains(&(best as u32)) {
                break;
            }
            text.push(best as u32);
        }
        text.remove(0);
        let count = text.len().max(1) as f64;
        Ok((text, sum / count))
    }

    /// Times a piece and a text of so many tokens, as of a window of Whisper.
    pub(super) fn time_piece(
        &mut self,
        samples: &[f32],
        tokens: usize,
    ) -> Result<WindowTime, Error> {
        self.discard();
        let started = Instant::now();
        self.listen(samples)?;
        let encoder = started.elapsed().as_secs_f64();
        let started = Instant::now();
        let (written, _) = self.write(tokens + 1, false)?;
        Ok(WindowTime {
            recording: samples.len() as f64 / RATE as f64,
            tokens: written.len(),
            features: 0.0,
            encoder,
            text: started.elapsed().as_secs_f64(),
        })
    }
}

/// How many samples of the rest of a recording the next piece has: all if they fit, else up to the middle of the quietest tenth of
/// a second at the end of the longest piece.
fn piece(rest: &[f32]) -> usize {
    if rest.len() <= PIECE {
        return rest.len();
    }
    let energy = |at: &usize| -> f64 {
        let own = &rest[*at..*at + QUIET];
        own.iter().map(|x| f64::from(*x) * f64::from(*x)).sum()
    };
    let places = (PIECE - LATE..PIECE - QUIET).step_by(QUIET / 2);
    // The latest among equals.
    let quietest = places.min_by(|a, b| energy(a).total_cmp(&energy(b)).then(b.cmp(a)));
    quietest.map_or(PIECE, |at| at + QUIET / 2)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_end_where_it_is_quiet() {
        let mut samples = vec![0.5; 45 * RATE];
        samples[25 * RATE..25 * RATE + 3200].fill(0.0);
        let first = piece(&samples);
        assert!((25 * RATE..25 * RATE + 3200).contains(&first), "{first}");
        assert_eq!(piece(&samples[first..]), samples.len() - first);
        // Silence all the same: late.
        let silence = vec![0.0; 31 * RATE];
        assert!(piece(&silence) > 29 * RATE);
    }
}
