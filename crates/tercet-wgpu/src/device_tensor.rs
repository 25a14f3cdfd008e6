//! Tensors in separate buffers, which executables of one device copy from and into. wgpu keeps a
//! buffer alive until the device is done with it, and runs submissions in order.

use std::sync::Arc;

use tercet_ir::RunError;
use tercet_plan::{ReadbackRange, SharedBuffer};

use crate::buffers::{STORAGE, create_buffer};
use crate::device::{DeviceFault, WgpuDevice};
use crate::readback::WgpuReadback;

const WHAT: &str = "a tensor on the device";

/// A device buffer with one tensor.
///
/// ```
/// use tercet_ir::RunError;
/// use tercet_plan::SharedBuffer;
/// use tercet_wgpu::WgpuShared;
/// /// Copies the first 16 bytes to the host.
/// fn read(tensor: &WgpuShared) -> Result<Vec<u8>, RunError> {
///     assert_eq!(tensor.device(), "wgpu");
///     let mut bytes = Vec::new();
///     tensor.read(16, &mut |part| bytes.extend_from_slice(part))?;
///     Ok(bytes)
/// }
/// ```
#[derive(Debug)]
pub struct WgpuShared {
    gpu: Arc<WgpuDevice>,
    pub(crate) buffer: wgpu::Buffer,
}

fn during(trouble: DeviceFault) -> RunError {
    trouble.running(WHAT, 0)
}

impl WgpuShared {
    pub(crate) fn new(gpu: &Arc<WgpuDevice>, bytes: u64) -> Result<WgpuShared, RunError> {
        Ok(WgpuShared {
            gpu: Arc::clone(gpu),
            buffer: create_buffer(gpu, WHAT, bytes, STORAGE)?,
        })
    }

    /// Copies a range of a buffer into a new tensor.
    pub(crate) fn copy_of(
        gpu: &Arc<WgpuDevice>,
        from: &wgpu::Buffer,
        range: ReadbackRange,
    ) -> Result<WgpuShared, RunError> {
        let made = WgpuShared::new(gpu, range.bytes)?;
        if range.bytes > 0 {
            let at = range.offset_bytes;
            let copied = copy(gpu, (from, at), (&made.buffer, 0), range.bytes);
            copied.map_err(during)?;
        }
        Ok(made)
    }

    /// Copies the beginning of the tensor into a range of a buffer.
    pub(crate) fn copy_to(&self, to: &wgpu::Buffer, range: ReadbackRange) -> Result<(), RunError> {
        let (from, to) = ((&self.buffer, 0), (to, range.offset_bytes));
        copy(&self.gpu, from, to, range.bytes).map_err(during)
    }

    pub(crate) fn is_on(&self, gpu: &Arc<WgpuDevice>) -> bool {
        Arc::ptr_eq(&self.gpu, gpu)
    }
}

/// Copies bytes between buffers at the given offsets, as one submission.
fn copy(
    gpu: &WgpuDevice,
    from: (&wgpu::Buffer, u64),
    to: (&wgpu::Buffer, u64),
    bytes: u64,
) -> Result<(), DeviceFault> {
    gpu.scoped(|| {
        let mut encoder = gpu.device.create_command_encoder(&Default::default());
        encoder.copy_buffer_to_buffer(from.0, from.1, to.0, to.1, bytes);
        gpu.queue.submit([encoder.finish()]);
    })
}

impl SharedBuffer for WgpuShared {
    fn device(&self) -> &'static str {
        "wgpu"
    }

    fn read(&self, bytes: u64, take: &mut dyn FnMut(&[u8])) -> Result<(), RunError> {
        let gpu = &self.gpu;
        let mut readback = WgpuReadback::default();
        readback.prepare(gpu, std::iter::once(bytes))?;
        let flight = gpu.scoped(|| {
            let mut encoder = gpu.device.create_command_encoder(&Default::default());
            let (to, at) = readback.spot(0);
            encoder.copy_buffer_to_buffer(&self.buffer, 0, to, at, bytes);
            let submission = gpu.queue.submit([encoder.finish()]);
            readback.map(gpu, submission)
        });
        flight.and_then(|flight| flight.wait(gpu)).map_err(during)?;
        (readback.take(&mut |_, bytes| take(bytes))).map_err(during)
    }
}
