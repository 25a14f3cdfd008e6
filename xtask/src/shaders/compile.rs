//! Compiles GLSL to SPIR-V through `shaderc`.

use std::fs;
use std::path::Path;

use shaderc::{
    CompileOptions, Compiler, EnvVersion, OptimizationLevel, ResolvedInclude, ShaderKind,
    SpirvVersion, TargetEnv,
};

use super::folder::{CompiledKernel, ShaderFolder};
use crate::error::{self, XtaskError};

/// Compiles every kernel of the folder, in name order.
///
/// # Errors
///
/// [`XtaskError::Shaders`] with the compiler's messages for all kernels that do not compile.
pub(crate) fn all(folder: &ShaderFolder) -> Result<Vec<CompiledKernel>, XtaskError> {
    let compiler = Compiler::new()?;
    let plain = options(folder, SpirvVersion::V1_5)?;
    let newer = options(folder, SpirvVersion::V1_6)?;
    let mut modules = Vec::new();
    let mut failures = Vec::new();
    for name in folder.sources()? {
        let path = folder.source_path(&name);
        let text = fs::read_to_string(&path).map_err(error::file("read", &path))?;
        let shown = path.to_string_lossy();
        let is_newer = NEWER.iter().any(|part| name.contains(part));
        let options = if is_newer { &newer } else { &plain };
        match compiler.compile_into_spirv(&text, ShaderKind::Compute, &shown, "main", Some(options))
        {
            Ok(artifact) => modules.push(CompiledKernel {
                name,
                spirv: artifact.as_binary_u8().to_vec(),
            }),
            Err(source) => failures.push(source.to_string()),
        }
    }
    if failures.is_empty() {
        Ok(modules)
    } else {
        Err(XtaskError::Shaders { problems: failures })
    }
}

/// Name parts of modules that are SPIR-V 1.6, which workgroup-scope matrices and conversions
/// require. Devices that support these features also have `maintenance4`.
const NEWER: [&str; 2] = ["_block_", "_convert_"];

/// The compiler options. Other modules are SPIR-V 1.5: from 1.6 on, a workgroup size from
/// specialization constants requires the device feature `maintenance4`. The optimizer is off,
/// because `spirv-opt` breaks modules with cooperative matrices and bfloat16, and drivers optimize
/// anyway. The optimizer would also remove the names of parameter blocks, which a test reads.
fn options(
    folder: &ShaderFolder,
    version: SpirvVersion,
) -> Result<CompileOptions<'static>, XtaskError> {
    let mut options = CompileOptions::new()?;
    options.set_target_env(TargetEnv::Vulkan, EnvVersion::Vulkan1_3 as u32);
    options.set_target_spirv(version);
    options.set_optimization_level(OptimizationLevel::Zero);
    options.set_warnings_as_errors();
    let include = folder.include_dir();
    options.set_include_callback(move |name, _, _, _| resolve(&include, name));
    Ok(options)
}

fn resolve(include: &Path, name: &str) -> Result<ResolvedInclude, String> {
    let path = include.join(name);
    match fs::read_to_string(&path) {
        Ok(content) => Ok(ResolvedInclude {
            resolved_name: path.to_string_lossy().into_owned(),
            content,
        }),
        Err(cause) => Err(format!("cannot read {}: {cause}", path.display())),
    }
}
