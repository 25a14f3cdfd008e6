//! Errors of audio files.

use std::path::PathBuf;

/// Supported sample rates in Hz.
pub(crate) const RATES: std::ops::RangeInclusive<u32> = 1_000..=192_000;

/// Error of decoding an audio file.
///
/// ```
/// use tercet_models::Error;
/// use tercet_models::speech::audio::{self, AudioError};
/// let error = audio::read_bytes("empty.wav", Vec::<u8>::new(), &mut |_| Ok(())).unwrap_err();
/// assert!(matches!(error, Error::Audio(AudioError::Empty { .. })));
/// ```
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AudioError {
    /// The file cannot be read.
    #[error("cannot read {path}", path = path.display())]
    File {
        /// Path of the file.
        path: PathBuf,
        /// Cause reported by the operating system.
        source: std::io::Error,
    },
    /// The file format is not supported, or the file is damaged.
    #[error("{path}: {reason}; WAV, FLAC and MP3 are read", path = path.display())]
    Format {
        /// Path of the file.
        path: PathBuf,
        /// Cause reported by the decoder.
        reason: String,
    },
    /// The file has no samples.
    #[error("{path}: no samples", path = path.display())]
    Empty {
        /// Path of the file.
        path: PathBuf,
    },
    /// The sample rate is not supported.
    #[error(
        "{path}: sample rate {rate} Hz is out of range; expected {} to {} Hz", RATES.start(), RATES.end(), path = path.display()
    )]
    Rate {
        /// Path of the file.
        path: PathBuf,
        /// Sample rate in Hz.
        rate: u32,
    },
    /// The sample rate or channel count changes within the file.
    #[error("{path}: sample rate changes from {from} to {to} Hz after {seconds:.1} s", path = path.display())]
    Changes {
        /// Path of the file.
        path: PathBuf,
        /// Sample rate before the change, in Hz.
        from: u32,
        /// Sample rate after the change, in Hz.
        to: u32,
        /// Time of the change in seconds.
        seconds: f64,
    },
}
