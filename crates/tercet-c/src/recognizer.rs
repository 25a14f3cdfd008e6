//! Speech recognition: transcripts of samples and audio files.

use std::ffi::{c_char, c_void};

use tercet_models::ModelFamily;
use tercet_models::speech::{
    Recognizer, SpeechOptions, SpeechTask, Transcript, TranscriptSegment, audio,
};

use crate::boundary::{CallbackLock, Caller, OptionsStruct, OwnedViews, terminated};
use crate::device::{TercetDevice, device_of};
use crate::error::{CallError, TercetError, TercetStatus};
use crate::handles::{self, HandleObject};
use crate::model::files_of;

/// A compiled speech recognition model.
pub struct TercetRecognizer {
    _opaque: (),
}

/// A transcript with its segments.
pub struct TercetTranscript {
    _opaque: (),
}

/// Options of a transcription. All zeros, except `struct_size`, are the defaults.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct TercetTranscribeOptions {
    /// `sizeof(TercetTranscribeOptions)`.
    pub struct_size: usize,
    /// Language code such as "en"; NULL detects the language.
    pub language: *const c_char,
    /// If not 0, the text is translated to English.
    pub translate: i32,
    /// If not 0, segments have times from the model.
    pub timestamps: i32,
    /// If not 0, each window is prompted with the text before it.
    pub condition_on_previous: i32,
    /// If not 0, windows are decoded greedily once; otherwise poor ones again at higher temperatures.
    pub without_fallback: i32,
    /// Seed of the higher temperatures.
    pub seed: u64,
}

// SAFETY: all fields are integers and raw pointers.
unsafe impl OptionsStruct for TercetTranscribeOptions {}

/// A segment of a transcript.
#[repr(C)]
pub struct TercetSegment {
    /// Start in seconds.
    pub start: f64,
    /// End in seconds.
    pub end: f64,
    /// Text, UTF-8 with a zero byte at the end.
    pub text: *const c_char,
}

/// Progress of a transcription. The pointers are valid during the callback.
#[repr(C)]
pub struct TercetTranscribeEvent {
    /// Seconds of audio that are done.
    pub done: f64,
    /// Total seconds of audio.
    pub seconds: f64,
    /// Segments that are new since the last call.
    pub segments: *const TercetSegment,
    /// Number of new segments.
    pub segment_count: usize,
}

/// Called on the thread of the call, after each window of audio. The transcription stops if it returns false, and the
/// transcript has the segments so far. It must not throw or jump out of the call, or call functions of the same handle.
pub type TercetTranscribeCallback =
    Option<unsafe extern "C" fn(event: *const TercetTranscribeEvent, user: *mut c_void) -> bool>;

/// The contents of a transcript. The pointers are valid until the transcript is freed.
#[repr(C)]
pub struct TercetTranscriptView {
    /// The whole text, UTF-8 with a zero byte at the end.
    pub text: *const c_char,
    /// Language code; NULL for models of one language.
    pub language: *const c_char,
    /// Length of the audio in seconds.
    pub seconds: f64,
    /// Segments in order.
    pub segments: *const TercetSegment,
    /// Number of segments.
    pub segment_count: usize,
}

/// The object of a `TercetRecognizer`.
struct RecognizerObject {
    recognizer: CallbackLock<Recognizer>,
}

/// The object of a `TercetTranscript`.
struct TranscriptObject {
    text: Vec<u8>,
    language: Option<Vec<u8>>,
    seconds: f64,
    segments: SegmentViews,
}

impl HandleObject for RecognizerObject {
    const TYPE: &'static str = "TercetRecognizer";
    type Opaque = TercetRecognizer;
}

impl HandleObject for TranscriptObject {
    const TYPE: &'static str = "TercetTranscript";
    type Opaque = TercetTranscript;
}

/// Segments in their C form, with the texts that they point to.
struct SegmentViews {
    views: OwnedViews<TercetSegment>,
    _texts: Vec<Vec<u8>>,
}

impl SegmentViews {
    fn new(segments: &[TranscriptSegment]) -> SegmentViews {
        let texts: Vec<Vec<u8>> = segments.iter().map(|s| terminated(&s.text)).collect();
        let views = segments
            .iter()
            .zip(&texts)
            .map(|(segment, text)| TercetSegment {
                start: segment.start,
                end: segment.end,
                text: text.as_ptr().cast(),
            });
        SegmentViews {
            views: OwnedViews(views.collect()),
            _texts: texts,
        }
    }
}

/// Audio of a call.
enum AudioSource<'a> {
    Samples(&'a [f32]),
    File(&'a str),
}

impl RecognizerObject {
    fn transcribe(
        &self,
        audio: &AudioSource<'_>,
        options: &SpeechOptions,
        (callback, user): (TercetTranscribeCallback, *mut c_void),
    ) -> Result<Transcript, CallError> {
        let mut guard = self.recognizer.lock("recognizer")?;
        let recognizer = &mut *guard.value;
        // A failed call may have left audio.
        recognizer.discard();
        match audio {
            AudioSource::Samples(samples) => recognizer.push(samples)?,
            AudioSource::File(path) => {
                audio::read(path, &mut |samples| recognizer.push(samples))?;
            }
        }
        let transcript = recognizer.finish(options, &mut |progress| {
            let Some(function) = callback else {
                return true;
            };
            let segments = SegmentViews::new(progress.segments);
            let event = TercetTranscribeEvent {
                done: progress.done,
                seconds: progress.seconds,
                segments: segments.views.0.as_ptr(),
                segment_count: segments.views.0.len(),
            };
            // SAFETY: the caller passed the function for this argument; the event is valid during the call.
            unsafe { function(&raw const event, user) }
        });
        Ok(transcript?)
    }
}

fn options_of(
    caller: &Caller,
    options: *const TercetTranscribeOptions,
    default_task: Option<SpeechTask>,
) -> Result<SpeechOptions, CallError> {
    let options = caller.options(options, "options")?;
    let language = caller.optional_text(options.language, "options->language")?;
    let base = match options.without_fallback {
        0 => SpeechOptions::with_fallback(),
        _ => SpeechOptions::default(),
    };
    Ok(SpeechOptions {
        language: language.map(str::to_string),
        task: match options.translate {
            0 => default_task,
            _ => Some(SpeechTask::Translate),
        },
        timestamps: options.timestamps != 0,
        condition_on_previous: options.condition_on_previous != 0,
        seed: options.seed,
        ..base
    })
}

/// Opens a speech recognition model: a Hugging Face folder, or the name of a model in a local cache.
///
/// Errors: those of `tercet_generator_open`.
///
/// Threads: calls of one recognizer wait for each other. Free it with `tercet_free`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tercet_recognizer_open(
    device: *const TercetDevice,
    path: *const c_char,
    recognizer: *mut *mut TercetRecognizer,
    error: *mut *mut TercetError,
) -> TercetStatus {
    // SAFETY: the caller keeps the rules of the header.
    let caller = unsafe { Caller::new(error) };
    caller.guard(|caller| {
        let place = caller.out_handle(recognizer, "recognizer")?;
        let device = device_of(device)?;
        let path = caller.text(path, "path")?;
        let files = files_of(path, &[ModelFamily::Speech], "transcribe audio")?;
        place.create(RecognizerObject {
            recognizer: CallbackLock::new(files.recognizer(&device)?),
        })
    })
}

/// Transcribes mono samples at 16,000 Hz, nominally in [-1, 1]. `options`, `callback` and `user` may be NULL. Free the
/// transcript with `tercet_free`.
///
/// Errors: TERCET_STATUS_MODEL for samples that are not finite, no audio, or options that the model does not support,
/// TERCET_STATUS_BUSY in a callback of the same recognizer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tercet_transcribe(
    recognizer: *const TercetRecognizer,
    samples: *const f32,
    sample_count: usize,
    options: *const TercetTranscribeOptions,
    callback: TercetTranscribeCallback,
    user: *mut c_void,
    transcript: *mut *mut TercetTranscript,
    error: *mut *mut TercetError,
) -> TercetStatus {
    // SAFETY: the caller keeps the rules of the header.
    let caller = unsafe { Caller::new(error) };
    caller.guard(|caller| {
        let samples = caller.elements(samples, sample_count, "samples")?;
        let audio = AudioSource::Samples(samples);
        transcribe(
            caller,
            recognizer,
            &audio,
            options,
            (callback, user),
            transcript,
        )
    })
}

/// Transcribes a WAV, FLAC or MP3 file. All else is as for `tercet_transcribe`.
///
/// Errors: those of `tercet_transcribe`; TERCET_STATUS_NOT_FOUND, TERCET_STATUS_MODEL for an invalid file.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tercet_transcribe_file(
    recognizer: *const TercetRecognizer,
    path: *const c_char,
    options: *const TercetTranscribeOptions,
    callback: TercetTranscribeCallback,
    user: *mut c_void,
    transcript: *mut *mut TercetTranscript,
    error: *mut *mut TercetError,
) -> TercetStatus {
    // SAFETY: the caller keeps the rules of the header.
    let caller = unsafe { Caller::new(error) };
    caller.guard(|caller| {
        let path = caller.text(path, "path")?;
        let audio = AudioSource::File(path);
        if !std::path::Path::new(path).exists() {
            let reason = format!("{path}: the file does not exist");
            return Err(CallError::new(TercetStatus::NotFound, reason));
        }
        transcribe(
            caller,
            recognizer,
            &audio,
            options,
            (callback, user),
            transcript,
        )
    })
}

fn transcribe(
    caller: &Caller,
    recognizer: *const TercetRecognizer,
    audio: &AudioSource<'_>,
    options: *const TercetTranscribeOptions,
    callback: (TercetTranscribeCallback, *mut c_void),
    transcript: *mut *mut TercetTranscript,
) -> Result<(), CallError> {
    let place = caller.out_handle(transcript, "transcript")?;
    let object = handles::get::<RecognizerObject>(recognizer, "recognizer")?;
    let task = object.recognizer.lock("recognizer")?.value.default_task();
    let options = options_of(caller, options, task)?;
    let transcript = object.transcribe(audio, &options, callback)?;
    place.create(TranscriptObject {
        text: terminated(&transcript.text()),
        language: transcript.language.as_deref().map(terminated),
        seconds: transcript.seconds,
        segments: SegmentViews::new(&transcript.segments),
    })
}

/// Reads a transcript.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tercet_transcript_read(
    transcript: *const TercetTranscript,
    view: *mut TercetTranscriptView,
    error: *mut *mut TercetError,
) -> TercetStatus {
    // SAFETY: the caller keeps the rules of the header.
    let caller = unsafe { Caller::new(error) };
    caller.guard(|caller| {
        let empty = TercetTranscriptView {
            text: std::ptr::null(),
            language: std::ptr::null(),
            seconds: 0.0,
            segments: std::ptr::null(),
            segment_count: 0,
        };
        let view = caller.out(view, empty, "view")?;
        // The table keeps the transcript alive until it is freed.
        let object = handles::get::<TranscriptObject>(transcript, "transcript")?;
        let language = object.language.as_ref();
        view.set(TercetTranscriptView {
            text: object.text.as_ptr().cast(),
            language: language.map_or(std::ptr::null(), |text| text.as_ptr().cast()),
            seconds: object.seconds,
            segments: object.segments.views.0.as_ptr(),
            segment_count: object.segments.views.0.len(),
        });
        Ok(())
    })
}
