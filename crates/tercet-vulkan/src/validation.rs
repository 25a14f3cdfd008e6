//! The Khronos validation layer and its messages.
//!
//! Core and synchronization validation are enabled together, through the interface that the
//! installed layer supports. The layer of Debian 12 detects hazards through naga's access chains
//! only after `spirv-opt` has combined them; see `spirv.rs`.

use std::ffi::{CStr, c_void};
use std::sync::{Mutex, PoisonError};

use ash::{ext, vk};

/// The layer's name.
pub(crate) const LAYER: &CStr = c"VK_LAYER_KHRONOS_validation";

/// Settings for newer layers (VK_EXT_layer_settings). By default, newer layers ignore shader
/// accesses to storage buffers.
const SETTINGS: [&CStr; 2] = [c"validate_sync", c"syncval_shader_accesses_heuristic"];
const ON: vk::Bool32 = vk::TRUE;

/// The layer settings for newer layers.
pub(crate) fn settings() -> [vk::LayerSettingEXT<'static>; 2] {
    SETTINGS.map(|name| {
        let mut setting = vk::LayerSettingEXT::default()
            .layer_name(LAYER)
            .setting_name(name)
            .ty(vk::LayerSettingTypeEXT::BOOL32);
        setting.value_count = 1;
        setting.p_values = std::ptr::from_ref(&ON).cast();
        setting
    })
}

/// The messages of the layer and the redzone reports, in order.
#[derive(Debug, Default)]
pub(crate) struct ValidationMessages(Mutex<Vec<String>>);

impl ValidationMessages {
    pub(crate) fn all(&self) -> Vec<String> {
        self.0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    pub(crate) fn push(&self, message: String) {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.push(message);
    }
}

/// The create info of a messenger that appends to `messages`, which must outlive the instance
/// created with it.
pub(crate) fn messenger_info(
    messages: &ValidationMessages,
) -> vk::DebugUtilsMessengerCreateInfoEXT<'_> {
    vk::DebugUtilsMessengerCreateInfoEXT::default()
        .message_severity(
            vk::DebugUtilsMessageSeverityFlagsEXT::WARNING
                | vk::DebugUtilsMessageSeverityFlagsEXT::ERROR,
        )
        .message_type(vk::DebugUtilsMessageTypeFlagsEXT::VALIDATION)
        .pfn_user_callback(Some(on_message))
        .user_data(std::ptr::from_ref(messages).cast::<c_void>().cast_mut())
}

/// The callback of the validation layer.
///
/// # Safety
/// The arguments are those of a messenger created with [`messenger_info`].
unsafe extern "system" fn on_message(
    _: vk::DebugUtilsMessageSeverityFlagsEXT,
    _: vk::DebugUtilsMessageTypeFlagsEXT,
    data: *const vk::DebugUtilsMessengerCallbackDataEXT<'_>,
    user: *mut c_void,
) -> vk::Bool32 {
    // SAFETY: `user` is the `ValidationMessages` of `messenger_info`, which outlives the messenger.
    let messages = unsafe { &*user.cast::<ValidationMessages>() };
    // SAFETY: the layer passes a valid structure whose strings are null or null-terminated.
    let text = unsafe {
        data.as_ref()
            .filter(|d| !d.p_message.is_null())
            .map(|d| CStr::from_ptr(d.p_message).to_string_lossy().into_owned())
    };
    messages.push(text.unwrap_or_else(|| "a message without text".to_string()));
    vk::FALSE
}

/// The registered debug messenger.
pub(crate) struct DebugMessenger {
    functions: ext::debug_utils::Instance,
    handle: vk::DebugUtilsMessengerEXT,
}

impl DebugMessenger {
    pub(crate) fn new(
        entry: &ash::Entry,
        instance: &ash::Instance,
        messages: &ValidationMessages,
    ) -> Result<DebugMessenger, vk::Result> {
        let functions = ext::debug_utils::Instance::new(entry, instance);
        // SAFETY: the extension is enabled, and the owner keeps `messages` alive longer than the
        // messenger.
        let handle =
            unsafe { functions.create_debug_utils_messenger(&messenger_info(messages), None) }?;
        Ok(DebugMessenger { functions, handle })
    }

    /// Destroys the messenger. Must be called before its instance is destroyed.
    pub(crate) fn destroy(&self) {
        // SAFETY: the handle is valid, and the owner of the instance calls this once.
        unsafe {
            self.functions
                .destroy_debug_utils_messenger(self.handle, None);
        }
    }
}
