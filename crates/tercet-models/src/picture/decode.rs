//! PNG and JPEG files as pixels.

use std::io::Cursor;
use std::path::Path;

use image::{DynamicImage, ImageDecoder, ImageReader, Limits};

use super::{MOST_SIDE, Picture, PictureError, check_size};
use crate::mmap::read_small;

/// Larger files are refused.
const MOST_BYTES: u64 = 1 << 28;
/// What a decoder may allocate: 8 bytes a pixel of the largest picture.
const MOST_MEMORY: u64 = 1 << 30;

impl Picture {
    /// Reads a PNG or JPEG file, by its content, turned as its orientation says. Transparency is left out, grey repeated.
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
        let bad = |reason: String| PictureError::Undecodable {
            path: path.to_path_buf(),
            reason,
        };
        let refused = |e: image::ImageError| bad(e.to_string());
        let reader = ImageReader::new(Cursor::new(bytes)).with_guessed_format();
        let mut reader = reader.map_err(|e| bad(e.to_string()))?;
        let mut limits = Limits::default();
        limits.max_image_width = Some(MOST_SIDE as u32);
        limits.max_image_height = Some(MOST_SIDE as u32);
        limits.max_alloc = Some(MOST_MEMORY);
        reader.limits(limits);
        let mut decoder = reader.into_decoder().map_err(refused)?;
        let (width, height) = decoder.dimensions();
        check_size(width as usize, height as usize)?;
        let orientation = decoder.orientation().map_err(refused)?;
        let mut pixels = DynamicImage::from_decoder(decoder).map_err(refused)?;
        pixels.apply_orientation(orientation);
        let (width, height) = (pixels.width() as usize, pixels.height() as usize);
        // The high byte of each channel, as the reference has it.
        let high = |all: Vec<u16>| all.into_iter().map(|x| (x >> 8) as u8).collect();
        let rgb = match pixels {
            DynamicImage::ImageRgb16(_) | DynamicImage::ImageRgba16(_) => {
                high(pixels.into_rgb16().into_raw())
            }
            DynamicImage::ImageLuma16(_) | DynamicImage::ImageLumaA16(_) => {
                return Err(bad("grey of 16 bits; save it with 8".to_string()));
            }
            pixels => pixels.into_rgb8().into_raw(),
        };
        Picture::from_rgb(width, height, rgb)
    }
}
