//! Audio decoding: WAV, FLAC and MP3 files with any sample rate and channel count are converted to
//! 16 kHz mono samples.
//!
//! Files are decoded packet by packet; only the samples that the resampler still needs stay in
//! memory.

pub(crate) mod resample;

use std::fs::File;
use std::io::{ErrorKind, Read, Seek};
use std::path::Path;

use symphonia::core::audio::{AudioBufferRef, SampleBuffer, SignalSpec};
use symphonia::core::codecs::{CODEC_TYPE_NULL, Decoder, DecoderOptions};
use symphonia::core::errors::Error as Failure;
use symphonia::core::formats::{FormatOptions, FormatReader};
use symphonia::core::io::{MediaSource, MediaSourceStream, MediaSourceStreamOptions};
use symphonia::core::meta::MetadataOptions;
use symphonia::core::probe::Hint;

use resample::Resampler;
use tercet_networks::config::speech::RATE;

pub use crate::error::AudioError;
use crate::error::audio::RATES;
use tercet_files::contained;

/// Properties of a decoded file.
///
/// ```no_run
/// use tercet_models::speech::audio::{self, AudioInfo};
/// let mut samples = Vec::new();
/// let info: AudioInfo = audio::read("speech.wav", &mut |new| {
///     samples.extend_from_slice(new);
///     Ok(())
/// })?;
/// assert!(info.rate > 0 && !samples.is_empty());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AudioInfo {
    /// Sample rate in Hz.
    pub rate: u32,
    /// Channels of the first packet.
    pub channels: usize,
    /// Samples per channel.
    pub samples: u64,
    /// Number of damaged packets that were skipped.
    pub damaged: usize,
}

/// Decodes a file and passes the samples to `take` in chunks, at 16 kHz with all channels averaged.
///
/// # Errors
/// [`AudioError`], and errors of `take`.
pub fn read(
    path: impl AsRef<Path>,
    take: &mut dyn FnMut(&[f32]) -> Result<(), crate::Error>,
) -> Result<AudioInfo, crate::Error> {
    let path = path.as_ref();
    let opened = readable(path, || open(path))??;
    decoded(path, opened, take)
}

/// As [`read`], for a file in memory. `name` is used in error messages; its extension is a hint for
/// the format.
///
/// # Errors
/// Same errors as [`read`].
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
    check_rate(path, bytes.as_ref())?;
    let opened = readable(path, || probed(path, Box::new(std::io::Cursor::new(bytes))))??;
    decoded(path, opened, take)
}

/// Decodes all packets of an opened file.
fn decoded(
    path: &Path,
    (mut reader, mut decoder, track): OpenedAudio,
    take: &mut dyn FnMut(&[f32]) -> Result<(), crate::Error>,
) -> Result<AudioInfo, crate::Error> {
    let mut resampled: Option<(Resampler, AudioInfo)> = None;
    let (mut mono, mut out, mut damaged) = (Vec::new(), Vec::new(), 0);
    let broken = |reason: String| AudioError::Format {
        path: path.to_path_buf(),
        reason,
    };
    loop {
        let packet = match readable(path, || reader.next_packet())? {
            Ok(packet) => packet,
            Err(Failure::IoError(e)) if e.kind() == ErrorKind::UnexpectedEof => break,
            Err(e) => return Err(broken(e.to_string()).into()),
        };
        if packet.track_id() != track {
            continue;
        }
        let decoded = match readable(path, || decoder.decode(&packet))? {
            Ok(decoded) => decoded,
            // A damaged packet is skipped; decoding continues with the next one.
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

type OpenedAudio = (Box<dyn FormatReader>, Box<dyn Decoder>, u32);

/// Opens a file, see [`probed`].
fn open(path: &Path) -> Result<OpenedAudio, AudioError> {
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
    // Pipes cannot be rewound.
    if kind.is_file() {
        let mut head = Vec::new();
        let first = (&file).take(HEAD_BYTES).read_to_end(&mut head);
        first.and_then(|_| (&file).rewind()).map_err(io)?;
        check_rate(path, &head)?;
    }
    probed(path, Box::new(file))
}

/// Maximum bytes in which the format of a WAV file is looked for.
const HEAD_BYTES: u64 = 4096;

/// Rejects a WAV file with a sample rate of 0, on which the decoding library panics.
fn check_rate(path: &Path, head: &[u8]) -> Result<(), AudioError> {
    let word = |at: usize| {
        let bytes = head.get(at..)?.first_chunk::<4>()?;
        Some(u32::from_le_bytes(*bytes))
    };
    if !head.starts_with(b"RIFF") || head.get(8..12) != Some(b"WAVE") {
        return Ok(());
    }
    let mut at = 12;
    while let (Some(name), Some(len)) = (head.get(at..at + 4), word(at + 4)) {
        if name == b"fmt " {
            return match word(at + 12) {
                Some(rate @ 0) => Err(AudioError::Rate {
                    path: path.to_path_buf(),
                    rate,
                }),
                Some(_) | None => Ok(()),
            };
        }
        // Chunks are padded to an even length.
        at = at
            .saturating_add(8)
            .saturating_add(len as usize)
            .saturating_add(len as usize % 2);
        if at > head.len() {
            break;
        }
    }
    Ok(())
}

/// Runs the decoding library, which panics on some damaged files.
fn readable<T>(path: &Path, read: impl FnOnce() -> T) -> Result<T, AudioError> {
    contained(read).map_err(|reason| AudioError::Format {
        path: path.to_path_buf(),
        reason,
    })
}

/// Detects the format and returns the reader, the decoder of the first audio track, and the track.
fn probed(path: &Path, source: Box<dyn MediaSource>) -> Result<OpenedAudio, AudioError> {
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
    let track = track.ok_or_else(|| refused("has no audio track".to_string()))?;
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

/// Averages all channels of a decoded packet.
fn averaged(decoded: AudioBufferRef<'_>, spec: SignalSpec, mono: &mut Vec<f32>) {
    let mut all = SampleBuffer::<f32>::new(decoded.capacity() as u64, spec);
    all.copy_interleaved_ref(decoded);
    let channels = spec.channels.count().max(1);
    mono.clear();
    let frames = all.samples().chunks_exact(channels);
    // Float formats may contain NaN or infinities; these become silence.
    let finite = |x: f32| if x.is_finite() { x } else { 0.0 };
    mono.extend(
        frames.map(|frame| frame.iter().map(|x| finite(*x)).sum::<f32>() / channels as f32),
    );
}
