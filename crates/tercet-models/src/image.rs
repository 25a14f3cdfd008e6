//! Pictures: PNG and JPEG files as pixels, and pixels as models of pictures read them.
//!
//! [`Picture`] decodes with bounds on sizes and memory; [`PictureProcessor`] resizes, crops, scales and normalizes as
//! `preprocessor_config.json` says, to the same 8-bit pixels as the reference's own library gives.

mod decode;
mod orientation;
mod processor;
mod resample;
mod tiles;

use std::path::PathBuf;

pub use processor::PictureProcessor;
pub(crate) use processor::{ProcessorKind, read as read_processor};
pub use resample::Filter;
pub(crate) use tiles::read as read_tiles;
pub use tiles::{TileProcessor, TiledPicture, Tiles};

use crate::mmap::FileError;

/// More pixels than this are refused before there is memory for them: 128 Mi.
pub const MOST_PIXELS: usize = 1 << 27;
/// Longer sides than this are refused.
pub const MOST_SIDE: usize = 1 << 16;

/// Why a picture was refused.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
#[allow(
    missing_docs,
    reason = "the fields are named by the messages above them"
)]
pub enum PictureError {
    /// The file could not be read.
    #[error(transparent)]
    File(#[from] FileError),
    /// It is neither a PNG nor a JPEG file, or a damaged one.
    #[error("{path}: it is not a PNG or JPEG file that can be read: {reason}", path = path.display())]
    Undecodable { path: PathBuf, reason: String },
    /// A size that is not read.
    #[error(
        "a picture of {width} by {height} pixels; sides from 1 to 65536 are read, and 128 Mi pixels at most"
    )]
    Size { width: usize, height: usize },
    /// Not as many bytes as pixels need.
    #[error("{bytes} bytes for {width} by {height} pixels, which are 3 bytes each")]
    Bytes {
        bytes: usize,
        width: usize,
        height: usize,
    },
    /// More tiles than a model is given.
    #[error(
        "a picture of {width} by {height} pixels becomes {tiles} tiles, of at most {most}; resize it, or have `size` of \
         preprocessor_config.json do it"
    )]
    Tiles {
        width: usize,
        height: usize,
        tiles: usize,
        most: usize,
    },
    /// A picture that the model does not read.
    #[error(
        "the picture is {found_height} pixels high and {found_width} wide after preprocessing, the model reads {height} \
         by {width}; resize it, or have preprocessor_config.json do it"
    )]
    Unfit {
        found_height: usize,
        found_width: usize,
        height: usize,
        width: usize,
    },
}

/// A picture of 8-bit red, green and blue, row by row from the top.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Picture {
    width: usize,
    height: usize,
    rgb: Vec<u8>,
}

impl Picture {
    /// A picture of these pixels, 3 bytes each.
    ///
    /// # Errors
    /// [`PictureError::Size`], [`PictureError::Bytes`].
    pub fn from_rgb(width: usize, height: usize, rgb: Vec<u8>) -> Result<Picture, PictureError> {
        check_size(width, height)?;
        match rgb.len() == 3 * width * height {
            true => Ok(Picture { width, height, rgb }),
            false => Err(PictureError::Bytes {
                bytes: rgb.len(),
                width,
                height,
            }),
        }
    }

    /// Pixels of a row.
    pub fn width(&self) -> usize {
        self.width
    }

    /// Rows.
    pub fn height(&self) -> usize {
        self.height
    }

    /// The pixels, 3 bytes each.
    pub fn rgb(&self) -> &[u8] {
        &self.rgb
    }
}

fn check_size(width: usize, height: usize) -> Result<(), PictureError> {
    let sides = 1..=MOST_SIDE;
    let good = sides.contains(&width) && sides.contains(&height) && width * height <= MOST_PIXELS;
    match good {
        true => Ok(()),
        false => Err(PictureError::Size { width, height }),
    }
}
