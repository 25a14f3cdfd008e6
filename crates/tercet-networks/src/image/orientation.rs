//! Exif orientation, and rotation of images to upright.

/// The orientation tag in Exif's first directory (Exif 3.0, 4.6.5.1.6).
pub const TAG: u16 = 0x0112;
/// The type of the tag's value: a 16-bit number.
pub const SHORT: u16 = 3;
const ENTRY_BYTES: usize = 12;

/// The sides of the upright image that row 0 and column 0 of the file show, by the tag's value.
#[doc(hidden)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Orientation {
    /// Value 1 or no tag: row 0 is the top, column 0 the left side.
    Upright,
    /// Value 2: row 0 is the top, column 0 the right side.
    Mirrored,
    /// Value 3: row 0 is the bottom, column 0 the right side.
    HalfTurn,
    /// Value 4: row 0 is the bottom, column 0 the left side.
    MirroredHalfTurn,
    /// Value 5: row 0 is the left side, column 0 the top.
    Transposed,
    /// Value 6: row 0 is the right side, column 0 the top.
    QuarterTurn,
    /// Value 7: row 0 is the right side, column 0 the bottom.
    TransposedHalfTurn,
    /// Value 8: row 0 is the left side, column 0 the bottom.
    ThreeQuarterTurn,
}

/// Maps the file's size and a row and column of the upright image to the row and column in the
/// file.
type OrientedOriginFn = fn([usize; 2], usize, usize) -> (usize, usize);

impl Orientation {
    /// Reads the orientation from Exif data, which begin with a TIFF header; upright if it is
    /// absent or unknown.
    pub fn from_exif(exif: &[u8]) -> Orientation {
        match tag(exif) {
            Some(2) => Orientation::Mirrored,
            Some(3) => Orientation::HalfTurn,
            Some(4) => Orientation::MirroredHalfTurn,
            Some(5) => Orientation::Transposed,
            Some(6) => Orientation::QuarterTurn,
            Some(7) => Orientation::TransposedHalfTurn,
            Some(8) => Orientation::ThreeQuarterTurn,
            Some(_) | None => Orientation::Upright,
        }
    }

    /// Rotates RGB pixels of size `[width, height]` to the upright image.
    pub fn upright(self, size: [usize; 2], rgb: Vec<u8>) -> ([usize; 2], Vec<u8>) {
        let [width, height] = size;
        let (turned, from): (bool, OrientedOriginFn) = match self {
            Orientation::Upright => return (size, rgb),
            Orientation::Mirrored => (false, |[w, _], y, x| (y, w - 1 - x)),
            Orientation::HalfTurn => (false, |[w, h], y, x| (h - 1 - y, w - 1 - x)),
            Orientation::MirroredHalfTurn => (false, |[_, h], y, x| (h - 1 - y, x)),
            Orientation::Transposed => (true, |_, y, x| (x, y)),
            Orientation::QuarterTurn => (true, |[_, h], y, x| (h - 1 - x, y)),
            Orientation::TransposedHalfTurn => (true, |[w, h], y, x| (h - 1 - x, w - 1 - y)),
            Orientation::ThreeQuarterTurn => (true, |[w, _], y, x| (x, w - 1 - y)),
        };
        let upright = if turned { [height, width] } else { size };
        let mut pixels = Vec::with_capacity(rgb.len());
        for y in 0..upright[1] {
            for x in 0..upright[0] {
                let (row, column) = from(size, y, x);
                let at = (row * width + column) * 3;
                pixels.extend_from_slice(&rgb[at..at + 3]);
            }
        }
        (upright, pixels)
    }
}

/// Reads the value of the orientation tag.
pub fn tag(exif: &[u8]) -> Option<u16> {
    let is_little = match exif.get(..4)? {
        b"II*\0" => true,
        b"MM\0*" => false,
        _ => return None,
    };
    let short = |at: usize| -> Option<u16> {
        let bytes = exif.get(at..at.checked_add(2)?)?.try_into().ok()?;
        Some(match is_little {
            true => u16::from_le_bytes(bytes),
            false => u16::from_be_bytes(bytes),
        })
    };
    let long = |at: usize| -> Option<u32> {
        let bytes = exif.get(at..at.checked_add(4)?)?.try_into().ok()?;
        Some(match is_little {
            true => u32::from_le_bytes(bytes),
            false => u32::from_be_bytes(bytes),
        })
    };
    let directory = long(4)? as usize;
    let entries = short(directory)?;
    let first = directory.checked_add(2)?;
    for entry in 0..usize::from(entries) {
        let at = first.checked_add(entry * ENTRY_BYTES)?;
        if short(at)? == TAG {
            let is_one = short(at + 2)? == SHORT && long(at + 4)? == 1;
            return short(at + 8).filter(|_| is_one);
        }
    }
    None
}
