/// The module that the build script compressed, by its file name in `shaders/vulkan/spirv`.
macro_rules! spirv_module {
    ($file:expr) => {
        tercet_program::SpirvModule::from_zlib(include_bytes!(concat!(env!("OUT_DIR"), "/", $file)))
    };
}

pub(crate) use spirv_module;
