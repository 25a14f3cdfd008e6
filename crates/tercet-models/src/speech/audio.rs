//! Audio files as samples: WAV, FLAC and MP3 of any rate and number of channels, 16 kHz and one channel out of it.
//!
//! Files are read packet by packet; nothing of a file is kept but what the resampler needs of it.

mod resample;

use std::fs::File;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use symphonia::core::audio::{AudioBufferRef, SampleBuffer, SignalSpec};
use symphonia::core::codecs::{CODEC_TYPE_NULL, Decoder, DecoderOptions};
use symphonia::core::errors::Error as Failure;
use symphonia::core::formats::{FormatOptions, FormatReader};
use symphonia::core::io::{MediaSource, MediaSourceStream, MediaSourceStreamOptions};
use symphonia::core::meta::MetadataOptions;
use symphonia::core::probe::Hint;

use crate::config::speech::RATE;
use resample::Resampler;

/// Rates that are read, in samples a second.
const RATES: std::ops::RangeInclusive<u32> = 1_000..=192_000;

/// Why an audio file was refused.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AudioError {
    /// The file cannot be read.
    #[error("cannot read {path}", path = path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// The file is none of the kinds that are read, or is damaged.
    #[error("{path}: {reason}; WAV, FLAC and MP3 are read", path = path.display())]
    Format {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        reason: String,
    },
    /// The file has no samples.
    #[error("{path}: has no samples", path = path.display())]
    Empty {
        /// The file.
        path: PathBuf,
    },
    /// A rate that is not resampled.
    #[error(
        "{path}: a rate of {rate} Hz; from {} to {} Hz are read", RATES.start(), RATES.end(), path = path.display()
    )]
    Rate {
        /// The file.
        path: PathBuf,
        /// Samples a second.
        rate: u32,
    },
    /// Rate or channels change within the file.
    #[error("{path}: its rate changes from {from} to {to} Hz after {seconds:.1} s", path = path.display())]
    Changes {
        /// The file.
        path: PathBuf,
        /// Samples a second before.
        from: u32,
        /// And after.
        to: u32,
        /// When, in seconds.
        seconds: f64,
    },
}

/// What a file was.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AudioInfo {
    /// Samples a second, of each channel.
    pub rate: u32,
    /// Channels of the first packet.
    pub channels: usize,
    /// Samples of a channel.
    pub samples: u64,
    /// Packets that were damaged and left out.
    pub damaged: usize,
}

/// Reads a file and hands what it says to `take` in pieces: samples at 16 kHz, all channels averaged.
///
/// # Errors
/// [`AudioError`], and those of `take`.
pub fn read(
    path: impl AsRef<Path>,
    take: &mut dyn FnMut(&[f32]) -> Result<(), crate::Error>,
) -> Result<AudioInfo, crate::Error> {
    let path = path.as_ref();
    decoded(path, open(path)?, take)
}

/// As [`read`], a file that is in memory already. `name` is what errors call it; its ending is a hint at what it is.
///
/// # Errors
/// As [`read`].
pub fn read_bytes(
    name: &str,
    bytes: impl AsRef<[u8]> + Send + Sync + 'static,
    take: &mut dyn FnMut(&[f32]) -> Result<(), crate::Error>,
) -> Result<AudioInfo, crate::Error> {
    let path = Path::new(name);
    if bytes.as_ref().is_empty() {
        let path = path.to_path_buf();
        return Err(AudioError::Empty { path }.into());
    }
    let opened = probed(path, Box::new(std::io::Cursor::new(bytes)))?;
    decoded(path, opened, take)
}

/// Hands on what the packets of a file say.
fn decoded(
    path: &Path,
    (mut reader, mut decoder, track): Opened,
    take: &mut dyn FnMut(&[f32]) -> Result<(), crate::Error>,
) -> Result<AudioInfo, crate::Error> {
    let mut resampled: Option<(Resampler, AudioInfo)> = None;
    let (mut mono, mut out, mut damaged) = (Vec::new(), Vec::new(), 0);
    let broken = |reason: String| AudioError::Format {
        path: path.to_path_buf(),
        reason,
    };
    loop {
        let packet = match reader.next_packet() {
            Ok(packet) => packet,
            Err(Failure::IoError(e)) if e.kind() == ErrorKind::UnexpectedEof => break,
            Err(e) => return Err(broken(e.to_string()).into()),
        };
        if packet.track_id() != track {
            continue;
        }
        let decoded = match decoder.decode(&packet) {
            Ok(decoded) => decoded,
            // Damage of a packet ends with it.
            Err(Failure::DecodeError(_)) => {
                damaged += 1;
                continue;
            }
            Err(Failure::IoError(e)) if e.kind() == ErrorKind::UnexpectedEof => break,
            Err(e) => return Err(broken(e.to_string()).into()),
        };
        let spec = *decoded.spec();
        averaged(decoded, spec, &mut mono);
        let (resampler, info) = match &mut resampled {
            Some(own) => own,
            none => none.insert(begin(path, spec)?),
        };
        if info.rate != spec.rate {
            let (from, to) = (info.rate, spec.rate);
            let seconds = info.samples as f64 / f64::from(from);
            let path = path.to_path_buf();
            let changes = AudioError::Changes {
                path,
                from,
                to,
                seconds,
            };
            return Err(changes.into());
        }
        info.samples += mono.len() as u64;
        out.clear();
        resampler.push(&mono, &mut out);
        take(&out)?;
    }
    match resampled {
        Some((mut resampler, info)) if info.samples > 0 => {
            out.clear();
            resampler.finish(&mut out);
            take(&out)?;
            Ok(AudioInfo { damaged, ..info })
        }
        Some(_) | None if damaged > 0 => {
            Err(broken(format!("all of its {damaged} packets are damaged")).into())
        }
        Some(_) | None => {
            let path = path.to_path_buf();
            Err(AudioError::Empty { path }.into())
        }
    }
}

type Opened = (Box<dyn FormatReader>, Box<dyn Decoder>, u32);

/// An opened file, see [`probed`].
fn open(path: &Path) -> Result<Opened, AudioError> {
    let io = |source| AudioError::File {
        path: path.to_path_buf(),
        source,
    };
    let refused = |reason: String| AudioError::Format {
        path: path.to_path_buf(),
        reason,
    };
    let file = File::open(path).map_err(io)?;
    let kind = file.metadata().map_err(io)?;
    if kind.is_dir() {
        return Err(refused("is a folder".to_string()));
    }
    if kind.is_file() && kind.len() == 0 {
        return Err(AudioError::Empty {
            path: path.to_path_buf(),
        });
    }
    probed(path, Box::new(file))
}

/// The reader of a file, the decoder of its first track with audio, and the track.
fn probed(path: &Path, source: Box<dyn MediaSource>) -> Result<Opened, AudioError> {
    let refused = |reason: String| AudioError::Format {
        path: path.to_path_buf(),
        reason,
    };
    let mut hint = Hint::new();
    if let Some(extension) = path.extension().and_then(|e| e.to_str()) {
        hint.with_extension(extension);
    }
    let stream = MediaSourceStream::new(source, MediaSourceStreamOptions::default());
    let options = FormatOptions {
        enable_gapless: true,
        ..FormatOptions::default()
    };
    let probe = symphonia::default::get_probe();
    let probed = probe.format(&hint, stream, &options, &MetadataOptions::default());
    let reader = match probed {
        Ok(probed) => probed.format,
        Err(Failure::IoError(e)) if e.kind() == ErrorKind::UnexpectedEof => {
            return Err(refused("ends before its audio begins".to_string()));
        }
        Err(e) => return Err(refused(e.to_string())),
    };
    let mut tracks = reader.tracks().iter();
    let track = tracks.find(|t| t.codec_params.codec != CODEC_TYPE_NULL);
    let track = track.ok_or_else(|| refused("has no track with audio".to_string()))?;
    let codecs = symphonia::default::get_codecs();
    let decoder = codecs.make(&track.codec_params, &DecoderOptions::default());
    let decoder = decoder.map_err(|e| refused(e.to_string()))?;
    let id = track.id;
    Ok((reader, decoder, id))
}

fn begin(path: &Path, spec: SignalSpec) -> Result<(Resampler, AudioInfo), AudioError> {
    if !RATES.contains(&spec.rate) {
        return Err(AudioError::Rate {
            path: path.to_path_buf(),
            rate: spec.rate,
        });
    }
    let info = AudioInfo {
        rate: spec.rate,
        channels: spec.channels.count(),
        samples: 0,
        damaged: 0,
    };
    Ok((Resampler::new(spec.rate as usize, RATE), info))
}

/// The mean of all channels.
fn averaged(decoded: AudioBufferRef<'_>, spec: SignalSpec, mono: &mut Vec<f32>) {
    let mut all = SampleBuffer::<f32>::new(decoded.capacity() as u64, spec);
    all.copy_interleaved_ref(decoded);
    let channels = spec.channels.count().max(1);
    mono.clear();
    let frames = all.samples().chunks_exact(channels);
    // Formats of floats may hold what is no number; silence, then.
    let finite = |x: f32| if x.is_finite() { x } else { 0.0 };
    mono.extend(
        frames.map(|frame| frame.iter().map(|x| finite(*x)).sum::<f32>() / channels as f32),
    );
}
