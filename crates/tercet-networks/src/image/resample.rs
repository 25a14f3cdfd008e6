//! Image resizing with antialiasing filters in fixed point, bit-compatible with Pillow 13.
//!
//! Rows are filtered first, then columns, with 8-bit intermediate pixels. The order is reversed if
//! the height shrinks by more than twice the pixels that the width does. Pillow before version 13
//! never reverses the order.

use super::{Image, ImageError, check_size};

/// The resampling filter.
///
/// ```
/// use tercet_networks::image::{Image, ResampleFilter};
/// let image = Image::from_rgb(2, 2, vec![90; 12])?;
/// let small = image.resized(1, 1, ResampleFilter::Box)?;
/// assert_eq!(small.rgb(), [90, 90, 90]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ResampleFilter {
    /// Box filter: the mean.
    Box,
    /// Bilinear: a triangle.
    Bilinear,
    /// Hamming: a raised cosine times a sinc.
    Hamming,
    /// Bicubic (Keys, "Cubic convolution interpolation", 1981, with -0.5).
    Bicubic,
    /// Lanczos with three lobes: a sinc times a windowing sinc.
    Lanczos,
}

impl ResampleFilter {
    /// The filter with this number in files of the reference implementation; `None` for nearest
    /// neighbour (0).
    pub(super) fn from_number(number: u64) -> Option<ResampleFilter> {
        match number {
            1 => Some(ResampleFilter::Lanczos),
            2 => Some(ResampleFilter::Bilinear),
            3 => Some(ResampleFilter::Bicubic),
            4 => Some(ResampleFilter::Box),
            5 => Some(ResampleFilter::Hamming),
            _ => None,
        }
    }

    /// The filter's radius, in output pixels when downscaling.
    fn reach(self) -> f64 {
        match self {
            ResampleFilter::Box => 0.5,
            ResampleFilter::Bilinear | ResampleFilter::Hamming => 1.0,
            ResampleFilter::Bicubic => 2.0,
            ResampleFilter::Lanczos => 3.0,
        }
    }

    fn weight(self, x: f64) -> f64 {
        let sinc = |x: f64| match x == 0.0 {
            true => 1.0,
            false => (x * std::f64::consts::PI).sin() / (x * std::f64::consts::PI),
        };
        let far = x.abs();
        match self {
            ResampleFilter::Box if x > -0.5 && x <= 0.5 => 1.0,
            ResampleFilter::Bilinear if far < 1.0 => 1.0 - far,
            ResampleFilter::Hamming if far < 1.0 => {
                sinc(far) * (0.54 + 0.46 * (far * std::f64::consts::PI).cos())
            }
            ResampleFilter::Bicubic if far < 1.0 => ((1.5 * far) - 2.5) * far * far + 1.0,
            ResampleFilter::Bicubic if far < 2.0 => -0.5 * (((far - 5.0) * far + 8.0) * far - 4.0),
            ResampleFilter::Lanczos if (-3.0..3.0).contains(&x) => sinc(x) * sinc(x / 3.0),
            _ => 0.0,
        }
    }
}

/// Number of fractional bits of a weight.
const BITS: u32 = 32 - 8 - 2;

/// The first source pixel of an output pixel, and the weights from there.
struct ResampleTaps {
    first: usize,
    weights: Vec<i32>,
}

fn taps(filter: ResampleFilter, from: usize, to: usize) -> Vec<ResampleTaps> {
    let scale = from as f64 / to as f64;
    let wide = scale.max(1.0);
    let reach = filter.reach() * wide;
    let of = |at: usize| {
        let center = (at as f64 + 0.5) * scale;
        // The cast to `usize` saturates: a negative first pixel becomes 0.
        let first = ((center - reach + 0.5) as usize).min(from - 1);
        let end = ((center + reach + 0.5) as usize).min(from).max(first + 1);
        let weight = |i: usize| filter.weight((i as f64 - center + 0.5) / wide);
        let weights: Vec<f64> = (first..end).map(weight).collect();
        let sum: f64 = weights.iter().sum();
        let fixed = weights.iter().map(|w| {
            let w = if sum == 0.0 { *w } else { w / sum };
            let w = w * f64::from(1u32 << BITS);
            (w + if w < 0.0 { -0.5 } else { 0.5 }) as i32
        });
        ResampleTaps {
            first,
            weights: fixed.collect(),
        }
    };
    (0..to).map(of).collect()
}

/// Rounds a fixed-point sum to a byte.
fn byte(sum: i32) -> u8 {
    (sum >> BITS).clamp(0, 255) as u8
}

const HALF: i32 = 1 << (BITS - 1);

impl Image {
    /// The image resized to other sides.
    ///
    /// # Errors
    /// [`ImageError::Size`] for unsupported sides.
    pub fn resized(
        &self,
        width: usize,
        height: usize,
        filter: ResampleFilter,
    ) -> Result<Image, ImageError> {
        check_size(width, height)?;
        let fewer = |from: usize, to: usize| from as i64 - to as i64;
        let (columns, rows) = (fewer(self.width, width), fewer(self.height, height));
        match rows > 0 && rows > 2 * columns {
            true => self.with_rows(height, filter)?.with_columns(width, filter),
            false => self.with_columns(width, filter)?.with_rows(height, filter),
        }
    }

    fn with_columns(&self, width: usize, filter: ResampleFilter) -> Result<Image, ImageError> {
        check_size(width, self.height)?;
        if width == self.width {
            return Ok(self.clone());
        }
        let taps = taps(filter, self.width, width);
        let mut rgb = Vec::with_capacity(3 * width * self.height);
        for line in self.rgb.chunks_exact(3 * self.width) {
            for ResampleTaps { first, weights } in &taps {
                let mut sums = [HALF; 3];
                let pixels = line[3 * first..].chunks_exact(3);
                for (pixel, weight) in pixels.zip(weights) {
                    for (sum, x) in sums.iter_mut().zip(pixel) {
                        *sum += i32::from(*x) * weight;
                    }
                }
                rgb.extend(sums.map(byte));
            }
        }
        Image::from_rgb(width, self.height, rgb)
    }

    fn with_rows(&self, height: usize, filter: ResampleFilter) -> Result<Image, ImageError> {
        check_size(self.width, height)?;
        if height == self.height {
            return Ok(self.clone());
        }
        let row = 3 * self.width;
        let mut rgb = Vec::with_capacity(row * height);
        let mut sums = vec![HALF; row];
        for ResampleTaps { first, weights } in taps(filter, self.height, height) {
            sums.fill(HALF);
            let lines = self.rgb[first * row..].chunks_exact(row);
            for (line, weight) in lines.zip(&weights) {
                for (sum, x) in sums.iter_mut().zip(line) {
                    *sum += i32::from(*x) * weight;
                }
            }
            rgb.extend(sums.iter().map(|sum| byte(*sum)));
        }
        Image::from_rgb(self.width, height, rgb)
    }

    /// The centre of the image with these sides; a smaller image is padded with zeros.
    ///
    /// # Errors
    /// [`ImageError::Size`] for unsupported sides.
    pub fn center_cropped(&self, width: usize, height: usize) -> Result<Image, ImageError> {
        check_size(width, height)?;
        // `div_euclid` rounds the offset of the crop down, also if it is negative.
        let before = |own: usize, new: usize| (own as i64 - new as i64).div_euclid(2);
        let [left, top] = [before(self.width, width), before(self.height, height)];
        let mut rgb = vec![0; 3 * width * height];
        for (y, line) in rgb.chunks_exact_mut(3 * width).enumerate() {
            let source = usize::try_from(y as i64 + top).ok();
            let Some(source) = source.filter(|y| *y < self.height) else {
                continue;
            };
            let own = &self.rgb[3 * source * self.width..][..3 * self.width];
            let [from, to] = match usize::try_from(left) {
                Ok(left) => [left, 0],
                Err(_) => [0, left.unsigned_abs() as usize],
            };
            let count = (self.width - from).min(width - to);
            line[3 * to..][..3 * count].copy_from_slice(&own[3 * from..][..3 * count]);
        }
        Image::from_rgb(width, height, rgb)
    }
}
