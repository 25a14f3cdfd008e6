//! Speech to text with Whisper and Moonshine: from samples to segments of text with times.
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
//! What is written is what `generate` of transformers writes with the same options. A recording that is not longer than a window
//! is padded with silence; a longer one goes through windows, each from where the timestamps of the one before end
//! (`whisper`). Which tokens may be written next is in `rules`, a window and its temperatures in `window`, what tokens and
//! timestamps mean in `segments`. Moonshine reads samples, in pieces that end where it is quiet (`raw`). Files become samples in `audio` (feature `audio`).

#[cfg(feature = "audio")]
pub mod audio;
mod engine;
mod error;
mod features;
mod options;
mod raw;
mod recognizer;
mod rules;
mod segments;
mod subtitles;
mod timing;
mod whisper;
mod window;

pub use error::SpeechError;
pub use options::{SpeechOptions, Task};
pub use recognizer::{Progress, Recognizer, SAMPLE_RATE};
pub use segments::{Segment, Transcript};
pub use timing::WindowTime;
