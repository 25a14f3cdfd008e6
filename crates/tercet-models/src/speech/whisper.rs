//! Whisper: transcription of audio in windows.

use tercet::{Device, Executable};

use super::engine::SpeechEngine;
use super::features::FeatureStream;
use super::recognizer::TranscriptionProgress;
use super::segments::{Transcript, TranscriptSegment, split};
use super::window::{WindowPrompt, WindowTranscript, decode_window};
use super::{SpeechError, SpeechOptions, SpeechTask};
use crate::Error;
use tercet_networks::config::speech::{HOP, RATE};
use tercet_networks::config::{SpeechSpec, SpeechTokens};
use tercet_networks::{ModelError, SpeechModel};
use tercet_text::tokenizer::Tokenizer;

/// Maximum temperature at which a window's text is reliable enough to prompt the next window.
const SURE: f64 = 0.5;

/// A compiled Whisper model and its audio features.
pub(super) struct WhisperRecognizer {
    pub(super) features: Box<dyn Executable>,
    pub(super) engine: SpeechEngine,
    tokenizer: Tokenizer,
    pub(super) tokens: SpeechTokens,
    pub(super) spec: SpeechSpec,
    recorded: FeatureStream,
}

impl WhisperRecognizer {
    pub(super) fn new(
        speech: &SpeechModel,
        tokens: SpeechTokens,
        tokenizer: Tokenizer,
        device: &Device,
    ) -> Result<WhisperRecognizer, ModelError> {
        let spec = &speech.spec;
        let [features, encoder, decoder] = speech.compile(device)?;
        let sizes = [spec.vocab, spec.text_positions];
        Ok(WhisperRecognizer {
            features,
            engine: SpeechEngine::new([encoder, decoder], spec.decoder_layers, sizes),
            tokenizer,
            tokens,
            spec: spec.clone(),
            recorded: FeatureStream::new(spec.mels),
        })
    }

    /// Task to set if the user selects none: transcription, for a model with task tokens but no
    /// default in its files.
    pub(super) fn default_task(&self) -> Option<SpeechTask> {
        let tokens = &self.tokens;
        let knows = tokens.multilingual && tokens.tasks.contains_key(SpeechTask::Transcribe.name());
        (knows && tokens.task.is_none()).then_some(SpeechTask::Transcribe)
    }

    /// Appends samples to the audio. Only features are stored, 32 KB per second with 80 bands.
    ///
    /// # Errors
    /// [`SpeechError::NotFinite`], [`SpeechError::TooLong`]; [`ModelError::Run`] of the device.
    pub(super) fn push(&mut self, samples: &[f32]) -> Result<(), Error> {
        self.recorded.push(self.features.as_mut(), samples)
    }

    /// Discards the audio.
    pub(super) fn discard(&mut self) {
        self.recorded = FeatureStream::new(self.spec.mels);
    }

    /// Ends the audio and transcribes it; the recognizer is then ready for new audio. `progress` is
    /// called after each window. If `progress` returns false, the call returns the transcript so
    /// far.
    ///
    /// # Errors
    /// [`SpeechError`] for empty audio and for options that the model does not support;
    /// [`ModelError::Run`] of the device.
    pub(super) fn finish(
        &mut self,
        options: &SpeechOptions,
        progress: &mut dyn FnMut(&TranscriptionProgress<'_>) -> bool,
    ) -> Result<Transcript, Error> {
        let mut recorded =
            std::mem::replace(&mut self.recorded, FeatureStream::new(self.spec.mels));
        options.check()?;
        let mut first = self.first_tokens(options)?;
        if recorded.samples() == 0 {
            return Err(SpeechError::Empty.into());
        }
        let seconds = recorded.samples() as f64 / RATE as f64;
        let all = self.spec.frames();
        recorded.finish(self.features.as_mut(), all * HOP)?;
        let (frames, top) = (recorded.frames(), recorded.top());
        let timestamps = options.timestamps || frames > all;
        let mut transcript = Transcript {
            language: None,
            segments: Vec::new(),
            seconds,
        };
        let mut state = WhisperWindowState {
            max_tokens: self.tokens.max_length,
            conditions_on_previous: false,
            windows: 0,
        };
        let mut seek = 0;
        while seek < frames {
            let window = (seek, all.min(frames - seek));
            let features = recorded.window(window, top, all)?;
            self.engine.listen(&[("features", &features)])?;
            if state.windows == 0 {
                self.settle(&mut first, timestamps)?;
                transcript.language = self.language_of(&first);
            }
            let written = self.write(&first, &transcript, (options, timestamps), &mut state)?;
            let before = transcript.segments.len();
            seek += match written.silent {
                true => window.1,
                false => self.add(&written, window, &mut transcript)?,
            };
            let progress_now = TranscriptionProgress {
                done: (seek as f64 * HOP as f64 / RATE as f64).min(seconds),
                seconds,
                segments: &transcript.segments[before..],
            };
            if !progress(&progress_now) {
                break;
            }
        }
        Ok(transcript)
    }

    /// Initial prompt tokens; `None` is a placeholder for the language to detect.
    pub(super) fn first_tokens(
        &self,
        options: &SpeechOptions,
    ) -> Result<Vec<Option<u32>>, SpeechError> {
        let tokens = &self.tokens;
        if !tokens.multilingual && (options.language.is_some() || options.task.is_some()) {
            return Err(SpeechError::EnglishOnly);
        }
        let language = options.language.as_ref().or(tokens.language.as_ref());
        let task = options
            .task
            .map(SpeechTask::name)
            .or(tokens.task.as_deref());
        let mut first = vec![Some(tokens.start)];
        if language.is_none() && task.is_none() {
            first.extend(&tokens.forced);
            if first.len() == 1 && !tokens.languages.is_empty() {
                first.push(None);
            }
            return Ok(first);
        }
        match language {
            Some(language) => {
                let code = language.trim_start_matches("<|").trim_end_matches("|>");
                let id = tokens.languages.get(&code.to_lowercase());
                let id = id.ok_or_else(|| SpeechError::UnknownLanguage {
                    language: tercet_files::clip(language),
                    known: self.known(),
                })?;
                first.push(Some(*id));
            }
            None if !tokens.languages.is_empty() => first.push(None),
            None => {}
        }
        let task = match task {
            Some(task) => Some(tokens.tasks.get(task).ok_or_else(|| {
                let task = task.to_string();
                SpeechError::UnknownTask { task }
            })?),
            None => tokens.tasks.get(SpeechTask::Transcribe.name()),
        };
        first.extend(task.map(|id| Some(*id)));
        Ok(first)
    }

    fn known(&self) -> String {
        let known: Vec<&str> = self.tokens.languages.keys().map(String::as_str).collect();
        known.join(", ")
    }

    /// Detects the language from the first window if it is not set, and adds or removes the
    /// no-timestamps token.
    pub(super) fn settle(
        &mut self,
        first: &mut Vec<Option<u32>>,
        timestamps: bool,
    ) -> Result<(), Error> {
        for token in first.iter_mut().filter(|token| token.is_none()) {
            let logits = self.engine.forward(&[self.tokens.start], 0, &[0])?;
            let mut likeliest: Option<(u32, f32)> = None;
            // Sort the language tokens, so that of equal logits the lowest id wins.
            let mut ids: Vec<u32> = self.tokens.languages.values().copied().collect();
            ids.sort_unstable();
            for id in ids {
                let logit = logits[id as usize];
                if likeliest.is_none_or(|(_, best)| logit > best) {
                    likeliest = Some((id, logit));
                }
            }
            let (id, _) = likeliest.ok_or(SpeechError::NoToken {
                field: "lang_to_id",
                purpose: "language detection",
            })?;
            *token = Some(id);
        }
        let none = Some(self.tokens.no_timestamps);
        match (timestamps, first.last() == Some(&none)) {
            (true, true) => {
                first.pop();
            }
            (false, false) => first.push(none),
            (true, false) | (false, true) => {}
        }
        Ok(())
    }

    fn language_of(&self, first: &[Option<u32>]) -> Option<String> {
        let mut languages = self.tokens.languages.iter();
        let own = languages.find(|(_, id)| first.get(1) == Some(&Some(**id)))?;
        Some(own.0.clone())
    }

    /// Decodes the last encoded window.
    fn write(
        &mut self,
        first: &[Option<u32>],
        transcript: &Transcript,
        (options, timestamps): (&SpeechOptions, bool),
        state: &mut WhisperWindowState,
    ) -> Result<WindowTranscript, Error> {
        let half = (self.spec.text_positions / 2).saturating_sub(1);
        let mut prompt = Vec::new();
        if state.conditions_on_previous && !transcript.segments.is_empty() {
            prompt.push(self.previous()?);
            let text = self.text_before(transcript);
            prompt.extend_from_slice(&text[text.len().saturating_sub(half)..]);
        }
        let start = prompt.len();
        prompt.extend(first.iter().flatten());
        let most = state.max_tokens.saturating_add(prompt.len().min(half));
        state.max_tokens = most.min(self.spec.text_positions);
        let prompt = WindowPrompt {
            tokens: &prompt,
            start,
            max_tokens: state.max_tokens,
            timestamps,
            window: state.windows,
            ends: true,
        };
        let written = decode_window(&mut self.engine, &self.tokens, &prompt, options)?;
        state.windows += 1;
        state.conditions_on_previous = options.condition_on_previous && written.temperature < SURE;
        Ok(written)
    }

    /// Token that introduces the previous text. Old files do not name this token; it is then the
    /// second to last suppressed token.
    fn previous(&self) -> Result<u32, SpeechError> {
        let suppressed = self.tokens.suppressed.iter().rev();
        let previous = self.tokens.previous.or(suppressed.copied().nth(1));
        previous.ok_or(SpeechError::NoToken {
            field: "prev_sot_token_id",
            purpose: "prompting a window with the previous text",
        })
    }

    /// Tokens of all segments. If a segment ends with two timestamps, the second one is omitted,
    /// because it belongs to the next segment.
    fn text_before(&self, transcript: &Transcript) -> Vec<u32> {
        let first = self.tokens.first_timestamp();
        let of = |segment: &TranscriptSegment| {
            let tokens = &segment.tokens;
            match tokens.as_slice() {
                [.., before, _] if tokens.len() > 2 && *before >= first => {
                    tokens[..tokens.len() - 1].to_vec()
                }
                tokens => tokens.to_vec(),
            }
        };
        transcript.segments.iter().flat_map(of).collect()
    }

    /// Adds the segments of a window and returns the number of frames to the next window.
    fn add(
        &self,
        written: &WindowTranscript,
        window: (usize, usize),
        transcript: &mut Transcript,
    ) -> Result<usize, Error> {
        let (spans, next) = split(&written.text, &self.tokens, window);
        let first = self.tokens.first_timestamp();
        for span in spans {
            let words: Vec<u32> = (span.tokens.iter().copied())
                .filter(|token| *token < first)
                .collect();
            transcript.segments.push(TranscriptSegment {
                start: span.start,
                end: span.end,
                text: self.tokenizer.decode(&words)?,
                tokens: span.tokens,
                temperature: written.temperature,
                log_probability: written.log_probability,
                compression: written.compression,
                no_speech: written.no_speech,
            });
        }
        // Without timestamp rules a text may end at its start; advance by a whole window to
        // guarantee progress.
        Ok(if next == 0 { window.1 } else { next })
    }
}

/// State carried from window to window.
struct WhisperWindowState {
    /// Maximum tokens of a window's text.
    max_tokens: usize,
    /// True if the next window is prompted with the previous text.
    conditions_on_previous: bool,
    windows: usize,
}
