//! Image preprocessing of Idefics3 and SmolVLM: an image is resized and split into square tiles. A
//! downscaled full image of tile size follows.

use serde_json::{Map, Value};

use super::processor::{PixelScaling, ProcessorKind, WITHOUT_INFLUENCE, checked};
use super::resample::ResampleFilter;
use super::{Image, ImageError};
use crate::config::{ConfigError, ConfigFields, ensure};

/// Maximum side of resized images, whatever the file specifies.
const MAX_RESIZED_SIDE: usize = 4096;
/// Maximum number of tiles per image.
const MAX_TILES: usize = 1 << 12;
/// The default mean and standard deviation of normalization.
const HALF: [f64; 3] = [0.5; 3];

/// The preprocessing of images into tiles.
///
/// ```no_run
/// use tercet_networks::{HfFolder, ImageTileProcessor};
/// let folder = HfFolder::open("smolvlm")?;
/// let spec = folder.vision_language_spec()?;
/// let processor: ImageTileProcessor = folder.tile_processor(&spec)?;
/// assert_eq!(processor.tile(), spec.side());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct ImageTileProcessor {
    /// Length of the longer side of resized images.
    longest: Option<usize>,
    filter: ResampleFilter,
    splits: bool,
    tile: usize,
    scaling: PixelScaling,
}

/// The tile grid of an image, followed by the downscaled full image. Without a split, rows and
/// columns are 0 and only the full image remains.
///
/// ```
/// use tercet_networks::image::ImageTiles;
/// assert_eq!(ImageTiles { rows: 2, columns: 3 }.count(), 7);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ImageTiles {
    /// Number of tile rows.
    pub rows: usize,
    /// Number of tile columns.
    pub columns: usize,
}

impl ImageTiles {
    /// Number of model inputs: the tiles and the full image.
    pub fn count(self) -> usize {
        self.rows * self.columns + 1
    }
}

/// An image that is resized for its tiles.
///
/// ```no_run
/// # let folder = tercet_networks::HfFolder::open("smolvlm")?;
/// # let processor = folder.tile_processor(&folder.vision_language_spec()?)?;
/// use tercet_networks::image::{Image, TiledImage};
/// let image: TiledImage = processor.prepare(&Image::open("cat.jpg")?)?;
/// let mut pixels = vec![0.0; 3 * processor.tile() * processor.tile()];
/// image.write_tile(image.tiles().count() - 1, &mut pixels); // the downscaled full image
/// assert!(pixels.iter().all(|x| x.is_finite()));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct TiledImage {
    tiles: ImageTiles,
    tile: usize,
    scaling: PixelScaling,
    /// The image to be split, if it is split.
    split: Option<Image>,
    thumbnail: Image,
}

/// Fields about videos, about padding between images of several prompts, and about the output
/// format.
const OF_OTHERS: &[&str] = &[
    "do_pad",
    "do_sample_frames",
    "return_row_col_info",
    "video_sampling",
];

/// Reads the JSON object of `preprocessor_config.json`.
pub(crate) fn read(json: &Map<String, Value>) -> Result<ImageTileProcessor, ConfigError> {
    let fields = ConfigFields::new(json, "");
    for name in ["image_processor_type", "feature_extractor_type"] {
        fields.only(name, "an image processor of Idefics3 or SmolVLM", |v| {
            let name = v.as_str().unwrap_or_default();
            let kinds = ["Idefics3", "SmolVLM"].into_iter();
            let mut ends = kinds.filter_map(|kind| name.strip_prefix(kind));
            ends.any(|end| ProcessorKind::ENDS.contains(&end))
        })?;
    }
    let flag = |name| Ok::<_, ConfigError>(fields.opt_bool(name)?.unwrap_or(true));
    let longest = edge(&fields, "size", "size.", 4 * 364)?;
    let tile = edge(&fields, "max_image_size", "max_image_size.", 364)?;
    let mut filter = ResampleFilter::Lanczos;
    fields.only("resample", "a filter from 1 to 5", |v| {
        let found = v.as_u64().and_then(ResampleFilter::from_number);
        filter = found.unwrap_or(filter);
        found.is_some()
    })?;
    let resized = flag("do_resize")?;
    let splits = flag("do_image_splitting")?;
    let scaling = PixelScaling::read(&fields, [HALF, HALF])?;
    fields.finish(&[WITHOUT_INFLUENCE, OF_OTHERS])?;
    Ok(ImageTileProcessor {
        longest: resized.then_some(longest),
        filter,
        splits,
        tile,
        scaling,
    })
}

/// Reads the longest edge in an object.
fn edge(
    fields: &ConfigFields<'_>,
    name: &'static str,
    prefix: &'static str,
    assumed: usize,
) -> Result<usize, ConfigError> {
    let Some(object) = fields.opt_object(name)? else {
        return Ok(assumed);
    };
    let inner = ConfigFields::new(object, prefix);
    let side = checked(inner.size("longest_edge")?, name)?;
    inner.finish(&[])?;
    Ok(side)
}

impl ImageTileProcessor {
    /// Side of a tile, in pixels.
    pub fn tile(&self) -> usize {
        self.tile
    }

    /// Checks that the tiles have the side that the vision tower reads.
    pub(crate) fn expect_side(&self, side: usize) -> Result<(), ConfigError> {
        ensure(self.tile == side, || {
            let tile = self.tile;
            format!(
                "max_image_size gives tiles of {tile} pixels per side, but image_size of \
                 config.json is {side}"
            )
        })
    }

    /// The tile grid of an image of this size in pixels.
    ///
    /// # Errors
    /// [`ImageError::Tiles`] if there are too many tiles.
    pub fn tiles(&self, width: usize, height: usize) -> Result<ImageTiles, ImageError> {
        let [rows, columns] = match self.splits {
            true => {
                let [_, split] = self.sizes(width, height);
                split.map(|side| side / self.tile)
            }
            false => [0, 0],
        };
        let tiles = match rows * columns {
            // An image that fits one tile is not split.
            1 => ImageTiles {
                rows: 0,
                columns: 0,
            },
            _ => ImageTiles { rows, columns },
        };
        let (count, most) = (tiles.count(), MAX_TILES);
        match count <= most {
            true => Ok(tiles),
            false => Err(ImageError::Tiles {
                width,
                height,
                tiles: count,
                most,
            }),
        }
    }

    /// Height and width after resizing, and after rounding up to whole tiles.
    fn sizes(&self, width: usize, height: usize) -> [[usize; 2]; 2] {
        let [height, width] = match self.longest {
            Some(longest) => resized([height, width], longest),
            None => [height, width],
        };
        let filled = |side: usize| side.max(1).div_ceil(self.tile) * self.tile;
        let ratio = width as f64 / height as f64;
        // The shorter side follows from the rounded longer side; it is computed in floats and
        // rounded down.
        let split = match width >= height {
            true => {
                let width = filled(width);
                [filled((width as f64 / ratio) as usize), width]
            }
            false => {
                let height = filled(height);
                [height, filled((height as f64 * ratio) as usize)]
            }
        };
        [[height, width], split]
    }

    /// Resizes an image for its tiles.
    ///
    /// # Errors
    /// [`ImageError::Tiles`], [`ImageError::Size`].
    pub fn prepare(&self, picture: &Image) -> Result<TiledImage, ImageError> {
        let tiles = self.tiles(picture.width(), picture.height())?;
        let [[height, width], split] = self.sizes(picture.width(), picture.height());
        let (tile, filter) = (self.tile, self.filter);
        let resized = picture.resized(width, height, filter)?;
        let (split, whole) = match self.splits {
            false => (None, resized.resized(tile, tile, filter)?),
            true => {
                let filled = resized.resized(split[1], split[0], filter)?;
                match tiles.count() {
                    1 => (None, filled),
                    _ => {
                        let whole = filled.resized(tile, tile, filter)?;
                        (Some(filled), whole)
                    }
                }
            }
        };
        Ok(TiledImage {
            tiles,
            tile,
            scaling: self.scaling,
            split,
            thumbnail: whole,
        })
    }
}

/// Height and width of an image whose longer side becomes `longest`; the shorter side is rounded up
/// to even.
fn resized([height, width]: [usize; 2], longest: usize) -> [usize; 2] {
    let ratio = width as f64 / height as f64;
    let even = |side: f64| (side as usize).next_multiple_of(2).max(1);
    let [height, width] = match width >= height {
        true => [even(longest as f64 / ratio), longest],
        false => [longest, even(longest as f64 * ratio)],
    };
    let (most, ratio) = (MAX_RESIZED_SIDE, width as f64 / height as f64);
    match (width >= height, width.max(height) > most) {
        (_, false) => [height, width],
        (true, true) => [((most as f64 / ratio) as usize).max(1), most],
        (false, true) => [most, ((most as f64 * ratio) as usize).max(1)],
    }
}

impl TiledImage {
    /// The tile grid.
    pub fn tiles(&self) -> ImageTiles {
        self.tiles
    }

    /// Writes input `at` of [`ImageTiles::count`] to `out` as `[3, side, side]` in row-major order.
    /// Tiles come row by row, the full image last.
    pub fn write_tile(&self, at: usize, out: &mut [f32]) {
        let size = [self.tile; 2];
        match &self.split {
            Some(split) if at + 1 < self.tiles.count() => {
                let (row, column) = (at / self.tiles.columns, at % self.tiles.columns);
                let from = [column * self.tile, row * self.tile];
                self.scaling.apply(split, from, size, out);
            }
            Some(_) | None => self.scaling.apply(&self.thumbnail, [0, 0], size, out),
        }
    }
}
