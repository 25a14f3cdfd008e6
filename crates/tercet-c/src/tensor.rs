//! Tensors on the host: owned copies, and borrowed memory of the caller.

use std::ffi::{c_char, c_void};
use std::sync::Arc;

use tercet::{DType, MAX_RANK, Tensor, TensorType};

use crate::boundary::Caller;
use crate::error::{CallError, TercetError, TercetStatus};
use crate::handles::{self, HandleObject};

/// Element types. Functions take them as `int32_t`, so that an unknown number is an error.
#[repr(i32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TercetDtype {
    /// No dtype: unknown, or the default of an option.
    None = 0,
    /// IEEE 754 binary32.
    F32 = 1,
    /// IEEE 754 binary16.
    F16 = 2,
    /// The upper half of a binary32.
    Bf16 = 3,
    /// IEEE 754 binary64.
    F64 = 4,
    /// 32-bit signed integer.
    I32 = 5,
    /// 32-bit unsigned integer.
    U32 = 6,
    /// 64-bit signed integer.
    I64 = 7,
    /// 8-bit signed integer.
    I8 = 8,
    /// 8-bit unsigned integer.
    U8 = 9,
    /// One byte, 0 or 1.
    Bool = 10,
    /// 16-bit signed integer.
    I16 = 11,
}

/// A tensor on the host: dtype, shape and elements, which never change.
pub struct TercetTensor {
    _opaque: (),
}

/// The contents of a tensor. The pointers are valid until the tensor is freed.
#[repr(C)]
pub struct TercetTensorView {
    /// A TercetDtype.
    pub dtype: i32,
    /// Number of axes.
    pub rank: usize,
    /// Sizes of the axes, outermost first.
    pub shape: *const usize,
    /// Elements in row-major order, aligned for the dtype.
    pub data: *const c_void,
    /// Number of bytes of the elements.
    pub bytes: usize,
}

/// Called once, on any thread, when the library no longer reads borrowed memory.
pub type TercetReleaseCallback = Option<unsafe extern "C" fn(user: *mut c_void)>;

/// The object of a `TercetTensor`.
pub(crate) struct TensorObject(pub(crate) Tensor);

impl HandleObject for TensorObject {
    const TYPE: &'static str = "TercetTensor";
    type Opaque = TercetTensor;
}

/// The constant of a dtype.
pub(crate) fn constant_of(dtype: DType) -> TercetDtype {
    match dtype {
        DType::F32 => TercetDtype::F32,
        DType::F16 => TercetDtype::F16,
        DType::BF16 => TercetDtype::Bf16,
        DType::F64 => TercetDtype::F64,
        DType::I32 => TercetDtype::I32,
        DType::U32 => TercetDtype::U32,
        DType::I64 => TercetDtype::I64,
        DType::I16 => TercetDtype::I16,
        DType::I8 => TercetDtype::I8,
        DType::U8 => TercetDtype::U8,
        DType::Bool => TercetDtype::Bool,
    }
}

/// The dtype of a constant.
///
/// # Errors
/// `TERCET_STATUS_ARGUMENT`.
pub(crate) fn dtype_of(dtype: i32) -> Result<DType, CallError> {
    let mut all = DType::ALL.iter().copied();
    let found = all.find(|known| constant_of(*known) as i32 == dtype);
    found.ok_or_else(|| {
        CallError::argument(format!(
            "`dtype` is {dtype}; expected a constant of TercetDtype, from 1 to {}",
            DType::ALL.len()
        ))
    })
}

/// Bytes of one element; 0 if `dtype` is not a TercetDtype.
#[unsafe(no_mangle)]
pub extern "C" fn tercet_dtype_size(dtype: i32) -> usize {
    dtype_of(dtype).map_or(0, DType::size_bytes)
}

/// Name of a dtype in the text form, such as "f32": a text that stays valid; "none" for other numbers.
#[unsafe(no_mangle)]
pub extern "C" fn tercet_dtype_name(dtype: i32) -> *const c_char {
    let name = match dtype_of(dtype) {
        Ok(DType::F32) => c"f32",
        Ok(DType::F16) => c"f16",
        Ok(DType::BF16) => c"bf16",
        Ok(DType::F64) => c"f64",
        Ok(DType::I32) => c"i32",
        Ok(DType::U32) => c"u32",
        Ok(DType::I64) => c"i64",
        Ok(DType::I16) => c"i16",
        Ok(DType::I8) => c"i8",
        Ok(DType::U8) => c"u8",
        Ok(DType::Bool) => c"bool",
        Err(_) => c"none",
    };
    name.as_ptr()
}

/// The type of a tensor from arguments.
fn type_of(
    caller: &Caller,
    dtype: i32,
    shape: *const usize,
    rank: usize,
) -> Result<TensorType, CallError> {
    let dtype = dtype_of(dtype)?;
    if rank > MAX_RANK {
        return Err(CallError::argument(format!(
            "`rank` is {rank}; expected at most {MAX_RANK}"
        )));
    }
    Ok(TensorType::new(dtype, caller.array(shape, rank, "shape")?))
}

/// Creates a tensor with a copy of `bytes` bytes at `data`: the elements in row-major order, of any alignment. `shape`
/// has `rank` sizes; with rank 0 the tensor is a scalar, and `shape` may be NULL.
///
/// Errors: TERCET_STATUS_ARGUMENT for an unknown dtype or rank, TERCET_STATUS_TYPE if `bytes` is not the size of the
/// type, TERCET_STATUS_MEMORY.
///
/// Threads: several threads can use a tensor at once. Free it with `tercet_free`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tercet_tensor_new(
    dtype: i32,
    shape: *const usize,
    rank: usize,
    data: *const c_void,
    bytes: usize,
    tensor: *mut *mut TercetTensor,
    error: *mut *mut TercetError,
) -> TercetStatus {
    // SAFETY: the caller keeps the rules of the header.
    let caller = unsafe { Caller::new(error) };
    caller.guard(|caller| {
        let place = caller.out_handle(tensor, "tensor")?;
        let ty = type_of(caller, dtype, shape, rank)?;
        check_bytes(&ty, bytes)?;
        let data = caller.elements(data.cast::<u8>(), bytes, "data")?;
        place.create(TensorObject(Tensor::from_bytes(ty, data)?))
    })
}

/// Creates a tensor over memory of the caller without a copy. The memory must stay valid and unchanged until the
/// library calls `release` with `user`: after the tensor was freed, and after the last session that has it as a
/// parameter. With `release` NULL, the memory must stay valid and unchanged until then.
///
/// Elements that are not aligned for the dtype, and booleans, are copied, and `release` may be called at once. If the
/// call fails, `release` is not called.
///
/// Errors and threads: those of `tercet_tensor_new`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tercet_tensor_borrow(
    dtype: i32,
    shape: *const usize,
    rank: usize,
    data: *const c_void,
    bytes: usize,
    release: TercetReleaseCallback,
    user: *mut c_void,
    tensor: *mut *mut TercetTensor,
    error: *mut *mut TercetError,
) -> TercetStatus {
    // SAFETY: the caller keeps the rules of the header.
    let caller = unsafe { Caller::new(error) };
    caller.guard(|caller| {
        let place = caller.out_handle(tensor, "tensor")?;
        let ty = type_of(caller, dtype, shape, rank)?;
        check_bytes(&ty, bytes)?;
        caller.elements(data.cast::<u8>(), bytes, "data")?;
        let lent = Arc::new(LentMemory {
            data: data.cast(),
            bytes,
            release: std::sync::Mutex::new(None),
            user,
        });
        let tensor = Tensor::from_owner(ty, Arc::clone(&lent) as _, 0..bytes)?;
        tensor.align()?;
        place.create(TensorObject(tensor))?;
        // The call has succeeded, so the memory is released from now on.
        *crate::boundary::lock(&lent.release) = release;
        Ok(())
    })
}

/// Checks the size before anything is read.
fn check_bytes(ty: &TensorType, bytes: usize) -> Result<(), CallError> {
    let sizes = ty.shape.iter();
    let expected = sizes
        .copied()
        .try_fold(ty.dtype.size_bytes(), usize::checked_mul);
    if expected == Some(bytes) {
        return Ok(());
    }
    let expected = expected.map_or("more than the address space".to_string(), |n| n.to_string());
    let reason = format!("`bytes` is {bytes}; {ty} has {expected}");
    Err(CallError::new(TercetStatus::Type, reason))
}

/// Memory of the caller.
struct LentMemory {
    data: *const u8,
    bytes: usize,
    release: std::sync::Mutex<TercetReleaseCallback>,
    user: *mut c_void,
}

// SAFETY: the memory is only read. By the rules of the header, `release` may be called on any thread.
unsafe impl Send for LentMemory {}
// SAFETY: as above.
unsafe impl Sync for LentMemory {}

impl AsRef<[u8]> for LentMemory {
    fn as_ref(&self) -> &[u8] {
        if self.bytes == 0 {
            return &[];
        }
        // SAFETY: `tercet_tensor_borrow` checked that the pointer is not NULL. By the rules of the header, the memory
        // is valid and unchanged until `release` is called, which happens when this value is dropped.
        unsafe { std::slice::from_raw_parts(self.data, self.bytes) }
    }
}

impl Drop for LentMemory {
    fn drop(&mut self) {
        let release = crate::boundary::lock(&self.release).take();
        if let Some(release) = release {
            // SAFETY: the caller passed the function for this argument, and it is called once.
            unsafe { release(self.user) }
        }
    }
}

/// Reads a tensor.
///
/// Errors: TERCET_STATUS_HANDLE, TERCET_STATUS_NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tercet_tensor_read(
    tensor: *const TercetTensor,
    view: *mut TercetTensorView,
    error: *mut *mut TercetError,
) -> TercetStatus {
    // SAFETY: the caller keeps the rules of the header.
    let caller = unsafe { Caller::new(error) };
    caller.guard(|caller| {
        let empty = TercetTensorView {
            dtype: TercetDtype::None as i32,
            rank: 0,
            shape: std::ptr::null(),
            data: std::ptr::null(),
            bytes: 0,
        };
        let view = caller.out(view, empty, "view")?;
        // The table keeps the tensor alive until it is freed.
        let tensor = &handles::get::<TensorObject>(tensor, "tensor")?.0;
        tensor.align()?;
        let bytes = tensor.bytes();
        view.set(TercetTensorView {
            dtype: constant_of(tensor.dtype()) as i32,
            rank: tensor.shape().len(),
            shape: tensor.shape().as_ptr(),
            data: bytes.as_ptr().cast(),
            bytes: bytes.len(),
        });
        Ok(())
    })
}
