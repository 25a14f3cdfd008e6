//! What a kernel gets when it runs: views of its operands, its results, and scratch memory.

use std::any::Any;

use bytemuck::cast_slice;
use smallvec::SmallVec;
use tercet_ir::layout::Layout;
use tercet_ir::{DType, Element, EvalCtx};

/// What a kernel makes of a constant operand once: packed weights.
pub(crate) type Packed = Box<dyn Any + Send + Sync>;

/// An operand: bytes of its root and where the elements lie in them.
#[derive(Clone, Copy)]
pub(crate) struct View<'a> {
    /// The whole root, aligned for the dtype; nothing where it was packed, or lies in a result.
    pub(crate) root: &'a [u8],
    /// The result that an operand without a root lies in.
    pub(crate) within: u8,
    /// The element type.
    pub(crate) dtype: DType,
    /// Sizes and strides in elements.
    pub(crate) layout: &'a Layout,
}

impl<'a> View<'a> {
    /// The sizes.
    pub(crate) fn shape(&self) -> &'a [usize] {
        self.layout.shape()
    }

    /// The elements of a view that is dense.
    pub(crate) fn dense<T: Element>(&self) -> &'a [T] {
        cast_slice(self.dense_bytes())
    }

    /// The bytes of a view that is dense.
    pub(crate) fn dense_bytes(&self) -> &'a [u8] {
        debug_assert!(self.layout.is_dense());
        let size = self.dtype.size_bytes();
        let start = self.layout.offset * size;
        &self.root[start..start + self.layout.numel() * size]
    }

    /// The elements of the root as `T`, which has the dtype's size.
    pub(crate) fn root_as<T: bytemuck::Pod>(&self) -> &'a [T] {
        let whole = self.root.len() / size_of::<T>() * size_of::<T>();
        cast_slice(&self.root[..whole])
    }

    /// The elements from index zero to the end of the root.
    pub(crate) fn tail<T: Element>(&self) -> &'a [T] {
        if self.layout.numel() == 0 {
            return &[];
        }
        &self.root_as()[self.layout.offset..]
    }
}

/// A result, always dense.
pub(crate) struct ViewMut<'a> {
    /// Exactly the bytes of the result.
    pub(crate) bytes: &'a mut [u8],
    /// The element type.
    pub(crate) dtype: DType,
    /// The sizes.
    pub(crate) layout: &'a Layout,
}

impl ViewMut<'_> {
    /// The sizes.
    pub(crate) fn shape(&self) -> &[usize] {
        self.layout.shape()
    }

    /// The elements.
    pub(crate) fn as_mut<T: Element>(&mut self) -> &mut [T] {
        bytemuck::cast_slice_mut(self.bytes)
    }
}

/// The arguments of one kernel call.
pub(crate) struct Args<'a> {
    /// What evaluation depends on besides operands.
    pub(crate) ctx: EvalCtx,
    /// Whether the kernel may spread over the current pool.
    pub(crate) parallel: bool,
    /// The operands in order; one that was packed, or lies in the result, has an empty root.
    pub(crate) ins: SmallVec<[View<'a>; 8]>,
    /// The results in order.
    pub(crate) outs: SmallVec<[ViewMut<'a>; 3]>,
    /// Scratch memory of the size that the kernel asked for, 64-byte aligned, contents unspecified.
    pub(crate) scratch: &'a mut [u8],
    /// The packed operand, where the kernel packs one and it is constant.
    pub(crate) packed: Option<&'a Packed>,
}
