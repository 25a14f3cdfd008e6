//! Validation of user-supplied kernels: they must be valid WGSL, and their entry point, parameter
//! block and bindings must follow the convention of [`WgslKernel`].
//!
//! Validation does not cover out-of-bounds accesses: GPU runtimes clamp every index to the array
//! length, and every binding is an array of at least one 32-bit word.

use naga::proc::Layouter;
use naga::valid::{Capabilities, ValidationFlags, Validator};
use naga::{
    AddressSpace, ArraySize, EntryPoint, Module, Scalar, ScalarKind, ShaderStage, StorageAccess,
    Type, TypeInner,
};
use tercet_ir::custom::{WgslKernel, WgslParam};

use crate::caps::DeviceCaps;

/// Maximum number of threads along the last (third) axis of a workgroup, which WebGPU guarantees.
const MAX_WORKGROUP_DEPTH: u32 = 64;

/// Validates a WGSL kernel of an operator with this number of operands and results.
///
/// # Errors
/// A description of the first problem, with the message of naga if the WGSL is invalid.
pub(super) fn kernel(
    kernel: &WgslKernel,
    operands: usize,
    results: usize,
    caps: &DeviceCaps,
) -> Result<(), String> {
    if let Some(port) = kernel.writes.iter().find(|port| **port >= results) {
        return Err(format!(
            "it writes result {port}, but the operator has {results} results"
        ));
    }
    let buffers = operands + kernel.writes.len();
    if buffers > caps.max_storage_buffers as usize {
        let most = caps.max_storage_buffers;
        return Err(format!(
            "it binds {buffers} tensors; expected at most {most}"
        ));
    }
    let module = parsed(&kernel.source)?;
    let entry = module
        .entry_points
        .iter()
        .find(|e| e.name == kernel.entry && e.stage == ShaderStage::Compute)
        .ok_or_else(|| format!("it has no compute entry point `{}`", kernel.entry))?;
    if !module.overrides.is_empty() {
        return Err(
            "it has overrides, which are not supported; pass parameters in its block".to_string(),
        );
    }
    workgroup(kernel, entry, &module, caps)?;
    bindings(kernel, operands, &module)
}

/// Parses and validates a WGSL module that must not use WGSL extensions.
fn parsed(text: &str) -> Result<Module, String> {
    let told = |message: String| message.trim_end().to_string();
    let module = naga::front::wgsl::parse_str(text)
        .map_err(|e| told(e.emit_to_string_with_path(text, "wgsl")))?;
    Validator::new(ValidationFlags::all(), Capabilities::empty())
        .validate(&module)
        .map_err(|e| told(e.emit_to_string_with_path(text, "wgsl")))?;
    Ok(module)
}

/// Checks the entry point's workgroup size and shared memory against the declared size and the
/// device limits.
fn workgroup(
    kernel: &WgslKernel,
    entry: &EntryPoint,
    module: &Module,
    caps: &DeviceCaps,
) -> Result<(), String> {
    let (said, own) = (kernel.workgroup, entry.workgroup_size);
    if said != own {
        return Err(format!(
            "workgroup size is {own:?} in the module, expected {said:?} as declared"
        ));
    }
    let most = caps.max_workgroup;
    let count: u64 = own.iter().map(|n| u64::from(*n)).product();
    if count == 0 || count > u64::from(most) || own[2] > MAX_WORKGROUP_DEPTH {
        return Err(format!(
            "workgroup size is {own:?}; expected 1 to {most} threads, at most {MAX_WORKGROUP_DEPTH} along the last axis"
        ));
    }
    let mut layouter = Layouter::default();
    layouter
        .update(module.to_ctx())
        .map_err(|e| format!("its types have no valid layout: {e}"))?;
    let shared = module.global_variables.iter();
    let shared = shared.filter(|(_, v)| v.space == AddressSpace::WorkGroup);
    let bytes: u64 = shared
        .map(|(_, v)| u64::from(layouter[v.ty].size).next_multiple_of(16))
        .sum();
    match bytes > u64::from(caps.workgroup_bytes) {
        true => Err(format!(
            "a workgroup uses {bytes} bytes of shared memory; expected at most {}",
            caps.workgroup_bytes
        )),
        false => Ok(()),
    }
}

/// Checks that the module binds exactly the parameter block and the tensors, as the convention
/// requires.
fn bindings(kernel: &WgslKernel, operands: usize, module: &Module) -> Result<(), String> {
    let mut is_bound = vec![false; 1 + operands + kernel.writes.len()];
    for (_, variable) in module.global_variables.iter() {
        let name = variable.name.as_deref().unwrap_or("a variable");
        let Some(binding) = &variable.binding else {
            match variable.space {
                AddressSpace::Private | AddressSpace::WorkGroup => continue,
                _ => {
                    return Err(format!("`{name}` has an unsupported address space"));
                }
            }
        };
        let ty = &module.types[variable.ty];
        let at = binding.binding as usize;
        let of_group = || format!("`{name}` at binding {at} of group {}", binding.group);
        let slot = is_bound.get_mut(at).filter(|_| binding.group == 0);
        let Some(slot) = slot.filter(|taken| !**taken) else {
            return Err(format!("{} is an extra binding", of_group()));
        };
        *slot = true;
        match (variable.space, at) {
            (AddressSpace::Uniform, 0) if kernel.params.is_empty() => {
                return Err(format!(
                    "{} is a parameter block, but no parameters are declared",
                    of_group()
                ));
            }
            (AddressSpace::Uniform, 0) => block(&kernel.params, ty, module)?,
            (AddressSpace::Storage { access }, 1..) => {
                let is_operand = at <= operands;
                tensor(name, ty, access, is_operand, module)?;
            }
            _ => {
                return Err(format!(
                    "{} is neither a parameter block nor a tensor",
                    of_group()
                ));
            }
        }
    }
    if !is_bound[0] && !kernel.params.is_empty() {
        return Err("parameter block at binding 0 is missing".to_string());
    }
    match is_bound.iter().skip(1).position(|bound| !bound) {
        None => Ok(()),
        Some(i) if i < operands => Err(format!("binding {} for operand {i} is missing", i + 1)),
        Some(i) => {
            let port = kernel.writes[i - operands];
            Err(format!("binding {} for result {port} is missing", i + 1))
        }
    }
}

/// Checks that the members of the struct at binding 0 have the types of the declared parameters.
fn block(params: &[WgslParam], ty: &Type, module: &Module) -> Result<(), String> {
    let TypeInner::Struct { members, .. } = &ty.inner else {
        return Err("binding 0 is not a struct".to_string());
    };
    let wanted: Vec<ScalarKind> = params.iter().map(kind).collect();
    let own: Option<Vec<ScalarKind>> = members
        .iter()
        .enumerate()
        .map(|(i, member)| match module.types[member.ty].inner {
            TypeInner::Scalar(Scalar { kind, width: 4 }) if member.offset as usize == 4 * i => {
                Some(kind)
            }
            _ => None,
        })
        .collect();
    if own.as_ref() == Some(&wanted) {
        return Ok(());
    }
    let names: Vec<&str> = params.iter().map(|p| wgsl_name(kind(p))).collect();
    Err(format!(
        "the struct at binding 0 does not match the declared parameters, expected {}",
        names.join(", ")
    ))
}

fn kind(param: &WgslParam) -> ScalarKind {
    match param {
        WgslParam::U32(_) => ScalarKind::Uint,
        WgslParam::I32(_) => ScalarKind::Sint,
        WgslParam::F32(_) => ScalarKind::Float,
    }
}

fn wgsl_name(kind: ScalarKind) -> &'static str {
    match kind {
        ScalarKind::Uint => "u32",
        ScalarKind::Sint => "i32",
        ScalarKind::Float => "f32",
        ScalarKind::Bool | ScalarKind::AbstractInt | ScalarKind::AbstractFloat => "another",
    }
}

/// Checks that the binding of a tensor is an array of 32-bit words with the expected access mode.
fn tensor(
    name: &str,
    ty: &Type,
    access: StorageAccess,
    is_operand: bool,
    module: &Module,
) -> Result<(), String> {
    let is_word = |ty: &Type| match ty.inner {
        TypeInner::Scalar(scalar) => scalar.width == 4,
        TypeInner::Atomic(scalar) => scalar.width == 4 && !is_operand,
        _ => false,
    };
    match ty.inner {
        TypeInner::Array {
            base,
            size: ArraySize::Dynamic,
            ..
        } if is_word(&module.types[base]) => {}
        _ => {
            return Err(format!(
                "`{name}` is not a runtime-sized array of u32, i32 or f32"
            ));
        }
    }
    let is_written = access.contains(StorageAccess::STORE);
    match (is_operand, is_written) {
        (true, true) => Err(format!("`{name}` is an operand, but it is not read-only")),
        (false, false) => Err(format!("`{name}` is a result, but it is read-only")),
        (true, false) | (false, true) => Ok(()),
    }
}
