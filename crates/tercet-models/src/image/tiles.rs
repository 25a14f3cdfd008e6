//! Pictures as Idefics3 and SmolVLM read them: resized, split into square tiles, and once more as a whole of the size of a tile.

use serde_json::{Map, Value};

use super::processor::{ProcessorKind, Scaling, WITHOUT_INFLUENCE, checked};
use super::resample::Filter;
use super::{Picture, PictureError};
use crate::config::{ConfigError, Fields, ensure};

/// Longer sides are made smaller when a picture is resized, whatever the file says.
const MOST_RESIZED: usize = 4096;
/// Tiles of a picture at most.
const MOST_TILES: usize = 1 << 12;
/// What is subtracted and divided by where the file says nothing.
const HALF: [f64; 3] = [0.5; 3];

/// How pictures become tiles.
#[derive(Clone, Debug, PartialEq)]
pub struct TileProcessor {
    /// The longer side of resized pictures.
    longest: Option<usize>,
    filter: Filter,
    splits: bool,
    tile: usize,
    scaling: Scaling,
}

/// The tiles of a picture: rows and columns of them, and behind those the whole one. Neither where the whole is all.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Tiles {
    /// How many stand one above the other.
    pub rows: usize,
    /// How many stand side by side.
    pub columns: usize,
}

impl Tiles {
    /// What a model reads, the whole included.
    pub fn count(self) -> usize {
        self.rows * self.columns + 1
    }
}

/// A picture that was resized for its tiles.
#[derive(Clone, Debug, PartialEq)]
pub struct TiledPicture {
    tiles: Tiles,
    tile: usize,
    scaling: Scaling,
    /// What is split, where it is.
    split: Option<Picture>,
    whole: Picture,
}

/// Fields about videos, about padding between pictures of several prompts, and about what is handed on.
const OF_OTHERS: &[&str] = &[
    "do_pad",
    "do_sample_frames",
    "return_row_col_info",
    "video_sampling",
];

/// Reads the object of `preprocessor_config.json`.
pub(crate) fn read(json: &Map<String, Value>) -> Result<TileProcessor, ConfigError> {
    let fields = Fields::new(json, "");
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
    let mut filter = Filter::Lanczos;
    fields.only("resample", "a filter from 1 to 5", |v| {
        let found = v.as_u64().and_then(Filter::of_number);
        filter = found.unwrap_or(filter);
        found.is_some()
    })?;
    let resized = flag("do_resize")?;
    let splits = flag("do_image_splitting")?;
    let scaling = Scaling::read(&fields, [HALF, HALF])?;
    fields.finish(&[WITHOUT_INFLUENCE, OF_OTHERS])?;
    Ok(TileProcessor {
        longest: resized.then_some(longest),
        filter,
        splits,
        tile,
        scaling,
    })
}

/// The longest edge that an object says.
fn edge(
    fields: &Fields<'_>,
    name: &'static str,
    prefix: &'static str,
    assumed: usize,
) -> Result<usize, ConfigError> {
    let Some(object) = fields.opt_object(name)? else {
        return Ok(assumed);
    };
    let inner = Fields::new(object, prefix);
    let side = checked(inner.size("longest_edge")?, name)?;
    inner.finish(&[])?;
    Ok(side)
}

impl TileProcessor {
    /// Pixels of a side of a tile.
    pub fn tile(&self) -> usize {
        self.tile
    }

    /// Refuses tiles that a tower does not read.
    pub(crate) fn expect_side(&self, side: usize) -> Result<(), ConfigError> {
        ensure(self.tile == side, || {
            let tile = self.tile;
            format!(
                "max_image_size makes tiles of {tile} pixels a side, image_size of config.json is {side}"
            )
        })
    }

    /// The tiles of a picture of this size in pixels.
    ///
    /// # Errors
    /// [`PictureError::Tiles`] where they are too many.
    pub fn tiles(&self, width: usize, height: usize) -> Result<Tiles, PictureError> {
        let [rows, columns] = match self.splits {
            true => {
                let [_, split] = self.sizes(width, height);
                split.map(|side| side / self.tile)
            }
            false => [0, 0],
        };
        let tiles = match rows * columns {
            // What fits a tile is not split.
            1 => Tiles {
                rows: 0,
                columns: 0,
            },
            _ => Tiles { rows, columns },
        };
        let (count, most) = (tiles.count(), MOST_TILES);
        match count <= most {
            true => Ok(tiles),
            false => Err(PictureError::Tiles {
                width,
                height,
                tiles: count,
                most,
            }),
        }
    }

    /// Height and width after resizing, then those that tiles fill.
    fn sizes(&self, width: usize, height: usize) -> [[usize; 2]; 2] {
        let [height, width] = match self.longest {
            Some(longest) => resized([height, width], longest),
            None => [height, width],
        };
        let filled = |side: usize| side.max(1).div_ceil(self.tile) * self.tile;
        let ratio = width as f64 / height as f64;
        // The shorter side follows the longer one as that is now, rounded down by way of a float.
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

    /// Resizes a picture for its tiles.
    ///
    /// # Errors
    /// [`PictureError::Tiles`], [`PictureError::Size`].
    pub fn prepare(&self, picture: &Picture) -> Result<TiledPicture, PictureError> {
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
        Ok(TiledPicture {
            tiles,
            tile,
            scaling: self.scaling,
            split,
            whole,
        })
    }
}

/// Height and width of a picture whose longer side becomes `longest`; the shorter one is made even.
fn resized([height, width]: [usize; 2], longest: usize) -> [usize; 2] {
    let ratio = width as f64 / height as f64;
    let even = |side: f64| (side as usize).next_multiple_of(2).max(1);
    let [height, width] = match width >= height {
        true => [even(longest as f64 / ratio), longest],
        false => [longest, even(longest as f64 * ratio)],
    };
    let (most, ratio) = (MOST_RESIZED, width as f64 / height as f64);
    match (width >= height, width.max(height) > most) {
        (_, false) => [height, width],
        (true, true) => [((most as f64 / ratio) as usize).max(1), most],
        (false, true) => [most, ((most as f64 * ratio) as usize).max(1)],
    }
}

impl TiledPicture {
    /// Its tiles.
    pub fn tiles(&self) -> Tiles {
        self.tiles
    }

    /// Writes one of [`Tiles::count`] as a model reads it, `[3, side, side]` row by row, to `out`: tiles row by row, the whole
    /// last.
    pub fn write(&self, at: usize, out: &mut [f32]) {
        let size = [self.tile; 2];
        match &self.split {
            Some(split) if at + 1 < self.tiles.count() => {
                let (row, column) = (at / self.tiles.columns, at % self.tiles.columns);
                let from = [column * self.tile, row * self.tile];
                self.scaling.apply(split, from, size, out);
            }
            Some(_) | None => self.scaling.apply(&self.whole, [0, 0], size, out),
        }
    }
}
