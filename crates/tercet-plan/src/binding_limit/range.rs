//! Regions of tensors as index ranges per axis, and the partitioning of a tensor into regions.

use std::ops::Range;

/// A region of a tensor: one index range per axis.
pub type IndexRegion = Vec<Range<usize>>;

/// Maximum number of partitions per tensor; a tensor that would need more is not partitioned.
const MAX_PARTS: usize = 4096;

/// The region of a whole tensor.
pub fn full(sizes: &[usize]) -> IndexRegion {
    sizes.iter().map(|n| 0..*n).collect()
}

/// Number of elements of a region; `None` if the number overflows `usize`.
pub fn numel(region: &[Range<usize>]) -> Option<usize> {
    let mut lens = region.iter().map(Range::len);
    lens.try_fold(1usize, usize::checked_mul)
}

/// Intersection of two regions; `None` if it is empty.
pub(super) fn intersect(a: &[Range<usize>], b: &[Range<usize>]) -> Option<IndexRegion> {
    let both = a.iter().zip(b).map(|(a, b)| {
        let (from, to) = (a.start.max(b.start), a.end.min(b.end));
        (from < to).then_some(from..to)
    });
    both.collect()
}

/// The region with its indices relative to the start of an enclosing region.
pub(super) fn within(region: &[Range<usize>], around: &[Range<usize>]) -> IndexRegion {
    let local = |(r, a): (&Range<usize>, &Range<usize>)| r.start - a.start..r.end - a.start;
    region.iter().zip(around).map(local).collect()
}

/// Linear index of the first element of the region, in row-major order of a tensor of these sizes.
pub fn first_of(sizes: &[usize], region: &[Range<usize>]) -> usize {
    let mut at = 0;
    for (n, r) in sizes.iter().zip(region) {
        at = at * n + r.start;
    }
    at
}

/// The region that consists of the elements with these consecutive linear indices; `None` if they
/// do not form a region.
pub fn from_elements(sizes: &[usize], elements: Range<usize>) -> Option<IndexRegion> {
    let mut inner = sizes.iter().product::<usize>();
    let mut region = IndexRegion::with_capacity(sizes.len());
    let mut at = elements;
    for (axis, &n) in sizes.iter().enumerate() {
        inner /= n.max(1);
        if at.start.is_multiple_of(inner) && at.end.is_multiple_of(inner) {
            region.push(at.start / inner..at.end / inner);
            region.extend(full(&sizes[axis + 1..]));
            return Some(region);
        }
        let index = at.start / inner;
        if at.is_empty() || (at.end - 1) / inner != index {
            return None;
        }
        region.push(index..index + 1);
        at = at.start - index * inner..at.end - index * inner;
    }
    None
}

/// Specification of how to partition a tensor: size limit, alignment and axes.
pub struct PartitionSpec<'a> {
    /// Number of leading axes that may be partitioned.
    pub axes: usize,
    /// Whether a region is small enough to be a partition. If a region is small enough, every
    /// region inside it must be, too.
    pub is_small_enough: &'a dyn Fn(&IndexRegion) -> bool,
    /// Size in bytes of a region in each memory layout that the tensor may have. In all of them,
    /// partitions start at multiples of `align_bytes`.
    pub bytes: &'a dyn Fn(&IndexRegion) -> Vec<u64>,
    /// Alignment of partitions in bytes.
    pub align_bytes: u64,
    /// Whether partitions may also start at unaligned offsets.
    pub any_offset: bool,
    /// Preferred axis and number of indices per partition, used if such a partition is small
    /// enough, even if it starts at an unaligned offset.
    pub preferred_extent: Option<(usize, usize)>,
}

/// Splits a tensor into partitions, in row-major order. Each partition has a single index on the
/// leading axes, a range on the next axis, and the full extent of the remaining axes. `None` if no
/// partition is small enough.
pub fn cut(sizes: &[usize], cut: &PartitionSpec<'_>) -> Option<Vec<IndexRegion>> {
    if sizes.contains(&0) {
        return None;
    }
    for axis in 0..cut.axes.min(sizes.len()) {
        let some = |len: usize| {
            let mut region = full(sizes);
            region[..axis].fill(0..1);
            region[axis] = 0..len;
            region
        };
        if !(cut.is_small_enough)(&some(1)) {
            continue;
        }
        let n = sizes[axis];
        let (mut most, mut over) = (1, n + 1);
        while over - most > 1 {
            let middle = most.midpoint(over);
            match (cut.is_small_enough)(&some(middle)) {
                true => most = middle,
                false => over = middle,
            }
        }
        let leads: usize = sizes[..axis].iter().product();
        let like = cut
            .preferred_extent
            .filter(|(of, len)| *of == axis && *len <= most);
        let step = aligned_step(cut, &some(1), &some(n), leads > 1);
        match (step, like) {
            (_, Some((_, len))) => most = len,
            (Some(step), None) if step <= most => most = most / step * step,
            (Some(_) | None, None) if cut.any_offset || (leads == 1 && most >= n) => {}
            (Some(_) | None, None) => continue,
        }
        if leads.checked_mul(n.div_ceil(most))? > MAX_PARTS {
            return None;
        }
        let mut parts = Vec::new();
        for lead in 0..leads {
            let mut region = full(sizes);
            let mut rest = lead;
            for at in (0..axis).rev() {
                region[at] = rest % sizes[at]..rest % sizes[at] + 1;
                rest /= sizes[at];
            }
            for from in (0..n).step_by(most) {
                let mut part = region.clone();
                part[axis] = from..(from + most).min(n);
                parts.push(part);
            }
        }
        return Some(parts);
    }
    None
}

/// The number of indices along the partitioned axis must be a multiple of this value, so that
/// partitions start at aligned offsets. `None` if no such value exists, because an index of the
/// axis before covers an unaligned number of bytes.
fn aligned_step(
    cut: &PartitionSpec<'_>,
    one: &IndexRegion,
    all: &IndexRegion,
    has_leads: bool,
) -> Option<usize> {
    let is_aligned = |bytes: u64| bytes.is_multiple_of(cut.align_bytes);
    if has_leads && !(cut.bytes)(all).into_iter().all(is_aligned) {
        return None;
    }
    let step = |bytes: u64| {
        cut.align_bytes >> bytes.trailing_zeros().min(cut.align_bytes.trailing_zeros())
    };
    let steps = (cut.bytes)(one).into_iter().map(step);
    usize::try_from(steps.max().unwrap_or(1)).ok()
}
