//! Images: decoding of PNG, JPEG, WebP and GIF files, and preprocessing for vision models.
//!
//! [`Image`] decodes with limits on sizes and memory. [`ImageProcessor`] resizes, crops, scales and
//! normalizes as `preprocessor_config.json` specifies. The resulting 8-bit pixels equal those of
//! the reference's library (Pillow).

mod decode;
pub(crate) mod orientation;
mod processor;
mod resample;
mod tiles;

use std::path::PathBuf;

pub use processor::ImageProcessor;
pub(crate) use processor::{ProcessorKind, read as read_processor};
pub use resample::ResampleFilter;
pub(crate) use tiles::read as read_tiles;
pub use tiles::{ImageTileProcessor, ImageTiles, TiledImage};

use tercet_files::FileError;

/// Maximum number of pixels, 128 Mi, checked before memory is allocated.
pub const MAX_PIXELS: usize = 1 << 27;
/// Maximum side of an image, in pixels.
pub const MAX_SIDE: usize = 1 << 16;

/// The reason why an image is rejected.
///
/// ```
/// use tercet_networks::{Image, ImageError};
/// let error = Image::from_rgb(2, 2, vec![0; 3]).unwrap_err();
/// assert!(matches!(error, ImageError::Bytes { bytes: 3, width: 2, height: 2 }));
/// ```
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
#[allow(
    missing_docs,
    reason = "the fields are named by the messages above them"
)]
pub enum ImageError {
    /// The file cannot be read.
    #[error(transparent)]
    File(#[from] FileError),
    /// The file is no PNG, JPEG, WebP or GIF file, or it is damaged.
    #[error("{path}: cannot decode as PNG, JPEG, WebP or GIF: {reason}", path = path.display())]
    Undecodable { path: PathBuf, reason: String },
    /// The image size is not supported.
    #[error(
        "an image of {width} by {height} pixels is out of range; expected sides from 1 to 65536 \
         and at most 128 Mi pixels"
    )]
    Size { width: usize, height: usize },
    /// The number of bytes does not match the image size.
    #[error("{bytes} bytes do not match {width} by {height} pixels of 3 bytes")]
    Bytes {
        bytes: usize,
        width: usize,
        height: usize,
    },
    /// The image needs too many tiles.
    #[error(
        "an image of {width} by {height} pixels needs {tiles} tiles, above the limit of {most}; \
         resize it, or set `size` in preprocessor_config.json"
    )]
    Tiles {
        width: usize,
        height: usize,
        tiles: usize,
        most: usize,
    },
    /// The preprocessed image does not have the size that the model reads.
    #[error(
        "the preprocessed image is {found_height} pixels high and {found_width} wide, but the \
         model reads {height} by {width}; resize it, or set the size in preprocessor_config.json"
    )]
    Unfit {
        found_height: usize,
        found_width: usize,
        height: usize,
        width: usize,
    },
}

/// An image of 8-bit RGB pixels, in rows from top to bottom.
///
/// ```
/// use tercet_networks::Image;
/// let image = Image::from_rgb(1, 2, vec![255, 0, 0, 0, 0, 255])?;
/// assert_eq!((image.width(), image.height()), (1, 2));
/// assert_eq!(image.rgb()[..3], [255, 0, 0]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Image {
    width: usize,
    height: usize,
    rgb: Vec<u8>,
}

impl Image {
    /// Creates an image from RGB pixels, 3 bytes each.
    ///
    /// # Errors
    /// [`ImageError::Size`], [`ImageError::Bytes`].
    pub fn from_rgb(width: usize, height: usize, rgb: Vec<u8>) -> Result<Image, ImageError> {
        check_size(width, height)?;
        match rgb.len() == 3 * width * height {
            true => Ok(Image { width, height, rgb }),
            false => Err(ImageError::Bytes {
                bytes: rgb.len(),
                width,
                height,
            }),
        }
    }

    /// Width in pixels.
    pub fn width(&self) -> usize {
        self.width
    }

    /// Height in pixels.
    pub fn height(&self) -> usize {
        self.height
    }

    /// The RGB pixels, 3 bytes each.
    pub fn rgb(&self) -> &[u8] {
        &self.rgb
    }
}

fn check_size(width: usize, height: usize) -> Result<(), ImageError> {
    let sides = 1..=MAX_SIDE;
    let good = sides.contains(&width) && sides.contains(&height) && width * height <= MAX_PIXELS;
    match good {
        true => Ok(()),
        false => Err(ImageError::Size { width, height }),
    }
}
