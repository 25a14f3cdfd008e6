//! An open device: error scopes, loss, waiting.

use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use tercet_ir::{CompileError, RunError};

use crate::below::SubgroupRequirement;
use crate::kept::ShaderCache;
use crate::options::WgpuOptions;
use crate::pipeline::WgpuPipelineCache;
use crate::staging::UploadStaging;

/// What went wrong on a device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum DeviceFault {
    /// No memory; everything that exists goes on.
    OutOfMemory,
    /// The device is gone.
    Lost(String),
    /// wgpu refused a call: a limit, or a bug of ours.
    Refused(String),
}

impl DeviceFault {
    /// As an error of compiling; `what` of `bytes` was to be made.
    pub(crate) fn compiling(self, what: &'static str, bytes: u64) -> CompileError {
        match self {
            DeviceFault::OutOfMemory => CompileError::OutOfMemory { what, bytes },
            DeviceFault::Lost(reason) => CompileError::Device {
                reason: format!("lost: {reason}"),
            },
            DeviceFault::Refused(reason) => CompileError::Device { reason },
        }
    }

    /// As an error of running; `what` of `bytes` was to be made.
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

/// What wgpu tells outside of calls.
#[derive(Debug, Default)]
struct DeviceStatus {
    lost: Mutex<Option<String>>,
    /// An error outside of all scopes: in browsers, where results of scopes come too late for
    /// calls that do not wait.
    uncaptured: Mutex<Option<DeviceFault>>,
}

/// An open device.
#[derive(Debug)]
pub(crate) struct WgpuDevice {
    pub(crate) device: wgpu::Device,
    pub(crate) queue: wgpu::Queue,
    pub(crate) limits: wgpu::Limits,
    pub(crate) features: wgpu::Features,
    /// Whether executables measure their steps.
    pub(crate) timings: bool,
    /// Whether shaders check what they do.
    pub(crate) checked: bool,
    /// Whether the work needs the processor.
    pub(crate) is_software: bool,
    pub(crate) pipelines: WgpuPipelineCache,
    /// What other processes made, too.
    pub(crate) shader_cache: ShaderCache,
    /// Programs say where barriers are ([`crate::below::grouped`]).
    pub(crate) groups: bool,
    /// What pipelines that use subgroups require.
    pub(crate) required: Option<SubgroupRequirement>,
    pub(crate) staging: Mutex<UploadStaging>,
    health: Arc<DeviceStatus>,
}

/// Errors of the calls made while it is open are its own.
pub(crate) struct ErrorScopes {
    // Dropped in the order in which scopes may be closed.
    internal: wgpu::ErrorScopeGuard,
    validation: wgpu::ErrorScopeGuard,
    memory: wgpu::ErrorScopeGuard,
}

impl ErrorScopes {
    /// Closes it and gives its first error, the lack of memory before what follows from it.
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

/// wgpu's reports are trees of lines; ours are one.
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
            shader_cache: ShaderCache::default(),
            groups: false,
            required: None,
            staging: Mutex::default(),
            health,
        }
    }

    /// An error if the device is lost, or if something failed outside of all scopes.
    pub(crate) fn check_alive(&self) -> Result<(), DeviceFault> {
        if let Some(reason) = &*lock(&self.health.lost) {
            return Err(DeviceFault::Lost(reason.clone()));
        }
        match lock(&self.health.uncaptured).take() {
            Some(trouble) => Err(trouble),
            None => Ok(()),
        }
    }

    /// Opens a scope on this thread.
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

    /// Makes calls and gives their errors. In a browser, which tells errors later, they are those
    /// of an enclosing scope, or of a later call.
    pub(crate) fn scoped<T>(&self, calls: impl FnOnce() -> T) -> Result<T, DeviceFault> {
        self.check_alive()?;
        let made = self.in_scope(calls)?;
        // A lost device fails no scope.
        self.check_alive().map(|()| made)
    }

    /// Makes calls on which nothing depends: `None` if they failed. Errors of other calls stay where they are.
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

    /// Sees to it that callbacks of finished work are called, and with `wait` that this submission
    /// is finished. Does nothing in a browser.
    pub(crate) fn poll(&self, wait: Option<&wgpu::SubmissionIndex>) -> Result<(), DeviceFault> {
        self.check_alive()?;
        let how = match wait {
            Some(index) => wgpu::PollType::Wait {
                submission_index: Some(index.clone()),
                timeout: None,
            },
            None => wgpu::PollType::Poll,
        };
        // wgpu panics when the device is lost while it polls. That is no bug of the caller's.
        let polled = catch_unwind(AssertUnwindSafe(|| self.device.poll(how)));
        self.check_alive()?;
        match polled {
            Ok(Ok(_)) => Ok(()),
            Ok(Err(e)) => Err(DeviceFault::Refused(e.to_string())),
            Err(_) => Err(DeviceFault::Lost("while waiting for it".to_string())),
        }
    }

    /// Gives the device back to the system: every later call is an error.
    pub(crate) fn destroy(&self) {
        self.device.destroy();
        lock(&self.health.lost).get_or_insert_with(|| "destroyed".to_string());
    }
}

/// The value of a future that is ready; natively, results of scopes are.
pub(crate) fn now<T>(future: impl Future<Output = T>) -> Option<T> {
    match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(value) => Some(value),
        Poll::Pending => None,
    }
}

/// What a panicking thread left in a lock is still whole: every change is one assignment.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Runs a future to its end on this thread.
#[cfg(not(target_arch = "wasm32"))]
pub(crate) fn block_on<T>(future: impl Future<Output = T>) -> T {
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
