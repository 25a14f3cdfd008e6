//! `preprocessor_config.json`, of which every field is read, known to have no influence, or refused.

use serde_json::{Map, Value};

use super::resample::Filter;
use super::{Picture, PictureError};
use crate::config::encoder::sides;
use crate::config::{ConfigError, Fields};

/// The kinds of processors, which differ in what they assume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ProcessorKind {
    Vit,
    Clip,
    Siglip,
    /// DINOv2's.
    Bit,
    /// ConvNeXt's, and ResNet's.
    ConvNext,
}

impl ProcessorKind {
    const ALL: [(ProcessorKind, &'static str); 5] = [
        (ProcessorKind::Vit, "ViT"),
        (ProcessorKind::Clip, "CLIP"),
        (ProcessorKind::Siglip, "Siglip"),
        (ProcessorKind::Bit, "Bit"),
        (ProcessorKind::ConvNext, "ConvNext"),
    ];
    /// What follows a kind's name.
    pub(super) const ENDS: [&'static str; 4] = [
        "ImageProcessor",
        "ImageProcessorFast",
        "ImageProcessorPil",
        "FeatureExtractor",
    ];

    fn named(name: &str) -> Option<ProcessorKind> {
        let mut all = ProcessorKind::ALL.iter();
        let ends = |rest: &str| ProcessorKind::ENDS.contains(&rest);
        all.find_map(|(kind, own)| name.strip_prefix(own).is_some_and(ends).then_some(*kind))
    }

    /// Whether one number is the size of a square; else of the shorter side.
    fn squares(self) -> bool {
        self == ProcessorKind::Vit
    }

    fn assumed(self) -> Assumed {
        const HALF: [f64; 3] = [0.5; 3];
        const CLIP_MEAN: [f64; 3] = [0.481_454_66, 0.457_827_5, 0.408_210_73];
        const CLIP_STD: [f64; 3] = [0.268_629_54, 0.261_302_58, 0.275_777_11];
        let (size, filter, crop) = match self {
            ProcessorKind::Vit => (Resize::Exact([224, 224]), Filter::Bilinear, false),
            ProcessorKind::Siglip => (Resize::Exact([224, 224]), Filter::Bicubic, false),
            ProcessorKind::Clip | ProcessorKind::Bit => {
                (Resize::Shortest(224), Filter::Bicubic, true)
            }
            ProcessorKind::ConvNext => (Resize::Shortest(384), Filter::Bicubic, false),
        };
        let [mean, std] = match self {
            ProcessorKind::Clip | ProcessorKind::Bit => [CLIP_MEAN, CLIP_STD],
            ProcessorKind::Vit | ProcessorKind::Siglip | ProcessorKind::ConvNext => [HALF, HALF],
        };
        Assumed {
            size,
            filter,
            crop,
            mean,
            std,
        }
    }
}

/// What a kind assumes where its file says nothing.
struct Assumed {
    size: Resize,
    filter: Filter,
    crop: bool,
    mean: [f64; 3],
    std: [f64; 3],
}

/// The sides that pictures are given, in pixels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Resize {
    /// Height and width.
    Exact([usize; 2]),
    /// That of the shorter side; the other follows.
    Shortest(usize),
}

/// How pictures become what a model reads.
#[derive(Clone, Debug, PartialEq)]
pub struct PictureProcessor {
    resize: Option<(Resize, Filter)>,
    /// Height and width of the middle that is kept.
    crop: Option<[usize; 2]>,
    scaling: Scaling,
}

/// What bytes become.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Scaling {
    /// What they are multiplied with.
    factor: f64,
    mean: [f64; 3],
    std: [f64; 3],
}

impl Scaling {
    /// Reads the fields of any kind of processor; `mean` and `std` are what this kind assumes.
    pub(super) fn read(
        fields: &Fields<'_>,
        [mean, std]: [[f64; 3]; 2],
    ) -> Result<Scaling, ConfigError> {
        let flag = |name| Ok::<_, ConfigError>(fields.opt_bool(name)?.unwrap_or(true));
        let factor = fields
            .opt_positive("rescale_factor")?
            .unwrap_or(1.0 / 255.0);
        let rescaled = flag("do_rescale")?;
        let mean = channels(fields, "image_mean", |x| x.is_finite())?.unwrap_or(mean);
        let positive = |x: f64| x.is_finite() && x > 0.0;
        let std = channels(fields, "image_std", positive)?.unwrap_or(std);
        let normalized = flag("do_normalize")?;
        Ok(Scaling {
            factor: if rescaled { factor } else { 1.0 },
            mean: if normalized { mean } else { [0.0; 3] },
            std: if normalized { std } else { [1.0; 3] },
        })
    }

    /// Writes the part of `picture` that begins at `[left, top]` as a model reads it, `[3, height, width]` row by row, to
    /// `out`, which has as many numbers.
    pub(super) fn apply(
        &self,
        picture: &Picture,
        [left, top]: [usize; 2],
        [height, width]: [usize; 2],
        out: &mut [f32],
    ) {
        for (channel, out) in out.chunks_exact_mut(height * width).enumerate() {
            let (mean, std) = (self.mean[channel], self.std[channel]);
            for (y, line) in out.chunks_exact_mut(width).enumerate() {
                let first = 3 * ((top + y) * picture.width() + left) + channel;
                let bytes = picture.rgb()[first..].iter().step_by(3);
                for (to, byte) in line.iter_mut().zip(bytes) {
                    *to = ((f64::from(*byte) * self.factor - mean) / std) as f32;
                }
            }
        }
    }
}

/// Fields about the file and about how its reader hands pictures on.
pub(super) const WITHOUT_INFLUENCE: &[&str] = &[
    "_valid_processor_keys",
    "auto_map",
    "data_format",
    "device",
    "disable_grouping",
    "do_convert_rgb",
    "image_seq_length",
    "input_data_format",
    "processor_class",
    "return_tensors",
];

/// Reads the file's object. Where it does not name a kind, it is `kind`.
pub(crate) fn read(
    json: &Map<String, Value>,
    kind: ProcessorKind,
) -> Result<PictureProcessor, ConfigError> {
    let fields = Fields::new(json, "");
    let kind = named(&fields, kind)?;
    let assumed = kind.assumed();
    let flag = |name, or| Ok::<_, ConfigError>(fields.opt_bool(name)?.unwrap_or(or));
    let size = resize(&fields, kind)?.unwrap_or(assumed.size);
    let mut filter = assumed.filter;
    fields.only("resample", "a filter from 1 to 5", |v| {
        let found = v.as_u64().and_then(Filter::of_number);
        filter = found.unwrap_or(filter);
        found.is_some()
    })?;
    let resized = flag("do_resize", true)?;
    let mut crop = crop(&fields)?.unwrap_or([224, 224]);
    let cropped = flag("do_center_crop", assumed.crop)?;
    let mut wanted = cropped.then_some(crop);
    let mut size = size;
    if kind == ProcessorKind::ConvNext {
        let part = fields.opt_positive("crop_pct")?.unwrap_or(224.0 / 256.0);
        let Resize::Shortest(side) = size else {
            return Err(ConfigError::Unsupported {
                field: "size".to_string(),
                found: "a height and a width".to_string(),
                supported: "`shortest_edge`".to_string(),
            });
        };
        if resized && cropped {
            return Err(ConfigError::Unsupported {
                field: "do_center_crop".to_string(),
                found: "true".to_string(),
                supported: "false, as this kind crops by crop_pct,".to_string(),
            });
        }
        if resized && side < 384 {
            // Larger, of which the middle is kept.
            size = Resize::Shortest(checked((side as f64 / part) as usize, "crop_pct")?);
            crop = [side, side];
            wanted = Some(crop);
        } else {
            size = Resize::Exact([side, side]);
        }
    }
    fields.only("do_pad", "false", |v| v.as_bool() == Some(false))?;
    let scaling = Scaling::read(&fields, [assumed.mean, assumed.std])?;
    fields.finish(&[WITHOUT_INFLUENCE])?;
    Ok(PictureProcessor {
        resize: resized.then_some((size, filter)),
        crop: wanted,
        scaling,
    })
}

fn named(fields: &Fields<'_>, kind: ProcessorKind) -> Result<ProcessorKind, ConfigError> {
    let kinds = ProcessorKind::ALL.map(|(_, name)| name).join(", ");
    let supported = format!("an image processor of {kinds}");
    let mut found: Option<ProcessorKind> = None;
    for name in ["image_processor_type", "feature_extractor_type"] {
        fields.only(name, &supported, |v| {
            let own = v.as_str().and_then(ProcessorKind::named);
            let agree = found.is_none() || own == found;
            found = own;
            own.is_some() && agree
        })?;
    }
    Ok(found.unwrap_or(kind))
}

/// A side that is not 0, of a size that is read.
pub(super) fn checked(side: usize, field: &str) -> Result<usize, ConfigError> {
    match (1..=1 << 14).contains(&side) {
        true => Ok(side),
        false => Err(ConfigError::Inconsistent {
            reason: format!("`{field}` makes pictures of {side} pixels a side"),
        }),
    }
}

/// A number, a list of height and width, or an object that names sides.
fn resize(fields: &Fields<'_>, kind: ProcessorKind) -> Result<Option<Resize>, ConfigError> {
    let Some(value) = fields.get("size") else {
        return Ok(None);
    };
    if let Some(object) = value.as_object() {
        let inner = Fields::new(object, "size.");
        let found = match inner.opt_size("shortest_edge")? {
            Some(side) => Resize::Shortest(checked(side, "size.shortest_edge")?),
            None => Resize::Exact(height_and_width(&inner)?),
        };
        inner.finish(&[])?;
        return Ok(Some(found));
    }
    let found = sides(fields, "size")?;
    Ok(
        found.map(|[height, width]| match kind.squares() || value.is_array() {
            true => Resize::Exact([height, width]),
            false => Resize::Shortest(height),
        }),
    )
}

fn crop(fields: &Fields<'_>) -> Result<Option<[usize; 2]>, ConfigError> {
    let Some(object) = fields.get("crop_size").and_then(Value::as_object) else {
        return sides(fields, "crop_size");
    };
    let inner = Fields::new(object, "crop_size.");
    let found = height_and_width(&inner)?;
    inner.finish(&[])?;
    Ok(Some(found))
}

fn height_and_width(fields: &Fields<'_>) -> Result<[usize; 2], ConfigError> {
    Ok([
        checked(fields.size("height")?, "height")?,
        checked(fields.size("width")?, "width")?,
    ])
}

/// A number for each channel, or one for all.
fn channels(
    fields: &Fields<'_>,
    name: &'static str,
    good: impl Fn(f64) -> bool,
) -> Result<Option<[f64; 3]>, ConfigError> {
    let mut found = None;
    fields.only(name, "three numbers", |v| {
        let number = |v: &Value| v.as_f64().filter(|x| good(*x));
        found = match v.as_array().map(Vec::as_slice) {
            Some([r, g, b]) => number(r)
                .zip(number(g))
                .zip(number(b))
                .map(|((r, g), b)| [r, g, b]),
            Some(_) => None,
            None => number(v).map(|x| [x; 3]),
        };
        found.is_some()
    })?;
    Ok(found)
}

impl PictureProcessor {
    /// Height and width of what comes out, where it is the same for all pictures.
    pub fn size(&self) -> Option<[usize; 2]> {
        match (self.crop, self.resize) {
            (Some(crop), _) => Some(crop),
            (None, Some((Resize::Exact(size), _))) => Some(size),
            (None, Some((Resize::Shortest(_), _)) | None) => None,
        }
    }

    /// The picture resized and cropped.
    ///
    /// # Errors
    /// [`PictureError::Size`] where that would be too large.
    pub fn resized(&self, picture: &Picture) -> Result<Picture, PictureError> {
        let (width, height) = (picture.width(), picture.height());
        let resized = match self.resize {
            None => None,
            Some((Resize::Exact([height, width]), filter)) => {
                Some(picture.resized(width, height, filter)?)
            }
            Some((Resize::Shortest(side), filter)) => {
                // Rounded down by way of a float, as the reference has it.
                let longer = |long: usize, short: usize| (side * long) as f64 / short as f64;
                let (width, height) = match width <= height {
                    true => (side, longer(height, width) as usize),
                    false => (longer(width, height) as usize, side),
                };
                Some(picture.resized(width, height, filter)?)
            }
        };
        let picture = resized.as_ref().unwrap_or(picture);
        match self.crop {
            Some([height, width]) => picture.center_cropped(width, height),
            None => Ok(picture.clone()),
        }
    }

    /// Writes the picture as a model reads it, `[3, height, width]` row by row, to `out`.
    ///
    /// # Errors
    /// [`PictureError::Size`]; [`PictureError::Unfit`] where the picture comes out with other sides.
    pub fn apply(
        &self,
        picture: &Picture,
        [height, width]: [usize; 2],
        out: &mut [f32],
    ) -> Result<(), PictureError> {
        let picture = self.resized(picture)?;
        let places = height * width;
        if [picture.height(), picture.width()] != [height, width] || out.len() != 3 * places {
            return Err(PictureError::Unfit {
                found_height: picture.height(),
                found_width: picture.width(),
                height,
                width,
            });
        }
        self.scaling.apply(&picture, [0, 0], [height, width], out);
        Ok(())
    }
}
