//! Speech recognition with Whisper and Moonshine: from audio samples to text segments with
//! timestamps.
//!
//! ```no_run
//! use tercet::Device;
//! use tercet_models::ModelFiles;
//! use tercet_models::speech::SpeechOptions;
//!
//! # fn demo(samples: &[f32]) -> Result<(), tercet_models::Error> {
//! let mut recognizer = ModelFiles::open("whisper-tiny")?.recognizer(&Device::cpu())?;
//! recognizer.push(samples)?; // 16 kHz, one channel; any number of times
//! let transcript = recognizer.finish(&SpeechOptions::default(), &mut |_| true)?;
//! println!("{}", transcript.text());
//! # Ok(())
//! # }
//! ```
//!
//! The output equals that of `generate` in transformers with the same options. Audio shorter than a
//! window is padded with silence. Longer audio is processed in windows, and each window starts at
//! the last timestamp of the previous one (`whisper`).
//!
//! The module `rules` restricts the next token, `window` decodes a window with temperature
//! fallback, and `segments` converts tokens and timestamps to segments. Moonshine reads raw samples
//! in chunks that end at quiet positions (`raw`). The module `audio` decodes audio files (feature
//! `audio`).

#[cfg(feature = "audio")]
pub mod audio;
mod engine;
mod features;
pub(crate) mod moonshine;
mod options;
mod recognizer;
pub(crate) mod rules;
mod segments;
mod subtitles;
mod timing;
mod transcriber;
mod whisper;
pub(crate) mod window;

pub use crate::error::SpeechError;
pub use options::{SpeechOptions, SpeechTask};
pub use recognizer::{Recognizer, SAMPLE_RATE, TranscriptionProgress};
pub use segments::{Transcript, TranscriptSegment};
pub use timing::WindowTime;
pub use transcriber::Transcriber;
