//! How an encoder reads a picture: as patches in the place of tokens (Dosovitskiy and others, "An image is worth 16x16
//! words", 2020).

use serde_json::Value;

use super::super::{ConfigError, Fields, ensure};

/// The patches of a picture.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PatchSpec {
    /// Height and width in pixels of the pictures that the rows of the position table belong to.
    pub image: [usize; 2],
    /// Height and width of a patch in pixels.
    pub patch: [usize; 2],
    /// Channels of a pixel: 3.
    pub channels: usize,
    /// Whether a learned token stands before the patches, whose state stands for the picture.
    pub class_token: bool,
    /// Whether the projection of patches has a bias.
    pub bias: bool,
    /// Whether pictures of other sizes are read with interpolated rows of the position table.
    pub interpolated: bool,
}

/// What a family's patches are like, beyond what the configuration says.
#[derive(Clone, Copy, Debug)]
pub(super) struct PatchRow {
    pub(super) class_token: bool,
    pub(super) bias: bool,
    pub(super) interpolated: bool,
}

impl PatchRow {
    pub(super) fn read(self, fields: &Fields<'_>) -> Result<PatchSpec, ConfigError> {
        let PatchRow {
            class_token,
            bias,
            interpolated,
        } = self;
        let image = fields.required("image_size", sides(fields, "image_size")?)?;
        let patch = fields.required("patch_size", sides(fields, "patch_size")?)?;
        fields.only("num_channels", "3", |v| v.as_u64() == Some(3))?;
        ensure(patch[0] <= image[0] && patch[1] <= image[1], || {
            format!("patches of {patch:?} pixels do not fit pictures of {image:?}")
        })?;
        let spec = PatchSpec {
            image,
            patch,
            channels: 3,
            class_token,
            bias,
            interpolated,
        };
        ensure(spec.positions() <= MOST_PATCHES, || {
            format!("a picture of {} patches", spec.positions())
        })?;
        Ok(spec)
    }
}

/// Patches of a picture at most: a quarter of a million.
const MOST_PATCHES: usize = 1 << 18;
/// Pixels of a side at most.
const MOST_SIDE: u64 = 1 << 14;

/// Height and width: one number for both, or a list of two.
pub(crate) fn sides(
    fields: &Fields<'_>,
    name: &'static str,
) -> Result<Option<[usize; 2]>, ConfigError> {
    let side = |v: &Value| {
        let side = v.as_u64().filter(|n| (1..=MOST_SIDE).contains(n));
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
    /// Rows and columns of patches of a picture of this height and width; pixels that fill no patch are left out.
    pub(crate) fn grid(&self, [height, width]: [usize; 2]) -> [usize; 2] {
        [height / self.patch[0], width / self.patch[1]]
    }

    /// The rows of the position table.
    pub(crate) fn positions(&self) -> usize {
        let [rows, columns] = self.grid(self.image);
        usize::from(self.class_token) + rows * columns
    }
}
