//! Whisper: a recording through windows.

use tercet::{Device, Executable};

use super::engine::Engine;
use super::features::Recorded;
use super::recognizer::Progress;
use super::segments::{Segment, Transcript, split};
use super::window::{Prompt, Written, write};
use super::{SpeechError, SpeechOptions, Task};
use crate::Error;
use crate::builder::{ModelError, Speech};
use crate::config::speech::{HOP, RATE};
use crate::config::{SpeechSpec, SpeechTokens};
use crate::tokenizer::Tokenizer;

/// Below this temperature a text is sure enough to be told to the next window.
const SURE: f64 = 0.5;

/// A compiled model and the recording that it hears.
pub(super) struct Whisper {
    pub(super) features: Box<dyn Executable>,
    pub(super) engine: Engine,
    tokenizer: Tokenizer,
    pub(super) tokens: SpeechTokens,
    pub(super) spec: SpeechSpec,
    recorded: Recorded,
}

impl Whisper {
    pub(super) fn new(
        speech: &Speech,
        tokens: SpeechTokens,
        tokenizer: Tokenizer,
        device: &Device,
    ) -> Result<Whisper, ModelError> {
        let spec = &speech.spec;
        let [features, encoder, decoder] = speech.compile(device)?;
        let sizes = [spec.vocab, spec.text_positions];
        Ok(Whisper {
            features,
            engine: Engine::new([encoder, decoder], spec.decoder_layers, sizes),
            tokenizer,
            tokens,
            spec: spec.clone(),
            recorded: Recorded::new(spec.mels),
        })
    }

    /// The task to tell the model where nobody chooses one: to transcribe, for a model that knows tasks but whose files say
    /// none.
    pub(super) fn task_to_tell(&self) -> Option<Task> {
        let tokens = &self.tokens;
        let knows = tokens.multilingual && tokens.tasks.contains_key(Task::Transcribe.name());
        (knows && tokens.task.is_none()).then_some(Task::Transcribe)
    }

    /// Adds samples to the recording. What is kept are features, 32 KB a second for 80 bands.
    ///
    /// # Errors
    /// [`SpeechError::NotFinite`], [`SpeechError::TooLong`]; [`ModelError::Run`] of the device.
    pub(super) fn push(&mut self, samples: &[f32]) -> Result<(), Error> {
        self.recorded.push(self.features.as_mut(), samples)
    }

    /// Forgets the recording.
    pub(super) fn discard(&mut self) {
        self.recorded = Recorded::new(self.spec.mels);
    }

    /// Ends the recording and writes what is said in it; the next one may begin. `progress` is called after each window; what there
    /// is by then is returned when it answers false.
    ///
    /// # Errors
    /// [`SpeechError`] for a recording without samples and for options that the model does not have; [`ModelError::Run`] of the
    /// device.
    pub(super) fn finish(
        &mut self,
        options: &SpeechOptions,
        progress: &mut dyn FnMut(&Progress<'_>) -> bool,
    ) -> Result<Transcript, Error> {
        let mut recorded = std::mem::replace(&mut self.recorded, Recorded::new(self.spec.mels));
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
        let mut state = State {
            most: self.tokens.max_length,
            told: false,
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
            let progress_now = Progress {
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

    /// What texts begin with; `None` is the language that is to be found out.
    pub(super) fn first_tokens(
        &self,
        options: &SpeechOptions,
    ) -> Result<Vec<Option<u32>>, SpeechError> {
        let tokens = &self.tokens;
        if !tokens.multilingual && (options.language.is_some() || options.task.is_some()) {
            return Err(SpeechError::EnglishOnly);
        }
        let language = options.language.as_ref().or(tokens.language.as_ref());
        let task = options.task.map(Task::name).or(tokens.task.as_deref());
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
                    language: crate::gguf::clip(language),
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
            None => tokens.tasks.get(Task::Transcribe.name()),
        };
        first.extend(task.map(|id| Some(*id)));
        Ok(first)
    }

    fn known(&self) -> String {
        let known: Vec<&str> = self.tokens.languages.keys().map(String::as_str).collect();
        known.join(", ")
    }

    /// Finds the language out where it is not known, by the first window, and says whether there are timestamps.
    pub(super) fn settle(
        &mut self,
        first: &mut Vec<Option<u32>>,
        timestamps: bool,
    ) -> Result<(), Error> {
        for token in first.iter_mut().filter(|token| token.is_none()) {
            let logits = self.engine.feed(&[self.tokens.start], 0, &[0])?;
            let mut likeliest: Option<(u32, f32)> = None;
            // The lowest among equals.
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
                purpose: "finding the language out",
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

    /// The text of the window that was heard last.
    fn write(
        &mut self,
        first: &[Option<u32>],
        transcript: &Transcript,
        (options, timestamps): (&SpeechOptions, bool),
        state: &mut State,
    ) -> Result<Written, Error> {
        let half = (self.spec.text_positions / 2).saturating_sub(1);
        let mut prompt = Vec::new();
        if state.told && !transcript.segments.is_empty() {
            prompt.push(self.previous()?);
            let text = self.text_before(transcript);
            prompt.extend_from_slice(&text[text.len().saturating_sub(half)..]);
        }
        let start = prompt.len();
        prompt.extend(first.iter().flatten());
        let most = state.most.saturating_add(prompt.len().min(half));
        state.most = most.min(self.spec.text_positions);
        let prompt = Prompt {
            tokens: &prompt,
            start,
            most: state.most,
            timestamps,
            window: state.windows,
            ends: true,
        };
        let written = write(&mut self.engine, &self.tokens, &prompt, options)?;
        state.windows += 1;
        state.told = options.condition_on_previous && written.temperature < SURE;
        Ok(written)
    }

    /// What announces earlier text. Old files do not say; in their list of tokens that are not written it is the last but one.
    fn previous(&self) -> Result<u32, SpeechError> {
        let suppressed = self.tokens.suppressed.iter().rev();
        let previous = self.tokens.previous.or(suppressed.copied().nth(1));
        previous.ok_or(SpeechError::NoToken {
            field: "prev_sot_token_id",
            purpose: "telling a window the text before it",
        })
    }

    /// Tokens of all segments; of two timestamps at the end of one, the second is that of the next.
    fn text_before(&self, transcript: &Transcript) -> Vec<u32> {
        let first = self.tokens.first_timestamp();
        let of = |segment: &Segment| {
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

    /// Adds the segments of a window and gives the frames to the next one.
    fn add(
        &self,
        written: &Written,
        window: (usize, usize),
        transcript: &mut Transcript,
    ) -> Result<usize, Error> {
        let (spans, next) = split(&written.text, &self.tokens, window);
        let first = self.tokens.first_timestamp();
        for span in spans {
            let words: Vec<u32> = (span.tokens.iter().copied())
                .filter(|token| *token < first)
                .collect();
            transcript.segments.push(Segment {
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
        // Without the rules of timestamps a text may end where it began.
        Ok(if next == 0 { window.1 } else { next })
    }
}

/// What windows leave to those behind them.
struct State {
    /// Tokens of a text at most.
    most: usize,
    /// Whether the next window is told the text before it.
    told: bool,
    windows: usize,
}
