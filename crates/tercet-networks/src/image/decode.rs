//! Decoder of PNG, JPEG, WebP and GIF files into upright pixels.

use std::io::Cursor;
use std::num::NonZeroU64;
use std::path::Path;

use image_webp::WebPDecoder;
use png::{BitDepth, Transformations};
use zune_jpeg::JpegDecoder;
use zune_jpeg::zune_core::bytestream::ZCursor;
use zune_jpeg::zune_core::colorspace::ColorSpace;
use zune_jpeg::zune_core::options::DecoderOptions;

use super::orientation::Orientation;
use super::{Image, ImageError, MAX_SIDE, check_size};
use tercet_files::contained;
use tercet_files::mmap::read_small;

/// Maximum file size, in bytes.
const MAX_BYTES: u64 = 1 << 28;
/// Maximum memory of a decoder in addition to the pixels, in bytes.
const MAX_MEMORY: usize = 1 << 28;

const PNG_SIGNATURE: &[u8] = b"\x89PNG\r\n\x1a\n";
/// The JPEG start-of-image marker and the first byte of the next marker.
const JPEG_SIGNATURE: &[u8] = b"\xff\xd8\xff";
const GIF_SIGNATURE: &[u8] = b"GIF8";

/// Whether a file begins as a WebP file: `RIFF`, its length, `WEBP`.
fn is_webp(bytes: &[u8]) -> bool {
    bytes.starts_with(b"RIFF") && bytes.get(8..12) == Some(b"WEBP")
}

/// The reason why a file cannot be decoded.
enum ImageRejection {
    Size(ImageError),
    Reason(String),
}

impl From<ImageError> for ImageRejection {
    fn from(e: ImageError) -> ImageRejection {
        ImageRejection::Size(e)
    }
}

impl From<png::DecodingError> for ImageRejection {
    fn from(e: png::DecodingError) -> ImageRejection {
        ImageRejection::Reason(e.to_string())
    }
}

impl From<zune_jpeg::errors::DecodeErrors> for ImageRejection {
    fn from(e: zune_jpeg::errors::DecodeErrors) -> ImageRejection {
        ImageRejection::Reason(e.to_string())
    }
}

impl From<image_webp::DecodingError> for ImageRejection {
    fn from(e: image_webp::DecodingError) -> ImageRejection {
        ImageRejection::Reason(e.to_string())
    }
}

impl From<gif::DecodingError> for ImageRejection {
    fn from(e: gif::DecodingError) -> ImageRejection {
        ImageRejection::Reason(e.to_string())
    }
}

/// Pixels in the channel layout of the file.
struct DecodedPixels {
    width: usize,
    height: usize,
    /// Number of 8-bit channels: 1 grey, 2 grey and alpha, 3 RGB, 4 RGB and alpha.
    channels: usize,
    bytes: Vec<u8>,
    orientation: Orientation,
}

impl Image {
    /// Reads a PNG, JPEG, WebP or GIF file, detected by content, and rotates it by its Exif
    /// orientation. Alpha is dropped, grey is replicated to RGB, and 16-bit channels are reduced to
    /// their upper 8 bits. Of an animation, it reads the first frame.
    ///
    /// # Errors
    /// [`ImageError`].
    pub fn open(path: impl AsRef<Path>) -> Result<Image, ImageError> {
        let path = path.as_ref();
        let bytes = read_small(path, MAX_BYTES)?;
        Image::decode(&bytes, path)
    }

    /// Decodes the bytes of a PNG, JPEG, WebP or GIF file as [`Self::open`] does; `path` is only for error
    /// messages.
    ///
    /// # Errors
    /// [`ImageError`].
    pub fn decode(bytes: &[u8], path: &Path) -> Result<Image, ImageError> {
        let pixels = contained(|| match bytes {
            _ if bytes.starts_with(PNG_SIGNATURE) => png(bytes),
            _ if bytes.starts_with(JPEG_SIGNATURE) => jpeg(bytes),
            _ if is_webp(bytes) => webp(bytes),
            _ if bytes.starts_with(GIF_SIGNATURE) => gif(bytes),
            _ => Err(ImageRejection::Reason(
                "its first bytes are those of another format".to_string(),
            )),
        });
        let pixels = pixels.unwrap_or_else(|reason| Err(ImageRejection::Reason(reason)));
        let pixels = pixels.map_err(|refused| match refused {
            ImageRejection::Size(e) => e,
            ImageRejection::Reason(reason) => ImageError::Undecodable {
                path: path.to_path_buf(),
                reason,
            },
        })?;
        let size = [pixels.width, pixels.height];
        let rgb = rgb(pixels.channels, pixels.bytes);
        let ([width, height], rgb) = pixels.orientation.upright(size, rgb);
        Image::from_rgb(width, height, rgb)
    }
}

fn png(bytes: &[u8]) -> Result<DecodedPixels, ImageRejection> {
    let limits = png::Limits { bytes: MAX_MEMORY };
    let mut decoder = png::Decoder::new_with_limits(Cursor::new(bytes), limits);
    // Expands palettes, transparent colours and channels below 8 bits to 8-bit channels.
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
        let reason = "16-bit grey is not supported; save it with 8 bits".to_string();
        return Err(ImageRejection::Reason(reason));
    }
    let size = reader.output_buffer_size();
    let mut pixels = vec![0; size.ok_or_else(too_large)?];
    reader.next_frame(&mut pixels)?;
    if depth == BitDepth::Sixteen {
        // Keeps the high byte of each channel, as the reference implementation does.
        pixels = pixels.chunks_exact(2).map(|x| x[0]).collect();
    }
    let exif = reader.info().exif_metadata.as_deref();
    Ok(DecodedPixels {
        width,
        height,
        channels,
        bytes: pixels,
        orientation: exif.map_or(Orientation::Upright, Orientation::from_exif),
    })
}

fn jpeg(bytes: &[u8]) -> Result<DecodedPixels, ImageRejection> {
    let options = DecoderOptions::default()
        .set_strict_mode(false)
        .set_max_width(MAX_SIDE)
        .set_max_height(MAX_SIDE);
    let mut decoder = JpegDecoder::new_with_options(ZCursor::new(bytes), options);
    decoder.decode_headers()?;
    let no_header = || ImageRejection::Reason("it has no header".to_string());
    let (width, height) = decoder.dimensions().ok_or_else(no_header)?;
    check_size(width, height)?;
    let (out, channels) = match decoder.input_colorspace().ok_or_else(no_header)? {
        ColorSpace::Luma => (ColorSpace::Luma, 1),
        _ => (ColorSpace::RGB, 3),
    };
    decoder.set_options(options.jpeg_set_out_colorspace(out));
    let pixels = decoder.decode()?;
    let exif = decoder.exif().map(Vec::as_slice);
    Ok(DecodedPixels {
        width,
        height,
        channels,
        bytes: pixels,
        orientation: exif.map_or(Orientation::Upright, Orientation::from_exif),
    })
}

fn too_large() -> ImageRejection {
    ImageRejection::Reason("its pixels do not fit into memory".to_string())
}

/// The image, or the first frame of an animation.
fn webp(bytes: &[u8]) -> Result<DecodedPixels, ImageRejection> {
    let mut decoder = WebPDecoder::new(Cursor::new(bytes))?;
    decoder.set_memory_limit(MAX_MEMORY);
    let (width, height) = decoder.dimensions();
    let (width, height) = (width as usize, height as usize);
    check_size(width, height)?;
    let mut pixels = vec![0; decoder.output_buffer_size().ok_or_else(too_large)?];
    decoder.read_image(&mut pixels)?;
    let exif = decoder.exif_metadata()?;
    Ok(DecodedPixels {
        width,
        height,
        channels: if decoder.has_alpha() { 4 } else { 3 },
        bytes: pixels,
        orientation: exif
            .as_deref()
            .map_or(Orientation::Upright, Orientation::from_exif),
    })
}

/// The first frame on its canvas.
fn gif(bytes: &[u8]) -> Result<DecodedPixels, ImageRejection> {
    let mut options = gif::DecodeOptions::new();
    let limit = NonZeroU64::new(MAX_MEMORY as u64);
    options.set_memory_limit(limit.map_or(gif::MemoryLimit::Unlimited, gif::MemoryLimit::Bytes));
    let mut decoder = options.read_info(Cursor::new(bytes))?;
    let [width, height] = [decoder.width(), decoder.height()].map(usize::from);
    check_size(width, height)?;
    let shared = decoder.global_palette().map(<[u8]>::to_vec);
    let Some(frame) = decoder.read_next_frame()? else {
        let reason = "it has no frame".to_string();
        return Err(ImageRejection::Reason(reason));
    };
    let palette = frame.palette.as_ref().or(shared.as_ref());
    let color = |index: u8| -> [u8; 3] {
        let at = 3 * usize::from(index);
        match palette {
            None => [index; 3],
            // Indices beyond the palette are black, as in Pillow.
            Some(palette) => std::array::from_fn(|i| palette.get(at + i).copied().unwrap_or(0)),
        }
    };
    let mut pixels = color(frame.transparent.unwrap_or(0)).repeat(width * height);
    let [left, top, across] = [frame.left, frame.top, frame.width].map(usize::from);
    let rows = frame.buffer.chunks_exact(across.max(1)).enumerate();
    for (y, row) in rows.take_while(|(y, _)| top + y < height) {
        for (x, index) in row.iter().enumerate().take(width.saturating_sub(left)) {
            let at = 3 * ((top + y) * width + left + x);
            pixels[at..at + 3].copy_from_slice(&color(*index));
        }
    }
    Ok(DecodedPixels {
        width,
        height,
        channels: 3,
        bytes: pixels,
        orientation: Orientation::Upright,
    })
}

/// Converts pixels to three bytes each.
fn rgb(channels: usize, bytes: Vec<u8>) -> Vec<u8> {
    let each = bytes.chunks_exact(channels);
    match channels {
        3 => bytes,
        1 | 2 => each.flat_map(|x| [x[0]; 3]).collect(),
        _ => each.flat_map(|x| [x[0], x[1], x[2]]).collect(),
    }
}
