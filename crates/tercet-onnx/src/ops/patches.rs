//! `Col2Im`: combines patches into an image.

use tercet_ir::ops::{PadMode, ReduceFn};
use tercet_ir::{Dim, MAX_RANK, Tensor, Value, next_index};

use super::rearrange::padded;
use super::shape::reshaped;
use super::{OpsetEntry, op};
use crate::call::{ImportNode, NodeOutputs, one, unsigned};
use crate::error::NodeErrorKind;

pub(crate) const TABLE: &[OpsetEntry] = &[op("Col2Im", 18, col2im)];

/// The most elements of a block and residue classes of strides for which the import adds shifted images.
const MAX_PARTS: usize = 256;

/// The geometry of patches along each spatial axis.
struct PatchGeometry {
    image: Vec<usize>,
    block: Vec<usize>,
    dilations: Vec<usize>,
    strides: Vec<usize>,
    begins: Vec<usize>,
    /// The number of patches along each axis.
    places: Vec<usize>,
}

impl PatchGeometry {
    fn new(k: &ImportNode<'_, '_>) -> Result<PatchGeometry, NodeErrorKind> {
        let (image, block) = (
            unsigned("image_shape", &k.ints(1)?)?,
            unsigned("block_shape", &k.ints(2)?)?,
        );
        let axes = image.len();
        let list = |name: &str, len: usize, default: usize| match k.attrs.ints_opt(name)? {
            Some(list) => unsigned(name, list),
            None => Ok(vec![default; len]),
        };
        let (dilations, strides) = (list("dilations", axes, 1)?, list("strides", axes, 1)?);
        let pads = list("pads", 2 * axes, 0)?;
        let whole = [block.len(), dilations.len(), strides.len()];
        let positive = |list: &[usize]| list.iter().all(|n| (1..=1 << 24).contains(n));
        if whole.iter().any(|n| *n != axes)
            || pads.len() != 2 * axes
            || pads.iter().any(|n| *n > 1 << 24)
            || [&image, &block, &dilations, &strides]
                .into_iter()
                .any(|l| !positive(l))
        {
            return Err(NodeErrorKind::unsupported(
                "sizes, strides, dilations and pads are inconsistent",
            ));
        }
        let mut places = Vec::with_capacity(axes);
        for a in 0..axes {
            let padded = image[a] + pads[a] + pads[a + axes];
            let reach = dilations[a] * (block[a] - 1) + 1;
            let room = padded.checked_sub(reach);
            let room =
                room.ok_or_else(|| NodeErrorKind::unsupported("blocks are larger than the image"))?;
            places.push(room / strides[a] + 1);
        }
        Ok(PatchGeometry {
            begins: pads[..axes].to_vec(),
            image,
            block,
            dilations,
            strides,
            places,
        })
    }

    /// For each image element, the indices of the patch elements that are summed into it.
    fn sources(&self) -> Vec<Vec<usize>> {
        let count: usize = self.image.iter().product();
        let mut sources = vec![Vec::new(); count];
        let (blocks, places) = (self.block.iter().product(), self.places.iter().product());
        let mut within = vec![0; self.block.len()];
        for b in 0..blocks {
            let mut place = vec![0; self.places.len()];
            for p in 0..places {
                if let Some(at) = self.target(&within, &place) {
                    sources[at].push(b * places + p);
                }
                next_index(&mut place, &self.places);
            }
            next_index(&mut within, &self.block);
        }
        sources
    }

    /// The image element of a patch element; `None` in the padding.
    fn target(&self, within: &[usize], place: &[usize]) -> Option<usize> {
        let mut at = 0;
        for a in 0..self.image.len() {
            let padded = place[a] * self.strides[a] + within[a] * self.dilations[a];
            let own = padded
                .checked_sub(self.begins[a])
                .filter(|i| *i < self.image[a])?;
            at = at * self.image[a] + own;
        }
        Some(at)
    }
}

/// Each image element is the sum of the patch elements on it.
fn col2im(k: &mut ImportNode<'_, '_>) -> NodeOutputs {
    let x = k.x(0)?;
    let geometry = PatchGeometry::new(k)?;
    let dims = k.dims(x);
    let block: usize = geometry.block.iter().product();
    let places: usize = geometry.places.iter().product();
    if dims.len() != 3 || k.size(x, 2)? != places || k.size(x, 1)? % block != 0 {
        let reason = format!(
            "{} does not have the shape of {places} patches of {block} elements",
            k.ty(x)
        );
        return Err(NodeErrorKind::operand(0, reason));
    }
    let channels = k.size(x, 1)? / block;
    let flat = [dims[0].clone(), Dim::Known(channels)];
    let classes = geometry
        .strides
        .iter()
        .fold(1usize, |n, s| n.saturating_mul(*s));
    let rank = 2 + 2 * geometry.image.len();
    if block.saturating_add(classes) <= MAX_PARTS && rank <= MAX_RANK {
        return one(added(k, x, &geometry, flat)?);
    }
    one(gathered(k, x, &geometry, flat)?)
}

/// Sums of shifted patch elements, for patches that are given by few elements: the elements at one position of all
/// patches form an image. Positions with equal remainders by the strides are added in one class, and the classes are
/// interleaved.
fn added(
    k: &mut ImportNode<'_, '_>,
    x: Value,
    geometry: &PatchGeometry,
    flat: [Dim; 2],
) -> Result<Value, NodeErrorKind> {
    let axes = geometry.image.len();
    let known = |sizes: &[usize]| sizes.iter().map(|n| Dim::Known(*n)).collect::<Vec<Dim>>();
    let shape = |sizes: &[usize]| [flat.to_vec(), known(sizes)].concat();
    let block: usize = geometry.block.iter().product();
    let apart = [&[block], geometry.places.as_slice()].concat();
    let apart = reshaped(k.g(), x, &shape(&apart))?;
    // The shift of the last element of a block, and the sizes of a class.
    let shift = |axis: usize, at: usize| at * geometry.dilations[axis] / geometry.strides[axis];
    let most: Vec<usize> = (0..axes).map(|a| shift(a, geometry.block[a] - 1)).collect();
    let sizes: Vec<usize> = (0..axes).map(|a| geometry.places[a] + most[a]).collect();
    let classes: usize = geometry.strides.iter().product();
    let mut class = vec![0; axes];
    let mut sums = Vec::with_capacity(classes);
    for _ in 0..classes {
        let mut sum = None;
        let mut within = vec![0; axes];
        for nth in 0..block {
            let is_in =
                |a: usize| within[a] * geometry.dilations[a] % geometry.strides[a] == class[a];
            if (0..axes).all(is_in) {
                let part = k.g().narrow(apart, 2, nth, 1)?;
                let part = reshaped(k.g(), part, &shape(&geometry.places))?;
                let (mut before, mut after) = (vec![0; 2 + axes], vec![0; 2 + axes]);
                for a in 0..axes {
                    before[2 + a] = shift(a, within[a]);
                    after[2 + a] = most[a] - before[2 + a];
                }
                let part = match most.iter().all(|n| *n == 0) {
                    true => part,
                    false => k.g().pad(part, &before, &after, PadMode::Constant, 0.0)?,
                };
                sum = Some(match sum {
                    Some(sum) => k.g().plus(sum, part)?,
                    None => part,
                });
            }
            next_index(&mut within, &geometry.block);
        }
        sums.push(match sum {
            Some(sum) => sum,
            None => {
                let zero = k.like(x, 0.0)?;
                k.g().expand(zero, shape(&sizes))?
            }
        });
        next_index(&mut class, &geometry.strides);
    }
    let wide: Vec<usize> = (0..axes).map(|a| sizes[a] * geometry.strides[a]).collect();
    let y = match sums.as_slice() {
        [one] => *one,
        _ => {
            for sum in &mut sums {
                *sum = k.g().unsqueeze(*sum, 2)?;
            }
            let all = k.g().concat(&sums, 2)?;
            let split = [geometry.strides.as_slice(), &sizes].concat();
            let all = reshaped(k.g(), all, &shape(&split))?;
            let pairs = (0..axes).flat_map(|a| [2 + axes + a, 2 + a]);
            let order: Vec<usize> = [0, 1].into_iter().chain(pairs).collect();
            let all = k.g().transpose(all, &order)?;
            reshaped(k.g(), all, &shape(&wide))?
        }
    };
    // The image lies between the pads.
    let (mut before, mut after) = (vec![0i64; 2 + axes], vec![0i64; 2 + axes]);
    for a in 0..axes {
        before[2 + a] = -(geometry.begins[a] as i64);
        after[2 + a] = (geometry.begins[a] + geometry.image[a]) as i64 - wide[a] as i64;
    }
    padded(k.g(), y, &before, &after, PadMode::Constant, 0.0)
}

/// Gathers the patch elements of each image element; missing ones come from an appended zero element.
fn gathered(
    k: &mut ImportNode<'_, '_>,
    x: Value,
    geometry: &PatchGeometry,
    [batch, channels]: [Dim; 2],
) -> Result<Value, NodeErrorKind> {
    let block: usize = geometry.block.iter().product();
    let places: usize = geometry.places.iter().product();
    let all = block.saturating_mul(places);
    let pixels = geometry
        .image
        .iter()
        .fold(1usize, |n, size| n.saturating_mul(*size));
    if all.max(pixels) > 1 << 22 || !k.c.spend(all.saturating_add(pixels)) {
        return Err(NodeErrorKind::unsupported("there are too many patches"));
    }
    let sources = geometry.sources();
    let most = sources.iter().map(Vec::len).max().unwrap_or(0).max(1);
    if sources.len().saturating_mul(most) > 1 << 24 || !k.c.spend(sources.len() * most) {
        return Err(NodeErrorKind::unsupported("the patches overlap too much"));
    }
    let index = |list: &Vec<usize>| -> Vec<i64> {
        let own = list.iter().map(|i| *i as i64);
        own.chain(std::iter::repeat(all as i64))
            .take(most)
            .collect()
    };
    let index: Vec<i64> = sources.iter().flat_map(index).collect();
    let flat = [batch, channels, Dim::Known(all)];
    let y = reshaped(k.g(), x, &flat)?;
    let zero = k.like(x, 0.0)?;
    let zero = k
        .g()
        .expand(zero, [flat[0].clone(), flat[1].clone(), Dim::Known(1)])?;
    let y = k.g().concat(&[y, zero], 2)?;
    let index = k
        .g()
        .constant(Tensor::from_slice(&[index.len()], &index)?)?;
    let y = k.g().gather(y, index, 2)?;
    let wide = [
        flat[0].clone(),
        flat[1].clone(),
        Dim::Known(sources.len()),
        Dim::Known(most),
    ];
    let y = reshaped(k.g(), y, &wide)?;
    let y = k.g().reduce(ReduceFn::Sum, y, &[3], false)?;
    let mut result = vec![flat[0].clone(), flat[1].clone()];
    result.extend(geometry.image.iter().map(|n| Dim::Known(*n)));
    reshaped(k.g(), y, &result)
}
