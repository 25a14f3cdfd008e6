//! An open wgpu device: error scopes, device loss and waiting.

use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use tercet_ir::{CompileError, RunError};

use tercet_plan::RefusedVariants;

use crate::options::WgpuOptions;
use crate::pipeline::WgpuPipelineCache;
use crate::shader_cache::ShaderCache;
use crate::staging::UploadStaging;
use crate::vulkan_hal::SubgroupRequirement;

/// A failure of the device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum DeviceFault {
    /// Out of memory; existing objects stay valid.
    OutOfMemory,
    /// The device is lost.
    Lost(String),
    /// wgpu rejected a call because of a limit or a bug in Tercet.
    Refused(String),
}

impl DeviceFault {
    /// Converts to a compile error about the creation of `what` with `bytes` bytes.
    pub(crate) fn compiling(self, what: &'static str, bytes: u64) -> CompileError {
        match self {
            DeviceFault::OutOfMemory => CompileError::OutOfMemory { what, bytes },
            DeviceFault::Lost(reason) => CompileError::Device {
                reason: format!("lost: {reason}"),
            },
            DeviceFault::Refused(reason) => CompileError::Device { reason },
        }
    }

    /// Converts to a run error about the creation of `what` with `bytes` bytes.
    pub(crate) fn running(self, what: &'static str, bytes: u64) -> RunError {
        match self {
            DeviceFault::OutOfMemory => RunError::OutOfMemory { what, bytes },
            DeviceFault::Lost(reason) => RunError::DeviceLost { reason },
            DeviceFault::Refused(reason) => RunError::DeviceLost {
                reason: format!("wgpu refused {what}: {reason}"),
            },
        }
    }
}

/// Device state that wgpu reports through callbacks.
#[derive(Debug, Default)]
struct DeviceStatus {
    lost: Mutex<Option<String>>,
    /// An error that no error scope captured. Browsers resolve scopes after the call has returned,
    /// so the errors of non-blocking code arrive here.
    uncaptured: Mutex<Option<DeviceFault>>,
}

/// An open wgpu device with its queue.
#[derive(Debug)]
pub(crate) struct WgpuDevice {
    pub(crate) device: wgpu::Device,
    pub(crate) queue: wgpu::Queue,
    pub(crate) limits: wgpu::Limits,
    pub(crate) features: wgpu::Features,
    /// Whether executables measure step times.
    pub(crate) timings: bool,
    /// Whether shaders keep all runtime checks.
    pub(crate) checked: bool,
    /// Whether the adapter is software and computes on the CPU.
    pub(crate) is_software: bool,
    pub(crate) pipelines: WgpuPipelineCache,
    /// The kernel variants that the driver refuses, and their file in the cache folder.
    pub(crate) refused: RefusedVariants,
    pub(crate) refused_file: Option<PathBuf>,
    /// The shader modules and pipelines cached on disk, shared by processes.
    pub(crate) shader_cache: ShaderCache,
    /// Programs set the barriers between their dispatches, instead of wgpu
    /// ([`crate::vulkan_hal::grouped`]).
    pub(crate) groups: bool,
    /// The subgroup size that pipelines with subgroup operations require.
    pub(crate) required: Option<SubgroupRequirement>,
    pub(crate) staging: Mutex<UploadStaging>,
    health: Arc<DeviceStatus>,
}

/// A set of wgpu error scopes that captures the errors of calls made while it is open.
pub(crate) struct ErrorScopes {
    // Fields are dropped in declaration order; wgpu requires that scopes close in reverse order of
    // opening.
    internal: wgpu::ErrorScopeGuard,
    validation: wgpu::ErrorScopeGuard,
    memory: wgpu::ErrorScopeGuard,
}

impl ErrorScopes {
    /// Closes the scopes and returns the first error. Out-of-memory comes first, because other
    /// errors follow from it.
    pub(crate) fn close(self) -> impl Future<Output = Option<wgpu::Error>> {
        let internal = self.internal.pop();
        let validation = self.validation.pop();
        let memory = self.memory.pop();
        async move {
            let (internal, validation, memory) = (internal.await, validation.await, memory.await);
            memory.or(validation).or(internal)
        }
    }
}

impl Drop for WgpuDevice {
    fn drop(&mut self) {
        self.pipelines.save(&self.shader_cache);
    }
}

impl From<wgpu::Error> for DeviceFault {
    fn from(e: wgpu::Error) -> DeviceFault {
        match e {
            wgpu::Error::OutOfMemory { .. } => DeviceFault::OutOfMemory,
            wgpu::Error::Validation { description, .. }
            | wgpu::Error::Internal { description, .. } => {
                DeviceFault::Refused(one_line(&description))
            }
        }
    }
}

/// Joins wgpu's multi-line error report into one line.
fn one_line(text: &str) -> String {
    let lines = text.lines().map(str::trim).filter(|l| !l.is_empty());
    lines.collect::<Vec<_>>().join(" / ")
}

impl WgpuDevice {
    pub(crate) fn new(
        device: wgpu::Device,
        queue: wgpu::Queue,
        limits: wgpu::Limits,
        features: wgpu::Features,
        options: &WgpuOptions,
        is_software: bool,
    ) -> WgpuDevice {
        let health = Arc::new(DeviceStatus::default());
        let told = Arc::clone(&health);
        device.set_device_lost_callback(move |reason, message| {
            let text = match message.is_empty() {
                true => format!("{reason:?}").to_lowercase(),
                false => one_line(&message),
            };
            lock(&told.lost).get_or_insert(text);
        });
        let told = Arc::clone(&health);
        device.on_uncaptured_error(Arc::new(move |e: wgpu::Error| {
            lock(&told.uncaptured).get_or_insert(e.into());
        }));
        WgpuDevice {
            device,
            queue,
            limits,
            features,
            timings: options.timings,
            checked: options.checked,
            is_software,
            pipelines: WgpuPipelineCache::default(),
            refused: RefusedVariants::default(),
            refused_file: None,
            shader_cache: ShaderCache::default(),
            groups: false,
            required: None,
            staging: Mutex::default(),
            health,
        }
    }

    /// Returns an error if the device is lost or a call failed outside of all scopes.
    pub(crate) fn check_alive(&self) -> Result<(), DeviceFault> {
        if let Some(reason) = &*lock(&self.health.lost) {
            return Err(DeviceFault::Lost(reason.clone()));
        }
        match lock(&self.health.uncaptured).take() {
            Some(trouble) => Err(trouble),
            None => Ok(()),
        }
    }

    /// Opens error scopes on this thread.
    pub(crate) fn scope(&self) -> ErrorScopes {
        use wgpu::ErrorFilter::{Internal, OutOfMemory, Validation};
        let memory = self.device.push_error_scope(OutOfMemory);
        let validation = self.device.push_error_scope(Validation);
        let internal = self.device.push_error_scope(Internal);
        ErrorScopes {
            internal,
            validation,
            memory,
        }
    }

    /// Makes wgpu calls and returns their error. Browsers report errors asynchronously, to the
    /// enclosing scope or to a later call.
    pub(crate) fn scoped<T>(&self, calls: impl FnOnce() -> T) -> Result<T, DeviceFault> {
        self.check_alive()?;
        let made = self.in_scope(calls)?;
        // Scopes capture no error of a call on a lost device, so the loss is checked separately.
        self.check_alive().map(|()| made)
    }

    /// Makes wgpu calls whose failure is acceptable; `None` if they failed. Errors of other calls
    /// stay recorded.
    pub(crate) fn try_calls<T>(&self, calls: impl FnOnce() -> T) -> Option<T> {
        self.in_scope(calls).ok()
    }

    fn in_scope<T>(&self, calls: impl FnOnce() -> T) -> Result<T, DeviceFault> {
        if cfg!(target_arch = "wasm32") {
            return Ok(calls());
        }
        let scope = self.scope();
        let made = calls();
        match now(scope.close()).flatten() {
            Some(e) => Err(e.into()),
            None => Ok(made),
        }
    }

    /// Runs the callbacks of finished work; with `wait`, blocks until that submission is finished.
    /// Does nothing in a browser.
    pub(crate) fn poll(&self, wait: Option<&wgpu::SubmissionIndex>) -> Result<(), DeviceFault> {
        self.check_alive()?;
        let how = match wait {
            Some(index) => wgpu::PollType::Wait {
                submission_index: Some(index.clone()),
                timeout: None,
            },
            None => wgpu::PollType::Poll,
        };
        // wgpu panics if the device is lost during polling. Convert that to an error, because the
        // caller did nothing wrong.
        let polled = catch_unwind(AssertUnwindSafe(|| self.device.poll(how)));
        self.check_alive()?;
        match polled {
            Ok(Ok(_)) => Ok(()),
            Ok(Err(e)) => Err(DeviceFault::Refused(e.to_string())),
            Err(_) => Err(DeviceFault::Lost("while waiting for it".to_string())),
        }
    }

    /// Destroys the device; all later calls fail.
    pub(crate) fn destroy(&self) {
        self.device.destroy();
        lock(&self.health.lost).get_or_insert_with(|| "destroyed".to_string());
    }
}

/// The value of a future if it is ready. On native platforms, the result of an error scope is
/// always ready.
pub(crate) fn now<T>(future: impl Future<Output = T>) -> Option<T> {
    match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(value) => Some(value),
        Poll::Pending => None,
    }
}

/// Locks a mutex and ignores poisoning. Each critical section is one assignment, so the data is
/// always consistent.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Blocks this thread on a future.
#[cfg(not(target_arch = "wasm32"))]
pub fn block_on<T>(future: impl Future<Output = T>) -> T {
    struct UnparkOnWake(std::thread::Thread);
    impl std::task::Wake for UnparkOnWake {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
    }
    let waker = Arc::new(UnparkOnWake(std::thread::current())).into();
    let mut context = Context::from_waker(&waker);
    let mut future = pin!(future);
    loop {
        match future.as_mut().poll(&mut context) {
            Poll::Ready(value) => return value,
            Poll::Pending => std::thread::park(),
        }
    }
}
