//! Speech to text, as a stream of segments.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use pyo3::exceptions::{PyStopAsyncIteration, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyTuple};
use tercet::{DType, Device};
use tercet_models::speech::{
    Recognizer, SpeechOptions, SpeechTask, Transcript, TranscriptSegment, audio,
};
use tercet_models::{Error, ModelFiles};

use crate::errors::{self, TensorError};
use crate::sampling::drawn_seed;
use crate::stream::{ResultStream, in_background};
use crate::{array, html};

/// A speech recognition model.
#[pyclass(name = "Recognizer", module = "tercet", frozen)]
pub(crate) struct PyRecognizer {
    recognizer: Arc<Mutex<Recognizer>>,
    languages: Vec<String>,
    task: Option<SpeechTask>,
}

/// Audio input.
enum AudioInput {
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
            task: recognizer.default_task(),
            recognizer: Arc::new(Mutex::new(recognizer)),
        })
    }
}

fn recording(value: &Bound<'_, PyAny>) -> PyResult<AudioInput> {
    if let Ok(bytes) = value.cast::<PyBytes>() {
        return Ok(AudioInput::Bytes(bytes.as_bytes().to_vec()));
    }
    if let Ok(path) = value.extract::<PathBuf>() {
        return Ok(AudioInput::File(path));
    }
    let samples = array::to_tensor("audio", value, DType::F32)?;
    if samples.shape().len() != 1 {
        return Err(TensorError::new_err(format!(
            "`audio` has the shape {:?}; expected one axis: mono samples at 16000 Hz",
            samples.shape()
        )));
    }
    let samples = samples.as_slice::<f32>().map_err(errors::tensor)?;
    Ok(AudioInput::Samples(samples.to_vec()))
}

#[pymethods]
impl PyRecognizer {
    /// Transcribes audio. Returns an iterator of segments, which come in windows of 30 seconds.
    ///
    /// `audio` is a file (WAV, FLAC, MP3), its bytes, or float32 mono samples at 16,000 Hz.
    /// `language` is a code such as `en`; by default it is detected. `task` is `transcribe` or
    /// `translate` (to English). By default, low-quality windows are decoded again at higher
    /// temperatures; `fallback=False` decodes greedily once. With `seed=None` a seed is drawn.
    #[pyo3(signature = (audio, *, language=None, task=None, timestamps=false, condition_on_previous=false,
        fallback=true, seed=Some(0)))]
    #[expect(clippy::too_many_arguments, reason = "Python keyword arguments")]
    fn transcribe(
        &self,
        audio: &Bound<'_, PyAny>,
        language: Option<String>,
        task: Option<&str>,
        timestamps: bool,
        condition_on_previous: bool,
        fallback: bool,
        seed: Option<i128>,
    ) -> PyResult<PyTranscription> {
        let task = match task {
            None => self.task,
            Some("transcribe") => Some(SpeechTask::Transcribe),
            Some("translate") => Some(SpeechTask::Translate),
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
            seed: drawn_seed(seed)?,
            ..base
        };
        let audio = recording(audio)?;
        let recognizer = Arc::clone(&self.recognizer);
        let work = move |send: &mut dyn FnMut(Option<TranscriptSegment>) -> bool| {
            let own = recognizer.lock();
            let mut recognizer = own.unwrap_or_else(PoisonError::into_inner);
            // Remove the state of a transcription that was closed midway.
            recognizer.discard();
            heard(&mut recognizer, audio, &options, send)
        };
        Ok(PyTranscription(ResultStream::start(
            "tercet-transcribe",
            work,
        )?))
    }

    /// Language codes that the model supports.
    #[getter]
    fn languages(&self) -> Vec<String> {
        self.languages.clone()
    }

    fn _repr_html_(&self) -> String {
        let languages = self.languages.join(", ");
        html::record("tercet.Recognizer", &[("languages", languages)])
    }

    fn __repr__(&self) -> String {
        let languages = self.languages.len();
        format!("<tercet.Recognizer: {languages} languages>")
    }
}

fn heard(
    recognizer: &mut Recognizer,
    audio: AudioInput,
    options: &SpeechOptions,
    send: &mut dyn FnMut(Option<TranscriptSegment>) -> bool,
) -> Result<Transcript, Error> {
    let mut wanted = true;
    let mut push = |samples: &[f32]| {
        wanted = wanted && send(None);
        // Samples are dropped once the iterator is closed.
        match wanted {
            true => recognizer.push(samples),
            false => Ok(()),
        }
    };
    match audio {
        AudioInput::File(path) => drop(audio::read(path, &mut push)?),
        AudioInput::Bytes(bytes) => drop(audio::read_bytes("audio", bytes, &mut push)?),
        AudioInput::Samples(samples) => push(&samples)?,
    }
    recognizer.finish(options, &mut |progress| {
        let mut segments = progress.segments.iter();
        send(None) && segments.all(|segment| send(Some(segment.clone())))
    })
}

/// A transcription in progress: an iterator of its segments.
#[pyclass(name = "Transcription", module = "tercet", frozen)]
pub(crate) struct PyTranscription(ResultStream<TranscriptSegment, Transcript>);

#[pymethods]
impl PyTranscription {
    fn __iter__(slf: PyRef<'_, Self>) -> PyRef<'_, Self> {
        slf
    }

    fn __next__(&self, py: Python<'_>) -> PyResult<Option<PySegment>> {
        Ok(self.0.next(py)?.map(PySegment))
    }

    /// Returns the text of the remaining segments as one string.
    fn text(&self, py: Python<'_>) -> PyResult<String> {
        let mut text = String::new();
        while let Some(segment) = self.0.next(py)? {
            text += &segment.text;
        }
        Ok(text)
    }

    fn __aiter__(slf: PyRef<'_, Self>) -> PyRef<'_, Self> {
        slf
    }

    fn __anext__<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        in_background(slf.as_any(), "_next_segment")
    }

    /// Returns the next segment in a thread of the event loop.
    fn _next_segment(&self, py: Python<'_>) -> PyResult<PySegment> {
        let segment = self.0.next(py)?;
        segment
            .map(PySegment)
            .ok_or_else(|| PyStopAsyncIteration::new_err(()))
    }

    /// Like `text`, for `await`.
    fn atext<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        in_background(slf.as_any(), "text")
    }

    /// Like `close`, for `await`.
    fn aclose<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        in_background(slf.as_any(), "close")
    }

    fn __enter__(slf: PyRef<'_, Self>) -> PyRef<'_, Self> {
        slf
    }

    #[pyo3(signature = (*_exception))]
    fn __exit__(&self, py: Python<'_>, _exception: &Bound<'_, PyTuple>) {
        self.0.close(py);
    }

    fn _repr_html_(&self, py: Python<'_>) -> String {
        let segments = self.0.at_end(py, |all| all.segments.clone());
        let rows = segments.unwrap_or_default();
        let rows = rows.iter().map(|segment| {
            let TranscriptSegment {
                start, end, text, ..
            } = segment;
            vec![format!("{start:.2}"), format!("{end:.2}"), text.clone()]
        });
        html::rows("tercet.Transcription", &["start", "end", "text"], rows)
    }

    fn __repr__(&self, py: Python<'_>) -> String {
        match self.0.at_end(py, |all| (all.segments.len(), all.seconds)) {
            Some((count, seconds)) => format!(
                "<tercet.Transcription: {} of {seconds:.1} s>",
                tercet::counted(count, "segment", "segments")
            ),
            None => "<tercet.Transcription: unfinished>".to_string(),
        }
    }

    /// Stops the transcription.
    fn close(&self, py: Python<'_>) {
        self.0.close(py);
    }

    /// Language code, after the transcription has finished; `None` for models with a single
    /// language.
    #[getter]
    fn language(&self, py: Python<'_>) -> Option<String> {
        self.0.at_end(py, |all| all.language.clone()).flatten()
    }

    /// Length of the audio in seconds, after the transcription has finished.
    #[getter]
    fn duration(&self, py: Python<'_>) -> Option<f64> {
        self.0.at_end(py, |all| all.seconds)
    }

    /// All segments as SubRip subtitles, after the transcription has finished.
    #[getter]
    fn srt(&self, py: Python<'_>) -> Option<String> {
        self.0.at_end(py, Transcript::srt)
    }

    /// All segments as WebVTT subtitles, after the transcription has finished.
    #[getter]
    fn vtt(&self, py: Python<'_>) -> Option<String> {
        self.0.at_end(py, Transcript::vtt)
    }
}

/// A segment of a transcript, with its times.
#[pyclass(name = "Segment", module = "tercet", frozen)]
pub(crate) struct PySegment(TranscriptSegment);

#[pymethods]
impl PySegment {
    /// Start in seconds.
    #[getter]
    fn start(&self) -> f64 {
        self.0.start
    }

    /// End in seconds.
    #[getter]
    fn end(&self) -> f64 {
        self.0.end
    }

    /// Text of the segment.
    #[getter]
    fn text(&self) -> &str {
        &self.0.text
    }

    /// Tokens of the segment, timestamps included.
    #[getter]
    fn tokens(&self) -> Vec<u32> {
        self.0.tokens.clone()
    }

    /// Sampling temperature of the segment.
    #[getter]
    fn temperature(&self) -> f64 {
        self.0.temperature
    }

    /// Mean logprob of the tokens in the segment's window.
    #[getter]
    fn avg_logprob(&self) -> f64 {
        self.0.log_probability
    }

    /// Compression ratio (zlib) of the tokens in the segment's window.
    #[getter]
    fn compression_ratio(&self) -> f64 {
        self.0.compression
    }

    /// Probability that the segment's window contains no speech.
    #[getter]
    fn no_speech_prob(&self) -> f64 {
        self.0.no_speech
    }

    fn _repr_html_(&self) -> String {
        let rows = [
            ("start", format!("{:.2}", self.0.start)),
            ("end", format!("{:.2}", self.0.end)),
            ("text", self.0.text.clone()),
        ];
        html::record("tercet.Segment", &rows)
    }

    fn __repr__(&self) -> String {
        let TranscriptSegment {
            start, end, text, ..
        } = &self.0;
        format!("<tercet.Segment {start:.2} to {end:.2} s: {text:?}>")
    }
}
