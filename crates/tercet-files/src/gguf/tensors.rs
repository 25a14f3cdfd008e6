//! The tensor table: dimensions, types and byte ranges, validated against the file.

use std::ops::Range;
use std::path::PathBuf;

use super::cursor::GgufCursor;
use super::error::GgufError;
use super::types::GgmlType;
use crate::foreign::clip;
use crate::mmap::MappedFile;

/// Minimum size of an entry: a name of one character, its length, a dimension count, a type and an
/// offset.
pub(super) const MIN_INFO_BYTES: u64 = 8 + 1 + 4 + 4 + 8;
const MAX_DIMS: u32 = 4;

/// One tensor of a GGUF file.
///
/// ```
/// # let mut bytes = b"GGUF".to_vec();
/// # bytes.extend(3u32.to_le_bytes());
/// # bytes.extend(1u64.to_le_bytes()); // tensors
/// # bytes.extend(0u64.to_le_bytes()); // metadata keys
/// # bytes.extend(1u64.to_le_bytes());
/// # bytes.extend(b"x");
/// # bytes.extend(2u32.to_le_bytes()); // number of dimensions
/// # bytes.extend(4u64.to_le_bytes());
/// # bytes.extend(2u64.to_le_bytes());
/// # bytes.extend(0u32.to_le_bytes()); // the type: F32
/// # bytes.extend(0u64.to_le_bytes()); // offset in the data section
/// # bytes.resize(bytes.len().next_multiple_of(32) + 32, 0);
/// use tercet_files::gguf::{GgmlType, Gguf, GgufTensorInfo};
/// let gguf = Gguf::parse(tercet_files::MappedFile::from_vec(bytes))?;
/// let info: &GgufTensorInfo = gguf.tensor("x")?;
/// assert_eq!((info.ggml_type(), info.element_count()), (GgmlType::F32, 8));
/// assert_eq!((info.dims(), info.shape()), (&[4, 2][..], vec![2, 4]));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct GgufTensorInfo {
    name: Box<str>,
    dims: Box<[u64]>,
    ggml_type: GgmlType,
    declared_at: usize,
    part: usize,
    range: Range<usize>,
}

impl GgufTensorInfo {
    /// The name of the tensor.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The storage format of the elements.
    #[must_use]
    pub fn ggml_type(&self) -> GgmlType {
        self.ggml_type
    }

    /// The dimensions in file order: the contiguous dimension (the row) first.
    #[must_use]
    pub fn dims(&self) -> &[u64] {
        &self.dims
    }

    /// The dimensions in row-major order: `[rows, row elements]` for a matrix.
    #[must_use]
    pub fn shape(&self) -> Vec<usize> {
        // The product of the dimensions fits 63 bits, so each dimension does.
        self.dims.iter().rev().map(|dim| *dim as usize).collect()
    }

    /// Number of elements.
    #[must_use]
    pub fn element_count(&self) -> u64 {
        self.dims.iter().product()
    }

    /// Size of one row (the contiguous dimension), in bytes.
    #[must_use]
    pub fn row_bytes(&self) -> u64 {
        let row = self.dims.first().copied().unwrap_or(1);
        row / self.ggml_type.block_len() * self.ggml_type.block_bytes()
    }

    /// Index of the file that contains the tensor, from 0.
    #[must_use]
    pub fn part(&self) -> usize {
        self.part
    }

    /// Byte range of the data in its file.
    #[must_use]
    pub fn range(&self) -> Range<usize> {
        self.range.clone()
    }
}

/// All tensors of a file in file order, with an index by name.
#[derive(Clone, Debug)]
pub(super) struct GgufTensors {
    infos: Vec<GgufTensorInfo>,
    /// Indices into `infos`, sorted by name.
    by_name: Vec<u32>,
}

impl GgufTensors {
    pub(super) fn read(
        cursor: &mut GgufCursor<'_>,
        count: u64,
        alignment: u64,
        file: &MappedFile,
    ) -> Result<Self, GgufError> {
        // The count was checked before the metadata was read; the bytes after the metadata give a
        // tighter bound.
        let room = cursor.remaining_len() / MIN_INFO_BYTES;
        let mut declared = Vec::with_capacity(count.min(room) as usize);
        for index in 0..count {
            declared.push(GgufTensorDecl::read(cursor, index)?);
        }
        // The alignment is at most 2^30 and the position is a file offset, so this cannot overflow.
        let data_begin = cursor.offset().next_multiple_of(alignment);
        let infos = declared
            .into_iter()
            .map(|tensor| tensor.place(data_begin, alignment, file.len() as u64))
            .collect::<Result<Vec<_>, _>>()?;
        let by_name = sorted_by_name(&infos)?;
        check_overlaps(&infos)?;
        Ok(Self { infos, by_name })
    }

    /// The tensors of all parts of a split model. `paths` are the paths of the parts, in order.
    pub(super) fn joined(parts: Vec<GgufTensors>, paths: &[PathBuf]) -> Result<Self, GgufError> {
        let mut infos = Vec::new();
        for (part, tensors) in parts.into_iter().enumerate() {
            infos.extend(
                tensors
                    .infos
                    .into_iter()
                    .map(|t| GgufTensorInfo { part, ..t }),
            );
        }
        let by_name = names(&infos);
        match duplicate(&infos, &by_name) {
            // The sort is stable, so the later part is second.
            Some((first, second)) => Err(GgufError::PartMismatch {
                path: paths[second.part].clone(),
                reason: format!(
                    "it has tensor `{}`, as part {} has",
                    clip(&second.name),
                    first.part + 1
                ),
            }),
            None => Ok(Self { infos, by_name }),
        }
    }

    pub(super) fn infos(&self) -> &[GgufTensorInfo] {
        &self.infos
    }

    pub(super) fn find(&self, name: &str) -> Option<&GgufTensorInfo> {
        let at = self
            .by_name
            .binary_search_by_key(&name, |index| self.infos[*index as usize].name())
            .ok()?;
        self.infos.get(self.by_name[at] as usize)
    }
}

/// A tensor entry before the offset of the data section is known.
struct GgufTensorDecl<'a> {
    name: &'a str,
    name_at: usize,
    dims: Vec<u64>,
    ggml_type: GgmlType,
    bytes: u64,
    relative: u64,
    relative_at: u64,
}

impl<'a> GgufTensorDecl<'a> {
    fn read(cursor: &mut GgufCursor<'a>, index: u64) -> Result<Self, GgufError> {
        let name = cursor.string(|| format!("the name of tensor {index}"))?;
        let name_at = cursor.pos() - name.len();
        if name.is_empty() {
            return Err(GgufError::EmptyName {
                what: "a tensor name",
                offset: name_at as u64,
            });
        }
        let dims_at = cursor.offset();
        let dims = read_dims(cursor, name)?;
        let ggml_type = read_type(cursor, name)?;
        let bytes = byte_count(name, &dims, dims_at, ggml_type)?;
        let relative_at = cursor.offset();
        let relative = cursor.u64(|| format!("the data offset of tensor `{}`", clip(name)))?;
        Ok(Self {
            name,
            name_at,
            dims,
            ggml_type,
            bytes,
            relative,
            relative_at,
        })
    }

    fn place(
        self,
        data_begin: u64,
        alignment: u64,
        file_len: u64,
    ) -> Result<GgufTensorInfo, GgufError> {
        if !self.relative.is_multiple_of(alignment) {
            return Err(GgufError::UnalignedTensor {
                tensor: clip(self.name),
                offset: self.relative_at,
                relative: self.relative,
                alignment,
            });
        }
        let begin = data_begin.saturating_add(self.relative);
        let end = begin
            .checked_add(self.bytes)
            .filter(|end| *end <= file_len)
            .ok_or_else(|| GgufError::TensorOutOfFile {
                tensor: clip(self.name),
                begin,
                bytes: self.bytes,
                file_len,
            })?;
        Ok(GgufTensorInfo {
            name: self.name.into(),
            dims: self.dims.into(),
            ggml_type: self.ggml_type,
            declared_at: self.name_at,
            part: 0,
            // Both casts are lossless: the values are offsets inside the mapped file.
            range: begin as usize..end as usize,
        })
    }
}

fn read_dims(cursor: &mut GgufCursor<'_>, name: &str) -> Result<Vec<u64>, GgufError> {
    let offset = cursor.offset();
    let count = cursor.u32(|| format!("the dimension count of tensor `{}`", clip(name)))?;
    if count > MAX_DIMS {
        return Err(GgufError::TooManyDims {
            tensor: clip(name),
            offset,
            found: count,
            max: MAX_DIMS,
        });
    }
    (0..count)
        .map(|_| cursor.u64(|| format!("the dimensions of tensor `{}`", clip(name))))
        .collect()
}

fn read_type(cursor: &mut GgufCursor<'_>, name: &str) -> Result<GgmlType, GgufError> {
    let offset = cursor.offset();
    let found = cursor.u32(|| format!("the type of tensor `{}`", clip(name)))?;
    GgmlType::from_id(found).ok_or_else(|| GgufError::UnknownTensorType {
        tensor: clip(name),
        offset,
        found,
        why: match GgmlType::removed_name(found) {
            Some(removed) => format!(
                "was {removed} and is no longer part of the format; quantise the model again"
            ),
            None => "is not in ggml's list of types, as with types of other forks; quantise the model again \
                     with llama.cpp, or use a newer version of this reader"
                .to_owned(),
        },
    })
}

/// The size of a tensor in bytes. A dimension may be 0, but the other dimensions are still checked,
/// because strides are computed from them.
fn byte_count(name: &str, dims: &[u64], offset: u64, ty: GgmlType) -> Result<u64, GgufError> {
    let overflow = || GgufError::DimsOverflow {
        tensor: clip(name),
        offset,
        dims: dims.to_vec(),
    };
    let row = dims.first().copied().unwrap_or(1);
    if !row.is_multiple_of(ty.block_len()) {
        return Err(GgufError::PartialBlock {
            tensor: clip(name),
            row,
            ty,
            block: ty.block_len(),
        });
    }
    let span = dims
        .iter()
        .try_fold(1_u64, |product, dim| product.checked_mul((*dim).max(1)))
        .and_then(|elements| elements.checked_mul(8))
        .filter(|bits| i64::try_from(*bits).is_ok())
        .ok_or_else(overflow)?;
    if dims.contains(&0) {
        return Ok(0);
    }
    (span / 8 / ty.block_len())
        .checked_mul(ty.block_bytes())
        .ok_or_else(overflow)
}

/// Indices of the tensors, sorted by name.
fn names(infos: &[GgufTensorInfo]) -> Vec<u32> {
    let mut by_name: Vec<u32> = (0..infos.len() as u32).collect();
    by_name.sort_by_key(|index| infos[*index as usize].name());
    by_name
}

/// Finds two tensors with the same name.
fn duplicate<'a>(
    infos: &'a [GgufTensorInfo],
    by_name: &[u32],
) -> Option<(&'a GgufTensorInfo, &'a GgufTensorInfo)> {
    by_name
        .windows(2)
        .map(|pair| (&infos[pair[0] as usize], &infos[pair[1] as usize]))
        .find(|(a, b)| a.name == b.name)
}

fn sorted_by_name(infos: &[GgufTensorInfo]) -> Result<Vec<u32>, GgufError> {
    let by_name = names(infos);
    match duplicate(infos, &by_name) {
        Some((a, b)) => Err(GgufError::DuplicateTensor {
            tensor: clip(&a.name),
            first: a.declared_at as u64,
            second: b.declared_at as u64,
        }),
        None => Ok(by_name),
    }
}

fn check_overlaps(infos: &[GgufTensorInfo]) -> Result<(), GgufError> {
    let mut by_begin: Vec<&GgufTensorInfo> = infos.iter().filter(|t| !t.range.is_empty()).collect();
    by_begin.sort_by_key(|tensor| tensor.range.start);
    for pair in by_begin.windows(2) {
        if pair[0].range.end > pair[1].range.start {
            return Err(GgufError::OverlappingTensors {
                first: clip(&pair[0].name),
                first_end: pair[0].range.end as u64,
                second: clip(&pair[1].name),
                second_begin: pair[1].range.start as u64,
            });
        }
    }
    Ok(())
}
