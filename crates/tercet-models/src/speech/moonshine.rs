//! Moonshine: speech recognition on raw samples in chunks.
//!
//! Each chunk of up to 30 seconds is encoded at once and decoded greedily. Longer audio is split at
//! the quietest position near the end of each chunk, because the model has no timestamps.

use std::time::Instant;

use tercet::{Device, Tensor};

use super::engine::SpeechEngine;
use super::recognizer::{TranscriptionProgress, check_samples};
use super::segments::{Transcript, TranscriptSegment};
use super::timing::WindowTime;
use super::{SpeechError, SpeechOptions};
use crate::Error;
use tercet_networks::config::MoonshineSpec;
use tercet_networks::config::speech::RATE;
use tercet_networks::{ModelError, MoonshineModel};
use tercet_text::tokenizer::Tokenizer;

/// Maximum samples per chunk.
const PIECE: usize = MoonshineModel::MAX_SECONDS * RATE;
/// Length in samples of the region at the end of a chunk that is searched for a quiet position.
const LATE: usize = 10 * RATE;
/// Length in samples of the intervals whose energy is compared.
const QUIET: usize = RATE / 10;
/// Maximum tokens per second of audio. A longer text is a repetition loop.
const TOKENS_OF_SECOND: f64 = 6.5;

/// A compiled Moonshine model and its audio buffer.
pub(super) struct MoonshineRecognizer {
    engine: SpeechEngine,
    tokenizer: Tokenizer,
    spec: MoonshineSpec,
    samples: Vec<f32>,
}

impl MoonshineRecognizer {
    pub(super) fn new(
        model: &MoonshineModel,
        tokenizer: Tokenizer,
        device: &Device,
    ) -> Result<MoonshineRecognizer, ModelError> {
        let spec = &model.spec;
        let sizes = [spec.vocab, spec.text_positions];
        Ok(MoonshineRecognizer {
            engine: SpeechEngine::new(model.compile(device)?, spec.decoder_layers, sizes),
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
        progress: &mut dyn FnMut(&TranscriptionProgress<'_>) -> bool,
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
                let between = transcript
                    .segments
                    .last()
                    .is_some_and(|last: &TranscriptSegment| {
                        !last.text.ends_with(char::is_whitespace)
                            && !text.starts_with(char::is_whitespace)
                    });
                transcript.segments.push(TranscriptSegment {
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
            let progress_now = TranscriptionProgress {
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

    /// Encodes a chunk.
    fn listen(&mut self, samples: &[f32]) -> Result<(), ModelError> {
        let inputs = MoonshineModel::inputs(samples);
        let inputs = inputs.map_err(|e| ModelError::Unsupported(format!("samples: {e}")))?;
        let inputs: Vec<(&str, &Tensor)> = inputs.iter().map(|(name, x)| (*name, x)).collect();
        self.engine.listen(&inputs)
    }

    /// Greedy tokens for the last encoded chunk, without start and end tokens, and their mean log
    /// probability.
    fn write(&mut self, most: usize, ends: bool) -> Result<(Vec<u32>, f64), ModelError> {
        let most = most.clamp(2, self.spec.max_length);
        let mut text = vec![self.spec.start];
        let mut sum = 0.0;
        while text.len() < most {
            let at = text.len() - 1;
            let logits = self.engine.forward(&text[at..], at, &[0])?;
            let usable = |token: &usize| ends || !self.spec.end.contains(&(*token as u32));
            let candidates = (0..logits.len()).filter(usable);
            let best = candidates.fold(None, |best: Option<usize>, token| match best {
                Some(best) if logits[token] > logits[best] => Some(token),
                None if !logits[token].is_nan() => Some(token),
                found => found,
            });
            // All logits are NaN.
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

    /// Measures one chunk and a text of this many tokens, like a Whisper window.
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

/// Samples in the next chunk: all remaining ones if they fit. Otherwise the chunk ends in the
/// middle of the quietest tenth of a second near the end of the longest possible chunk.
pub fn piece(rest: &[f32]) -> usize {
    if rest.len() <= PIECE {
        return rest.len();
    }
    let energy = |at: &usize| -> f64 {
        let own = &rest[*at..*at + QUIET];
        own.iter().map(|x| f64::from(*x) * f64::from(*x)).sum()
    };
    let places = (PIECE - LATE..PIECE - QUIET).step_by(QUIET / 2);
    // Of equally quiet positions, take the latest one.
    let quietest = places.min_by(|a, b| energy(a).total_cmp(&energy(b)).then(b.cmp(a)));
    quietest.map_or(PIECE, |at| at + QUIET / 2)
}
