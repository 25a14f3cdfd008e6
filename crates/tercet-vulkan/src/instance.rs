//! The Vulkan loader, the instance, and the list of devices.

use std::ffi::CStr;
use std::fmt;

use ash::{ext, khr, vk};

use crate::error::VulkanOpenError;
use crate::validation::{DebugMessenger, LAYER, ValidationMessages, messenger_info, settings};

/// The type of a device, best first.
///
/// ```
/// use tercet_vulkan::VulkanDeviceKind;
/// assert!(VulkanDeviceKind::Discrete < VulkanDeviceKind::Cpu);
/// assert_eq!(VulkanDeviceKind::Integrated.to_string(), "integrated GPU");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum VulkanDeviceKind {
    /// A GPU with dedicated memory.
    Discrete,
    /// A GPU that shares memory with the CPU.
    Integrated,
    /// A GPU of a virtual machine.
    Virtual,
    /// A software implementation on the CPU.
    Cpu,
    /// Any other type.
    Other,
}

impl fmt::Display for VulkanDeviceKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            VulkanDeviceKind::Discrete => "discrete GPU",
            VulkanDeviceKind::Integrated => "integrated GPU",
            VulkanDeviceKind::Virtual => "virtual GPU",
            VulkanDeviceKind::Cpu => "CPU",
            VulkanDeviceKind::Other => "other",
        })
    }
}

/// A description of a Vulkan device.
///
/// ```
/// use tercet_vulkan::{VulkanDeviceInfo, VulkanDeviceKind};
/// let info = VulkanDeviceInfo {
///     index: 0,
///     name: "llvmpipe".to_string(),
///     kind: VulkanDeviceKind::Cpu,
///     driver: "Mesa 25".to_string(),
///     api: [1, 3, 0],
///     memory_bytes: 8 << 30,
/// };
/// assert!(info.to_string().starts_with("0: llvmpipe (CPU"));
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VulkanDeviceInfo {
    /// Its index in the device list; `device: Some("1")` selects the second device.
    pub index: usize,
    /// Its name.
    pub name: String,
    /// Its type.
    pub kind: VulkanDeviceKind,
    /// The driver name and version as the driver reports them.
    pub driver: String,
    /// The Vulkan version: major, minor, patch.
    pub api: [u32; 3],
    /// The size of its device-local memory in bytes.
    pub memory_bytes: u64,
}

impl fmt::Display for VulkanDeviceInfo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [major, minor, patch] = self.api;
        write!(
            f,
            "{}: {} ({}, {}, Vulkan {major}.{minor}.{patch})",
            self.index, self.name, self.kind, self.driver
        )
    }
}

/// The loaded Vulkan library with an instance.
pub(crate) struct VulkanInstance {
    pub(crate) raw: ash::Instance,
    messenger: Option<DebugMessenger>,
    /// Boxed, because the messenger stores its address.
    pub(crate) messages: Box<ValidationMessages>,
    /// The library, unloaded last.
    pub(crate) entry: ash::Entry,
}

impl Drop for VulkanInstance {
    fn drop(&mut self) {
        if let Some(messenger) = &self.messenger {
            messenger.destroy();
        }
        // SAFETY: devices hold an `Arc` of this, so they are already dropped.
        unsafe { self.raw.destroy_instance(None) };
    }
}

impl VulkanInstance {
    /// Loads the library and creates an instance, with the validation layer if `validation` is set.
    pub(crate) fn new(validation: bool) -> Result<VulkanInstance, VulkanOpenError> {
        // SAFETY: the system's Vulkan loader supports dynamic loading.
        let entry = unsafe { ash::Entry::load() }.map_err(|e| VulkanOpenError::NoLoader {
            reason: e.to_string(),
        })?;
        // SAFETY: the entry is loaded.
        let version = unsafe { entry.try_enumerate_instance_version() }
            .map_err(failed("vkEnumerateInstanceVersion"))?
            .unwrap_or(vk::API_VERSION_1_0);
        if version < vk::API_VERSION_1_2 {
            let [major, minor, _] = api(version);
            return Err(VulkanOpenError::TooOld {
                what: "the Vulkan loader".to_string(),
                found: format!("{major}.{minor}"),
            });
        }
        let app = vk::ApplicationInfo::default()
            .application_name(c"tercet")
            .engine_name(c"tercet")
            .api_version(version.min(vk::API_VERSION_1_3));
        let mut layers = Vec::new();
        let mut extensions = Vec::new();
        let mut has_settings = false;
        // Without it, the loader hides drivers that implement a part of Vulkan, such as MoltenVK.
        let enumerates = instance_has(&entry, None, khr::portability_enumeration::NAME)?;
        if enumerates {
            extensions.push(khr::portability_enumeration::NAME.as_ptr());
        }
        if validation {
            if !has_layer(&entry)? {
                return Err(VulkanOpenError::NoValidation);
            }
            layers.push(LAYER.as_ptr());
            extensions.push(ext::debug_utils::NAME.as_ptr());
            has_settings = instance_has(&entry, Some(LAYER), ext::layer_settings::NAME)?;
            let control = match has_settings {
                true => ext::layer_settings::NAME,
                false => ext::validation_features::NAME,
            };
            extensions.push(control.as_ptr());
        }
        let messages = Box::new(ValidationMessages::default());
        let enabled = [vk::ValidationFeatureEnableEXT::SYNCHRONIZATION_VALIDATION];
        let mut features =
            vk::ValidationFeaturesEXT::default().enabled_validation_features(&enabled);
        let settings = settings();
        let mut settings = vk::LayerSettingsCreateInfoEXT::default().settings(&settings);
        let mut early = messenger_info(&messages);
        let mut info = vk::InstanceCreateInfo::default()
            .application_info(&app)
            .enabled_layer_names(&layers)
            .enabled_extension_names(&extensions);
        if enumerates {
            info = info.flags(vk::InstanceCreateFlags::ENUMERATE_PORTABILITY_KHR);
        }
        if validation {
            info = info.push_next(&mut early);
            info = match has_settings {
                true => info.push_next(&mut settings),
                false => info.push_next(&mut features),
            };
        }
        // SAFETY: all pointers in `info` live until the call returns.
        let raw = unsafe { entry.create_instance(&info, None) }.map_err(|result| match result {
            vk::Result::ERROR_INCOMPATIBLE_DRIVER => VulkanOpenError::NoDriver {
                reason: "the loader found no driver".to_string(),
            },
            result => VulkanOpenError::Driver {
                call: "vkCreateInstance",
                result,
            },
        })?;
        let mut instance = VulkanInstance {
            raw,
            messenger: None,
            messages,
            entry,
        };
        if validation {
            let made = DebugMessenger::new(&instance.entry, &instance.raw, &instance.messages);
            instance.messenger = Some(made.map_err(failed("vkCreateDebugUtilsMessengerEXT"))?);
        }
        Ok(instance)
    }

    /// The devices in the loader's order.
    pub(crate) fn devices(
        &self,
    ) -> Result<Vec<(vk::PhysicalDevice, VulkanDeviceInfo)>, VulkanOpenError> {
        // SAFETY: the instance is valid.
        let all = match unsafe { self.raw.enumerate_physical_devices() } {
            Ok(all) => all,
            Err(vk::Result::ERROR_INITIALIZATION_FAILED) => {
                return Err(VulkanOpenError::NoDriver {
                    reason: "a driver is installed but does not start".to_string(),
                });
            }
            Err(result) => return Err(failed("vkEnumeratePhysicalDevices")(result)),
        };
        let infos = all.into_iter().enumerate();
        Ok(infos.map(|(i, d)| (d, self.info(i, d))).collect())
    }

    fn info(&self, index: usize, device: vk::PhysicalDevice) -> VulkanDeviceInfo {
        // SAFETY: the device belongs to this instance.
        let plain = unsafe { self.raw.get_physical_device_properties(device) };
        let mut driver = vk::PhysicalDeviceDriverProperties::default();
        if plain.api_version >= vk::API_VERSION_1_2 {
            let mut all = vk::PhysicalDeviceProperties2::default().push_next(&mut driver);
            // SAFETY: the device belongs to this instance, and its version has both structures.
            unsafe { self.raw.get_physical_device_properties2(device, &mut all) };
        }
        // SAFETY: the device belongs to this instance.
        let memory = unsafe { self.raw.get_physical_device_memory_properties(device) };
        let heaps = memory.memory_heaps_as_slice().iter();
        let own = heaps.filter(|h| h.flags.contains(vk::MemoryHeapFlags::DEVICE_LOCAL));
        let text = |s: Result<&CStr, _>| {
            s.map_or_else(
                |_: std::ffi::FromBytesUntilNulError| String::new(),
                |s| s.to_string_lossy().into_owned(),
            )
        };
        let driver_text = format!(
            "{} {}",
            text(driver.driver_name_as_c_str()),
            text(driver.driver_info_as_c_str())
        );
        VulkanDeviceInfo {
            index,
            name: text(plain.device_name_as_c_str()),
            kind: match plain.device_type {
                vk::PhysicalDeviceType::DISCRETE_GPU => VulkanDeviceKind::Discrete,
                vk::PhysicalDeviceType::INTEGRATED_GPU => VulkanDeviceKind::Integrated,
                vk::PhysicalDeviceType::VIRTUAL_GPU => VulkanDeviceKind::Virtual,
                vk::PhysicalDeviceType::CPU => VulkanDeviceKind::Cpu,
                _ => VulkanDeviceKind::Other,
            },
            driver: driver_text.trim().to_string(),
            api: api(plain.api_version),
            memory_bytes: own.map(|h| h.size).max().unwrap_or(0),
        }
    }

    /// The device with this index or part of a name, or the best device.
    pub(crate) fn choose(
        &self,
        wanted: Option<&str>,
    ) -> Result<(vk::PhysicalDevice, VulkanDeviceInfo), VulkanOpenError> {
        let devices = self.devices()?;
        if devices.is_empty() {
            return Err(VulkanOpenError::NoDevice);
        }
        let list: Vec<VulkanDeviceInfo> = devices.iter().map(|(_, d)| d.clone()).collect();
        let at = select_device(&list, wanted)?;
        Ok(devices[at].clone())
    }
}

/// The list position of the device with this index or part of a name, or of the best device.
pub fn select_device(
    list: &[VulkanDeviceInfo],
    wanted: Option<&str>,
) -> Result<usize, VulkanOpenError> {
    let new_enough = |d: &&VulkanDeviceInfo| d.api >= [1, 2, 0];
    let best = |of: &mut dyn Iterator<Item = &VulkanDeviceInfo>| {
        of.min_by_key(|d| (d.kind, d.index)).map(|d| d.index)
    };
    let found = match wanted {
        None => best(&mut list.iter().filter(new_enough)).or_else(|| best(&mut list.iter())),
        Some(wanted) => match wanted.parse::<usize>() {
            Ok(index) => list.get(index).map(|d| d.index),
            Err(_) => {
                let part = wanted.to_lowercase();
                best(
                    &mut list
                        .iter()
                        .filter(|d| d.name.to_lowercase().contains(&part)),
                )
            }
        },
    };
    let at = found.ok_or_else(|| VulkanOpenError::NotFound {
        wanted: wanted.unwrap_or_default().to_string(),
        found: list
            .iter()
            .map(VulkanDeviceInfo::to_string)
            .collect::<Vec<_>>()
            .join("; "),
    })?;
    let device = &list[at];
    if device.api < [1, 2, 0] {
        return Err(VulkanOpenError::TooOld {
            what: device.name.clone(),
            found: format!("{}.{}", device.api[0], device.api[1]),
        });
    }
    Ok(at)
}

fn has_layer(entry: &ash::Entry) -> Result<bool, VulkanOpenError> {
    // SAFETY: the entry is loaded.
    let layers = unsafe { entry.enumerate_instance_layer_properties() }
        .map_err(failed("vkEnumerateInstanceLayerProperties"))?;
    Ok(layers.iter().any(|l| l.layer_name_as_c_str() == Ok(LAYER)))
}

/// Whether the loader and its drivers provide an instance extension, or this layer if there is one.
fn instance_has(
    entry: &ash::Entry,
    layer: Option<&CStr>,
    name: &CStr,
) -> Result<bool, VulkanOpenError> {
    // SAFETY: the entry is loaded and has the layer.
    let all = unsafe { entry.enumerate_instance_extension_properties(layer) }
        .map_err(failed("vkEnumerateInstanceExtensionProperties"))?;
    Ok(all.iter().any(|e| e.extension_name_as_c_str() == Ok(name)))
}

/// The major, minor and patch numbers of a version.
fn api(version: u32) -> [u32; 3] {
    [
        vk::api_version_major(version),
        vk::api_version_minor(version),
        vk::api_version_patch(version),
    ]
}

/// Converts the result of a failed call to an error.
pub(crate) fn failed(call: &'static str) -> impl Fn(vk::Result) -> VulkanOpenError {
    move |result| VulkanOpenError::Driver { call, result }
}
