//! `preprocessor_config.json` of image processors. Every field is applied, known to be harmless, or
//! an error.

use serde_json::{Map, Value};

use super::resample::ResampleFilter;
use super::{Image, ImageError};
use crate::config::encoder::sides;
use crate::config::{ConfigError, ConfigFields};

/// The types of image processors, which differ in their defaults.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ProcessorKind {
    Vit,
    Clip,
    Siglip,
    /// DINOv2's processor.
    Bit,
    /// The processor of ConvNeXt and ResNet.
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
    /// The suffixes that may follow the type's name in a file.
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

    /// Whether a single number is the side of a square; otherwise it is the shorter side.
    fn squares(self) -> bool {
        self == ProcessorKind::Vit
    }

    fn assumed(self) -> ProcessorDefaults {
        const HALF: [f64; 3] = [0.5; 3];
        const CLIP_MEAN: [f64; 3] = [0.481_454_66, 0.457_827_5, 0.408_210_73];
        const CLIP_STD: [f64; 3] = [0.268_629_54, 0.261_302_58, 0.275_777_11];
        let (size, filter, crop) = match self {
            ProcessorKind::Vit => (
                ImageResize::Exact([224, 224]),
                ResampleFilter::Bilinear,
                false,
            ),
            ProcessorKind::Siglip => (
                ImageResize::Exact([224, 224]),
                ResampleFilter::Bicubic,
                false,
            ),
            ProcessorKind::Clip | ProcessorKind::Bit => {
                (ImageResize::Shortest(224), ResampleFilter::Bicubic, true)
            }
            ProcessorKind::ConvNext => (ImageResize::Shortest(384), ResampleFilter::Bicubic, false),
        };
        let [mean, std] = match self {
            ProcessorKind::Clip | ProcessorKind::Bit => [CLIP_MEAN, CLIP_STD],
            ProcessorKind::Vit | ProcessorKind::Siglip | ProcessorKind::ConvNext => [HALF, HALF],
        };
        ProcessorDefaults {
            size,
            filter,
            crop,
            mean,
            std,
        }
    }
}

/// The defaults of a processor type for fields that its file lacks.
struct ProcessorDefaults {
    size: ImageResize,
    filter: ResampleFilter,
    crop: bool,
    mean: [f64; 3],
    std: [f64; 3],
}

/// The target size of resizing, in pixels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ImageResize {
    /// Exact height and width.
    Exact([usize; 2]),
    /// The length of the shorter side; the other side keeps the aspect ratio.
    Shortest(usize),
}

/// The preprocessing of images for a vision model.
///
/// ```no_run
/// use tercet_networks::{HfFolder, Image, VisionFamily};
/// let processor = HfFolder::open("vit-base")?.image_processor(VisionFamily::Vit)?;
/// let image = processor.resized(&Image::open("cat.jpg")?)?;
/// assert_eq!(processor.size(), Some([image.height(), image.width()]));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct ImageProcessor {
    resize: Option<(ImageResize, ResampleFilter)>,
    /// Height and width of the centre crop.
    crop: Option<[usize; 2]>,
    scaling: PixelScaling,
}

/// The conversion of bytes to normalized floats.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct PixelScaling {
    /// The factor of the bytes.
    factor: f64,
    mean: [f64; 3],
    std: [f64; 3],
}

impl PixelScaling {
    /// Reads the scaling fields of any processor type; `mean` and `std` are the type's defaults.
    pub(super) fn read(
        fields: &ConfigFields<'_>,
        [mean, std]: [[f64; 3]; 2],
    ) -> Result<PixelScaling, ConfigError> {
        let flag = |name| Ok::<_, ConfigError>(fields.opt_bool(name)?.unwrap_or(true));
        let factor = fields
            .opt_positive("rescale_factor")?
            .unwrap_or(1.0 / 255.0);
        let rescaled = flag("do_rescale")?;
        let mean = channels(fields, "image_mean", |x| x.is_finite())?.unwrap_or(mean);
        let positive = |x: f64| x.is_finite() && x > 0.0;
        let std = channels(fields, "image_std", positive)?.unwrap_or(std);
        let normalized = flag("do_normalize")?;
        Ok(PixelScaling {
            factor: if rescaled { factor } else { 1.0 },
            mean: if normalized { mean } else { [0.0; 3] },
            std: if normalized { std } else { [1.0; 3] },
        })
    }

    /// Normalizes the part of `picture` that begins at `[left, top]`, and writes it to `out` as
    /// `[3, height, width]` in row-major order. The length of `out` must match.
    pub(super) fn apply(
        &self,
        picture: &Image,
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

/// Fields about the file, and about the output format of the reference implementation.
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

/// Reads the file's JSON object. If the object has no processor type, `kind` is used.
pub(crate) fn read(
    json: &Map<String, Value>,
    kind: ProcessorKind,
) -> Result<ImageProcessor, ConfigError> {
    let fields = ConfigFields::new(json, "");
    let kind = named(&fields, kind)?;
    let assumed = kind.assumed();
    let flag = |name, or| Ok::<_, ConfigError>(fields.opt_bool(name)?.unwrap_or(or));
    let size = resize(&fields, kind)?.unwrap_or(assumed.size);
    let mut filter = assumed.filter;
    fields.only("resample", "a filter from 1 to 5", |v| {
        let found = v.as_u64().and_then(ResampleFilter::from_number);
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
        let ImageResize::Shortest(side) = size else {
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
                supported: "false, because this processor crops by crop_pct".to_string(),
            });
        }
        if resized && side < 384 {
            // Resize to a larger size and take the centre crop.
            size = ImageResize::Shortest(checked((side as f64 / part) as usize, "crop_pct")?);
            crop = [side, side];
            wanted = Some(crop);
        } else {
            size = ImageResize::Exact([side, side]);
        }
    }
    fields.only("do_pad", "false", |v| v.as_bool() == Some(false))?;
    let scaling = PixelScaling::read(&fields, [assumed.mean, assumed.std])?;
    fields.finish(&[WITHOUT_INFLUENCE])?;
    Ok(ImageProcessor {
        resize: resized.then_some((size, filter)),
        crop: wanted,
        scaling,
    })
}

fn named(fields: &ConfigFields<'_>, kind: ProcessorKind) -> Result<ProcessorKind, ConfigError> {
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

/// Checks that a side is at least 1 and at most the supported maximum.
pub(super) fn checked(side: usize, field: &str) -> Result<usize, ConfigError> {
    match (1..=1 << 14).contains(&side) {
        true => Ok(side),
        false => Err(ConfigError::Inconsistent {
            reason: format!(
                "`{field}` gives images of {side} pixels per side, which is out of \
                 range"
            ),
        }),
    }
}

/// Reads the target size: a number, a list of height and width, or an object with named sides.
fn resize(
    fields: &ConfigFields<'_>,
    kind: ProcessorKind,
) -> Result<Option<ImageResize>, ConfigError> {
    let Some(value) = fields.get("size") else {
        return Ok(None);
    };
    if let Some(object) = value.as_object() {
        let inner = ConfigFields::new(object, "size.");
        let found = match inner.opt_size("shortest_edge")? {
            Some(side) => ImageResize::Shortest(checked(side, "size.shortest_edge")?),
            None => ImageResize::Exact(height_and_width(&inner)?),
        };
        inner.finish(&[])?;
        return Ok(Some(found));
    }
    let found = sides(fields, "size")?;
    Ok(
        found.map(|[height, width]| match kind.squares() || value.is_array() {
            true => ImageResize::Exact([height, width]),
            false => ImageResize::Shortest(height),
        }),
    )
}

fn crop(fields: &ConfigFields<'_>) -> Result<Option<[usize; 2]>, ConfigError> {
    let Some(object) = fields.get("crop_size").and_then(Value::as_object) else {
        return sides(fields, "crop_size");
    };
    let inner = ConfigFields::new(object, "crop_size.");
    let found = height_and_width(&inner)?;
    inner.finish(&[])?;
    Ok(Some(found))
}

fn height_and_width(fields: &ConfigFields<'_>) -> Result<[usize; 2], ConfigError> {
    Ok([
        checked(fields.size("height")?, "height")?,
        checked(fields.size("width")?, "width")?,
    ])
}

/// Reads one number per channel, or a single number for all channels.
fn channels(
    fields: &ConfigFields<'_>,
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

impl ImageProcessor {
    /// Height and width of the output, if it is the same for all images.
    pub fn size(&self) -> Option<[usize; 2]> {
        match (self.crop, self.resize) {
            (Some(crop), _) => Some(crop),
            (None, Some((ImageResize::Exact(size), _))) => Some(size),
            (None, Some((ImageResize::Shortest(_), _)) | None) => None,
        }
    }

    /// The image after resizing and cropping.
    ///
    /// # Errors
    /// [`ImageError::Size`] if the result would be too large.
    pub fn resized(&self, picture: &Image) -> Result<Image, ImageError> {
        let (width, height) = (picture.width(), picture.height());
        let resized = match self.resize {
            None => None,
            Some((ImageResize::Exact([height, width]), filter)) => {
                Some(picture.resized(width, height, filter)?)
            }
            Some((ImageResize::Shortest(side), filter)) => {
                // Compute the longer side in floats and round it down, as in the reference
                // implementation.
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

    /// Preprocesses the image and writes it to `out` as `[3, height, width]` in row-major order.
    ///
    /// # Errors
    /// [`ImageError::Size`]; [`ImageError::Unfit`] if the result has another size.
    pub fn apply(
        &self,
        picture: &Image,
        [height, width]: [usize; 2],
        out: &mut [f32],
    ) -> Result<(), ImageError> {
        let picture = self.resized(picture)?;
        let places = height * width;
        if [picture.height(), picture.width()] != [height, width] || out.len() != 3 * places {
            return Err(ImageError::Unfit {
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
