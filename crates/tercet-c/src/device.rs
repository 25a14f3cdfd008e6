//! Devices: listing and opening.

use std::ffi::{CString, c_char};

use tercet::Device;

use crate::boundary::{Caller, OwnedViews, c_string};
use crate::error::{CallError, TercetError, TercetStatus};
use crate::handles::{self, HandleObject};

/// A device that compiles and runs graphs and models.
pub struct TercetDevice {
    _opaque: (),
}

/// The devices of this machine.
pub struct TercetDeviceList {
    _opaque: (),
}

/// A device in a list. The texts are valid until the list is freed.
#[repr(C)]
pub struct TercetDeviceInfo {
    /// Name for `tercet_device_open`.
    pub name: *const c_char,
    /// Description, or the reason why the device cannot be used.
    pub description: *const c_char,
    /// Whether the device can be used.
    pub usable: bool,
    /// Whether this is a GPU emulated on the CPU: correct, but slow.
    pub emulated: bool,
}

/// The object of a `TercetDevice`.
pub(crate) struct DeviceObject {
    pub(crate) device: Device,
    name: CString,
}

struct DeviceListObject {
    infos: OwnedViews<TercetDeviceInfo>,
    _texts: Vec<CString>,
}

impl HandleObject for DeviceObject {
    const TYPE: &'static str = "TercetDevice";
    type Opaque = TercetDevice;
}

impl HandleObject for DeviceListObject {
    const TYPE: &'static str = "TercetDeviceList";
    type Opaque = TercetDeviceList;
}

/// The device of a handle.
pub(crate) fn device_of(handle: *const TercetDevice) -> Result<Device, CallError> {
    Ok(handles::get::<DeviceObject>(handle, "device")?
        .device
        .clone())
}

/// Lists the devices of this machine, best first. Free the list with `tercet_free`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tercet_devices(
    list: *mut *mut TercetDeviceList,
    error: *mut *mut TercetError,
) -> TercetStatus {
    // SAFETY: the caller keeps the rules of the header.
    let caller = unsafe { Caller::new(error) };
    caller.guard(|caller| {
        let list = caller.out_handle(list, "list")?;
        let (mut texts, mut infos) = (Vec::new(), Vec::new());
        for device in tercet::devices() {
            let (name, description) = (c_string(&device.name), c_string(&device.description));
            infos.push(TercetDeviceInfo {
                name: name.as_ptr(),
                description: description.as_ptr(),
                usable: device.usable,
                emulated: device.emulated,
            });
            texts.extend([name, description]);
        }
        list.create(DeviceListObject {
            infos: OwnedViews(infos),
            _texts: texts,
        })
    })
}

/// Reads a list of devices: `*devices` points to `*count` elements, which are valid until the list is freed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tercet_device_list_read(
    list: *const TercetDeviceList,
    devices: *mut *const TercetDeviceInfo,
    count: *mut usize,
    error: *mut *mut TercetError,
) -> TercetStatus {
    // SAFETY: the caller keeps the rules of the header.
    let caller = unsafe { Caller::new(error) };
    caller.guard(|caller| {
        let devices = caller.out(devices, std::ptr::null(), "devices")?;
        let count = caller.out(count, 0, "count")?;
        let list = handles::get::<DeviceListObject>(list, "list")?;
        devices.set(list.infos.0.as_ptr());
        count.set(list.infos.0.len());
        Ok(())
    })
}

/// Opens a device by name: "auto" (also for NULL) for the best one, "cpu", or a name of `tercet_devices` such as
/// "vulkan" or "vulkan:1". No device falls back to another.
///
/// Errors: TERCET_STATUS_DEVICE with the known names, the missing feature or hardware.
///
/// Threads: a device can be used by several threads at once. Free it with `tercet_free`; sessions and models that use
/// it keep what they need.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tercet_device_open(
    name: *const c_char,
    device: *mut *mut TercetDevice,
    error: *mut *mut TercetError,
) -> TercetStatus {
    // SAFETY: the caller keeps the rules of the header.
    let caller = unsafe { Caller::new(error) };
    caller.guard(|caller| {
        let place = caller.out_handle(device, "device")?;
        let name = caller.optional_text(name, "name")?.unwrap_or("auto");
        let device = Device::by_name(name)?;
        place.create(DeviceObject {
            name: c_string(device.name()),
            device,
        })
    })
}

/// Name of the executor of a device, such as "cpu": a text that is valid until the device is freed. NULL if `device` is
/// not a live device.
#[unsafe(no_mangle)]
pub extern "C" fn tercet_device_name(device: *const TercetDevice) -> *const c_char {
    match handles::get::<DeviceObject>(device, "device") {
        // The table keeps the object alive until the device is freed.
        Ok(device) => device.name.as_ptr(),
        Err(_) => std::ptr::null(),
    }
}
