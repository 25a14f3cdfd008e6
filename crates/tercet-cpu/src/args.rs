//! Arguments of a kernel call: operand views, result views and scratch memory.

use std::any::{Any, TypeId};

use bytemuck::cast_slice;
use smallvec::SmallVec;
use tercet_ir::layout::Layout;
use tercet_ir::{DType, Element, EvalCtx};

/// Type of a packed operand.
pub trait PackedForm: Any + Send + Sync {
    /// All of its contents, except what follows from the type and the length.
    fn bytes(&self) -> &[u8];
}

/// Packed form of a constant operand, for example prepacked weights. Computed once.
pub struct PackedConst(Box<dyn PackedForm>);

impl PackedConst {
    /// The packed form of an operand.
    pub fn new(form: impl PackedForm) -> PackedConst {
        PackedConst(Box::new(form))
    }

    /// The packed form, if it has this type.
    pub fn downcast_ref<T: PackedForm>(&self) -> Option<&T> {
        let form: &dyn Any = &*self.0;
        form.downcast_ref()
    }

    /// Type and bytes; operands with equal contents replace each other.
    pub(crate) fn contents(&self) -> (TypeId, &[u8]) {
        let form: &dyn Any = &*self.0;
        (form.type_id(), self.0.bytes())
    }
}

/// View of an operand: the bytes of its memory root and the layout of its elements there.
#[derive(Clone, Copy)]
pub struct KernelView<'a> {
    /// All bytes of the root, aligned for the dtype. Empty if the operand was packed or shares the
    /// memory of a result.
    pub root: &'a [u8],
    /// Index of the result whose memory an operand with an empty `root` shares.
    pub within: u8,
    /// Element type.
    pub dtype: DType,
    /// Sizes, and strides in elements.
    pub layout: &'a Layout,
}

impl<'a> KernelView<'a> {
    /// Sizes of the axes.
    pub(crate) fn shape(&self) -> &'a [usize] {
        self.layout.shape()
    }

    /// Elements of a dense view.
    pub(crate) fn dense<T: Element>(&self) -> &'a [T] {
        cast_slice(self.dense_bytes())
    }

    /// Bytes of a dense view.
    pub(crate) fn dense_bytes(&self) -> &'a [u8] {
        debug_assert!(self.layout.is_dense());
        let size = self.dtype.size_bytes();
        let start = self.layout.offset * size;
        &self.root[start..start + self.layout.numel() * size]
    }

    /// Elements of the root as `T`; `T` must have the size of the dtype.
    pub(crate) fn root_as<T: bytemuck::Pod>(&self) -> &'a [T] {
        let whole = self.root.len() / size_of::<T>() * size_of::<T>();
        cast_slice(&self.root[..whole])
    }

    /// Elements from the view's offset to the end of the root.
    pub(crate) fn tail<T: Element>(&self) -> &'a [T] {
        if self.layout.numel() == 0 {
            return &[];
        }
        &self.root_as()[self.layout.offset..]
    }
}

/// View of a result; results are always dense.
pub(crate) struct KernelViewMut<'a> {
    /// Exactly the bytes of the result.
    pub(crate) bytes: &'a mut [u8],
    /// Element type.
    pub(crate) dtype: DType,
    /// Sizes of the result.
    pub(crate) layout: &'a Layout,
}

impl KernelViewMut<'_> {
    /// Sizes of the axes.
    pub(crate) fn shape(&self) -> &[usize] {
        self.layout.shape()
    }

    /// Mutable elements of the result.
    pub(crate) fn as_mut<T: Element>(&mut self) -> &mut [T] {
        bytemuck::cast_slice_mut(self.bytes)
    }
}

/// Arguments of one kernel call.
pub(crate) struct KernelArgs<'a> {
    /// Evaluation context: inputs of the evaluation besides the operands.
    pub(crate) ctx: EvalCtx,
    /// True if the kernel may use the other threads of the current pool.
    pub(crate) parallel: bool,
    /// Operands in order. An operand that was packed, or that shares the memory of a result, has an
    /// empty root.
    pub(crate) ins: SmallVec<[KernelView<'a>; 8]>,
    /// Results in order.
    pub(crate) outs: SmallVec<[KernelViewMut<'a>; 3]>,
    /// Scratch memory of the size that the kernel requested, aligned to 64 bytes; its contents are
    /// unspecified.
    pub(crate) scratch: &'a mut [u8],
    /// Packed operand, if the kernel packs one and it is constant.
    pub(crate) packed: Option<&'a PackedConst>,
}
