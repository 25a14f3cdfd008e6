//! Speech to text: segments as they are written.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use tercet::{DType, Device};
use tercet_models::speech::{Recognizer, Segment, SpeechOptions, Task, Transcript, audio};
use tercet_models::{Error, ModelFiles};

use crate::array;
use crate::errors::{self, TensorError};
use crate::stream::Stream;

/// A speech recognizer.
#[pyclass(name = "Recognizer", module = "tercet", frozen)]
pub(crate) struct PyRecognizer {
    recognizer: Arc<Mutex<Recognizer>>,
    languages: Vec<String>,
    task: Option<Task>,
}

/// A recording.
enum Audio {
    File(PathBuf),
    Bytes(Vec<u8>),
    Samples(Vec<f32>),
}

impl PyRecognizer {
    pub(crate) fn open(files: &ModelFiles, device: &Device) -> Result<PyRecognizer, Error> {
        let recognizer = files.recognizer(device)?;
        Ok(PyRecognizer {
            languages: (recognizer.tokens().into_iter())
                .flat_map(|tokens| tokens.languages.keys().cloned())
                .collect(),
            task: recognizer.task_to_tell(),
            recognizer: Arc::new(Mutex::new(recognizer)),
        })
    }
}

fn recording(value: &Bound<'_, PyAny>) -> PyResult<Audio> {
    if let Ok(bytes) = value.cast::<PyBytes>() {
        return Ok(Audio::Bytes(bytes.as_bytes().to_vec()));
    }
    if let Ok(path) = value.extract::<PathBuf>() {
        return Ok(Audio::File(path));
    }
    let samples = array::to_tensor("audio", value, DType::F32)?;
    if samples.shape().len() != 1 {
        return Err(TensorError::new_err(format!(
            "`audio` has the shape {:?}; expected one axis: samples of one channel, 16000 a second",
            samples.shape()
        )));
    }
    let samples = samples.as_slice::<f32>().map_err(errors::tensor)?;
    Ok(Audio::Samples(samples.to_vec()))
}

#[pymethods]
impl PyRecognizer {
    /// What is said in a recording: an iterator of segments, as windows of 30 seconds are done.
    ///
    /// `audio` is a file (WAV, FLAC, MP3), its bytes, or float32 samples of one channel, 16000 a second. `language` is a
    /// code such as `en`, found out where there is none; `task` is `transcribe` or `translate` (into English). Without
    /// `fallback` the likeliest tokens are taken whatever comes out.
    #[pyo3(signature = (audio, *, language=None, task=None, timestamps=false, condition_on_previous=false,
        fallback=true, seed=0))]
    #[expect(clippy::too_many_arguments, reason = "keywords of Python")]
    fn transcribe(
        &self,
        audio: &Bound<'_, PyAny>,
        language: Option<String>,
        task: Option<&str>,
        timestamps: bool,
        condition_on_previous: bool,
        fallback: bool,
        seed: u64,
    ) -> PyResult<PyTranscription> {
        let task = match task {
            None => self.task,
            Some("transcribe") => Some(Task::Transcribe),
            Some("translate") => Some(Task::Translate),
            Some(other) => {
                return Err(PyValueError::new_err(format!(
                    "task is `{other}`; expected transcribe or translate"
                )));
            }
        };
        let base = match fallback {
            true => SpeechOptions::with_fallback(),
            false => SpeechOptions::default(),
        };
        let options = SpeechOptions {
            language,
            task,
            timestamps,
            condition_on_previous,
            seed,
            ..base
        };
        let audio = recording(audio)?;
        let recognizer = Arc::clone(&self.recognizer);
        let work = move |send: &mut dyn FnMut(Option<Segment>) -> bool| {
            let own = recognizer.lock();
            let mut recognizer = own.unwrap_or_else(PoisonError::into_inner);
            // Of one that was left midway.
            recognizer.discard();
            heard(&mut recognizer, audio, &options, send)
        };
        Ok(PyTranscription(Stream::start("tercet-transcribe", work)?))
    }

    /// Codes of the languages that the model knows.
    #[getter]
    fn languages(&self) -> Vec<String> {
        self.languages.clone()
    }

    fn __repr__(&self) -> String {
        let languages = self.languages.len();
        format!("<tercet.Recognizer: {languages} languages>")
    }
}

fn heard(
    recognizer: &mut Recognizer,
    audio: Audio,
    options: &SpeechOptions,
    send: &mut dyn FnMut(Option<Segment>) -> bool,
) -> Result<Transcript, Error> {
    let mut wanted = true;
    let mut push = |samples: &[f32]| {
        wanted = wanted && send(None);
        // Nothing is kept of what nobody waits for.
        match wanted {
            true => recognizer.push(samples),
            false => Ok(()),
        }
    };
    match audio {
        Audio::File(path) => drop(audio::read(path, &mut push)?),
        Audio::Bytes(bytes) => drop(audio::read_bytes("audio", bytes, &mut push)?),
        Audio::Samples(samples) => push(&samples)?,
    }
    recognizer.finish(options, &mut |progress| {
        let mut segments = progress.segments.iter();
        send(None) && segments.all(|segment| send(Some(segment.clone())))
    })
}

/// A recording that is being transcribed: an iterator of its segments.
#[pyclass(name = "Transcription", module = "tercet", frozen)]
pub(crate) struct PyTranscription(Stream<Segment, Transcript>);

#[pymethods]
impl PyTranscription {
    fn __iter__(slf: PyRef<'_, Self>) -> PyRef<'_, Self> {
        slf
    }

    fn __next__(&self, py: Python<'_>) -> PyResult<Option<PySegment>> {
        Ok(self.0.next(py)?.map(PySegment))
    }

    /// The text of the segments that are left, in one piece.
    fn text(&self, py: Python<'_>) -> PyResult<String> {
        let mut text = String::new();
        while let Some(segment) = self.0.next(py)? {
            text += &segment.text;
        }
        Ok(text)
    }

    /// Ends the transcription here.
    fn close(&self, py: Python<'_>) {
        self.0.close(py);
    }

    /// The code of the language, once the transcription has ended, where the model knows several.
    #[getter]
    fn language(&self, py: Python<'_>) -> Option<String> {
        self.0.at_end(py, |all| all.language.clone()).flatten()
    }

    /// The length of the recording in seconds, once the transcription has ended.
    #[getter]
    fn duration(&self, py: Python<'_>) -> Option<f64> {
        self.0.at_end(py, |all| all.seconds)
    }

    /// All segments as subtitles of SubRip, once the transcription has ended.
    #[getter]
    fn srt(&self, py: Python<'_>) -> Option<String> {
        self.0.at_end(py, Transcript::srt)
    }

    /// All segments as subtitles of WebVTT, once the transcription has ended.
    #[getter]
    fn vtt(&self, py: Python<'_>) -> Option<String> {
        self.0.at_end(py, Transcript::vtt)
    }
}

/// A piece of what is said, and when.
#[pyclass(name = "Segment", module = "tercet", frozen)]
pub(crate) struct PySegment(Segment);

#[pymethods]
impl PySegment {
    /// Where it begins, in seconds.
    #[getter]
    fn start(&self) -> f64 {
        self.0.start
    }

    /// Where it ends, in seconds.
    #[getter]
    fn end(&self) -> f64 {
        self.0.end
    }

    /// Its text.
    #[getter]
    fn text(&self) -> &str {
        &self.0.text
    }

    /// Its tokens, timestamps included.
    #[getter]
    fn tokens(&self) -> Vec<u32> {
        self.0.tokens.clone()
    }

    /// The temperature that it was written at.
    #[getter]
    fn temperature(&self) -> f64 {
        self.0.temperature
    }

    /// The mean natural logarithm of the probabilities of its window's tokens.
    #[getter]
    fn avg_logprob(&self) -> f64 {
        self.0.log_probability
    }

    /// By how much zlib compresses its window's tokens.
    #[getter]
    fn compression_ratio(&self) -> f64 {
        self.0.compression
    }

    /// The probability that its window has no speech.
    #[getter]
    fn no_speech_prob(&self) -> f64 {
        self.0.no_speech
    }

    fn __repr__(&self) -> String {
        let Segment {
            start, end, text, ..
        } = &self.0;
        format!("<tercet.Segment {start:.2} to {end:.2} s: {text:?}>")
    }
}
