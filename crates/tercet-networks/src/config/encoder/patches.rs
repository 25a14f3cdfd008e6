//! Image input of an encoder as patches in place of tokens (Dosovitskiy and others, "An image is
//! worth 16x16 words", 2020).

use serde_json::Value;

use super::super::{ConfigError, ConfigFields, ensure};

/// The patches of an image.
///
/// ```
/// # let json = r#"{"model_type": "vit", "hidden_size": 192, "num_hidden_layers": 12,
/// #     "num_attention_heads": 3, "intermediate_size": 768, "image_size": 224, "patch_size": 16,
/// #     "hidden_act": "gelu"}"#;
/// # let json = serde_json::from_str(json)?;
/// use tercet_networks::{VisionSpec, config::{PatchSpec, VisionBody}};
/// let VisionBody::Tower { spec, .. } = VisionSpec::from_json(&json)?.body else {
///     panic!("ViT is a tower");
/// };
/// let patches: PatchSpec = spec.patches.ok_or("the tower does not read images")?;
/// assert_eq!((patches.image, patches.patch), ([224, 224], [16, 16]));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PatchSpec {
    /// Height and width, in pixels, of the images for which the position table has one row per
    /// patch.
    pub image: [usize; 2],
    /// Height and width of a patch, in pixels.
    pub patch: [usize; 2],
    /// Number of channels per pixel: 3.
    pub channels: usize,
    /// Whether a learned class token precedes the patches. The class token's final state represents
    /// the image.
    pub class_token: bool,
    /// Whether the projection of patches has a bias.
    pub bias: bool,
    /// Whether images of other sizes are supported by interpolation of the position table.
    pub interpolated: bool,
}

/// The family-specific properties of patches that the configuration does not store.
#[derive(Clone, Copy, Debug)]
pub(super) struct PatchFamilyRow {
    pub(super) class_token: bool,
    pub(super) bias: bool,
    pub(super) interpolated: bool,
}

impl PatchFamilyRow {
    pub(super) fn read(self, fields: &ConfigFields<'_>) -> Result<PatchSpec, ConfigError> {
        let PatchFamilyRow {
            class_token,
            bias,
            interpolated,
        } = self;
        let image = fields.required("image_size", sides(fields, "image_size")?)?;
        let patch = fields.required("patch_size", sides(fields, "patch_size")?)?;
        fields.only("num_channels", "3", |v| v.as_u64() == Some(3))?;
        ensure(patch[0] <= image[0] && patch[1] <= image[1], || {
            format!("patches of {patch:?} pixels do not fit into images of {image:?} pixels")
        })?;
        let spec = PatchSpec {
            image,
            patch,
            channels: 3,
            class_token,
            bias,
            interpolated,
        };
        ensure(spec.positions() <= MAX_PATCHES, || {
            format!(
                "an image has {} patches, which is too many",
                spec.positions()
            )
        })?;
        Ok(spec)
    }
}

/// Maximum number of patches per image: a quarter of a million.
const MAX_PATCHES: usize = 1 << 18;
/// Maximum side of an image, in pixels.
const MAX_SIDE: u64 = 1 << 14;

/// Reads a height and a width: one number for both, or a list of two.
pub(crate) fn sides(
    fields: &ConfigFields<'_>,
    name: &'static str,
) -> Result<Option<[usize; 2]>, ConfigError> {
    let side = |v: &Value| {
        let side = v.as_u64().filter(|n| (1..=MAX_SIDE).contains(n));
        side.map(|n| n as usize)
    };
    let mut found = None;
    let supported = "a number of pixels from 1 to 16384, or a list of two (height, width)";
    fields.only(name, supported, |v| {
        found = match v.as_array().map(Vec::as_slice) {
            Some([height, width]) => side(height).zip(side(width)).map(|(h, w)| [h, w]),
            Some(_) => None,
            None => side(v).map(|n| [n, n]),
        };
        found.is_some()
    })?;
    Ok(found)
}

impl PatchSpec {
    /// Rows and columns of patches for an image of this height and width. Pixels of incomplete
    /// patches are ignored.
    pub(crate) fn grid(&self, [height, width]: [usize; 2]) -> [usize; 2] {
        [height / self.patch[0], width / self.patch[1]]
    }

    /// Number of rows of the position table.
    pub(crate) fn positions(&self) -> usize {
        let [rows, columns] = self.grid(self.image);
        usize::from(self.class_token) + rows * columns
    }
}
