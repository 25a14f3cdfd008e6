//! PNG and JPEG files as pixels, upright.

use std::io::Cursor;
use std::path::Path;

use png::{BitDepth, Transformations};
use zune_jpeg::JpegDecoder;
use zune_jpeg::zune_core::bytestream::ZCursor;
use zune_jpeg::zune_core::colorspace::ColorSpace;
use zune_jpeg::zune_core::options::DecoderOptions;

use super::orientation::Orientation;
use super::{MOST_SIDE, Picture, PictureError, check_size};
use crate::mmap::read_small;

/// Larger files are refused.
const MOST_BYTES: u64 = 1 << 28;
/// What a decoder may allocate besides the pixels.
const MOST_MEMORY: usize = 1 << 28;

const PNG_SIGNATURE: &[u8] = b"\x89PNG\r\n\x1a\n";
/// The start of an image, and of the marker after it.
const JPEG_SIGNATURE: &[u8] = b"\xff\xd8\xff";

/// Why a file gives no pixels.
enum Refused {
    Size(PictureError),
    Reason(String),
}

impl From<PictureError> for Refused {
    fn from(e: PictureError) -> Refused {
        Refused::Size(e)
    }
}

impl From<png::DecodingError> for Refused {
    fn from(e: png::DecodingError) -> Refused {
        Refused::Reason(e.to_string())
    }
}

impl From<zune_jpeg::errors::DecodeErrors> for Refused {
    fn from(e: zune_jpeg::errors::DecodeErrors) -> Refused {
        Refused::Reason(e.to_string())
    }
}

/// Pixels as a file has them.
struct Pixels {
    width: usize,
    height: usize,
    /// 1 grey, 2 grey and transparency, 3 colours, 4 colours and transparency; a byte each.
    channels: usize,
    bytes: Vec<u8>,
    orientation: Orientation,
}

impl Picture {
    /// Reads a PNG or JPEG file, by its content, turned as its orientation says. Transparency is left out, grey repeated, of 16 bits
    /// of a colour the upper 8 are taken.
    ///
    /// # Errors
    /// [`PictureError`].
    pub fn open(path: impl AsRef<Path>) -> Result<Picture, PictureError> {
        let path = path.as_ref();
        let bytes = read_small(path, MOST_BYTES)?;
        Picture::decode(&bytes, path)
    }

    /// The same of a file's bytes; `path` is what errors call it.
    ///
    /// # Errors
    /// [`PictureError`].
    pub fn decode(bytes: &[u8], path: &Path) -> Result<Picture, PictureError> {
        let pixels = match bytes {
            _ if bytes.starts_with(PNG_SIGNATURE) => png(bytes),
            _ if bytes.starts_with(JPEG_SIGNATURE) => jpeg(bytes),
            _ => Err(Refused::Reason("neither a PNG nor a JPEG file".to_string())),
        };
        let pixels = pixels.map_err(|refused| match refused {
            Refused::Size(e) => e,
            Refused::Reason(reason) => PictureError::Undecodable {
                path: path.to_path_buf(),
                reason,
            },
        })?;
        let size = [pixels.width, pixels.height];
        let rgb = rgb(pixels.channels, pixels.bytes);
        let ([width, height], rgb) = pixels.orientation.upright(size, rgb);
        Picture::from_rgb(width, height, rgb)
    }
}

fn png(bytes: &[u8]) -> Result<Pixels, Refused> {
    let limits = png::Limits { bytes: MOST_MEMORY };
    let mut decoder = png::Decoder::new_with_limits(Cursor::new(bytes), limits);
    // Palettes, transparent colours and fewer than 8 bits as channels of bytes.
    decoder.set_transformations(Transformations::EXPAND);
    decoder.set_ignore_text_chunk(true);
    decoder.set_ignore_iccp_chunk(true);
    let mut reader = decoder.read_info()?;
    let (width, height) = reader.info().size();
    let (width, height) = (width as usize, height as usize);
    check_size(width, height)?;
    let (color, depth) = reader.output_color_type();
    let channels = color.samples();
    if depth == BitDepth::Sixteen && channels < 3 {
        let reason = "grey of 16 bits; save it with 8".to_string();
        return Err(Refused::Reason(reason));
    }
    let size = reader.output_buffer_size();
    let size = size.ok_or_else(|| Refused::Reason("it does not fit memory".to_string()))?;
    let mut pixels = vec![0; size];
    reader.next_frame(&mut pixels)?;
    if depth == BitDepth::Sixteen {
        // The high byte of each channel, as the reference has it.
        pixels = pixels.chunks_exact(2).map(|x| x[0]).collect();
    }
    let exif = reader.info().exif_metadata.as_deref();
    Ok(Pixels {
        width,
        height,
        channels,
        bytes: pixels,
        orientation: exif.map_or(Orientation::Upright, Orientation::of_exif),
    })
}

fn jpeg(bytes: &[u8]) -> Result<Pixels, Refused> {
    let options = DecoderOptions::default()
        .set_strict_mode(false)
        .set_max_width(MOST_SIDE)
        .set_max_height(MOST_SIDE);
    let mut decoder = JpegDecoder::new_with_options(ZCursor::new(bytes), options);
    decoder.decode_headers()?;
    let no_header = || Refused::Reason("it has no header".to_string());
    let (width, height) = decoder.dimensions().ok_or_else(no_header)?;
    check_size(width, height)?;
    let (out, channels) = match decoder.input_colorspace().ok_or_else(no_header)? {
        ColorSpace::Luma => (ColorSpace::Luma, 1),
        _ => (ColorSpace::RGB, 3),
    };
    decoder.set_options(options.jpeg_set_out_colorspace(out));
    let pixels = decoder.decode()?;
    let exif = decoder.exif().map(Vec::as_slice);
    Ok(Pixels {
        width,
        height,
        channels,
        bytes: pixels,
        orientation: exif.map_or(Orientation::Upright, Orientation::of_exif),
    })
}

/// Three bytes of each pixel.
fn rgb(channels: usize, bytes: Vec<u8>) -> Vec<u8> {
    let each = bytes.chunks_exact(channels);
    match channels {
        3 => bytes,
        1 | 2 => each.flat_map(|x| [x[0]; 3]).collect(),
        _ => each.flat_map(|x| [x[0], x[1], x[2]]).collect(),
    }
}
