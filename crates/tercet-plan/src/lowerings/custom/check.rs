//! Whether a user's kernel is what it is said to be: valid WGSL whose entry point, block and bindings keep to
//! the convention of [`WgslKernel`].
//!
//! Players bound every access by the length of an array. That is enough because every binding is an array of
//! 32-bit words of which there is at least one.

use naga::proc::Layouter;
use naga::valid::{Capabilities, ValidationFlags, Validator};
use naga::{
    AddressSpace, ArraySize, EntryPoint, Module, Scalar, ScalarKind, ShaderStage, StorageAccess,
    Type, TypeInner,
};
use tercet_ir::custom::{WgslKernel, WgslParam};

use crate::caps::Caps;

/// The most invocations of a workgroup along its last axis, in every WebGPU.
const MOST_DEEP: u32 = 64;

/// Checks a kernel of an operator with so many operands and results.
///
/// # Errors
/// What is wrong with it, with what naga says of it.
pub(super) fn kernel(
    kernel: &WgslKernel,
    operands: usize,
    results: usize,
    caps: &Caps,
) -> Result<(), String> {
    if let Some(port) = kernel.writes.iter().find(|port| **port >= results) {
        return Err(format!("it writes result {port} of {results}"));
    }
    let buffers = operands + kernel.writes.len();
    if buffers > caps.max_storage_buffers as usize {
        let most = caps.max_storage_buffers;
        return Err(format!("it binds {buffers} tensors; accepted: {most}"));
    }
    let module = parsed(&kernel.source)?;
    let entry = module
        .entry_points
        .iter()
        .find(|e| e.name == kernel.entry && e.stage == ShaderStage::Compute)
        .ok_or_else(|| format!("it has no compute entry point `{}`", kernel.entry))?;
    if !module.overrides.is_empty() {
        return Err("it has overrides; parameters are in its block".to_string());
    }
    workgroup(kernel, entry, &module, caps)?;
    bindings(kernel, operands, &module)
}

/// The module, valid without extensions.
fn parsed(text: &str) -> Result<Module, String> {
    let told = |message: String| message.trim_end().to_string();
    let module = naga::front::wgsl::parse_str(text)
        .map_err(|e| told(e.emit_to_string_with_path(text, "wgsl")))?;
    Validator::new(ValidationFlags::all(), Capabilities::empty())
        .validate(&module)
        .map_err(|e| told(e.emit_to_string_with_path(text, "wgsl")))?;
    Ok(module)
}

/// The size of a workgroup and its memory.
fn workgroup(
    kernel: &WgslKernel,
    entry: &EntryPoint,
    module: &Module,
    caps: &Caps,
) -> Result<(), String> {
    let (said, own) = (kernel.workgroup, entry.workgroup_size);
    if said != own {
        return Err(format!(
            "a workgroup is {own:?} in the module, not {said:?}"
        ));
    }
    let most = caps.max_workgroup;
    let count: u64 = own.iter().map(|n| u64::from(*n)).product();
    if count == 0 || count > u64::from(most) || own[2] > MOST_DEEP {
        return Err(format!(
            "a workgroup of {own:?}; accepted: 1 to {most} invocations, up to {MOST_DEEP} along the last axis"
        ));
    }
    let mut layouter = Layouter::default();
    layouter
        .update(module.to_ctx())
        .map_err(|e| format!("its types have no layout: {e}"))?;
    let shared = module.global_variables.iter();
    let shared = shared.filter(|(_, v)| v.space == AddressSpace::WorkGroup);
    let bytes: u64 = shared
        .map(|(_, v)| u64::from(layouter[v.ty].size).next_multiple_of(16))
        .sum();
    match bytes > u64::from(caps.workgroup_bytes) {
        true => Err(format!(
            "a workgroup shares {bytes} bytes; accepted: {}",
            caps.workgroup_bytes
        )),
        false => Ok(()),
    }
}

/// The block and the tensors: exactly those of the convention.
fn bindings(kernel: &WgslKernel, operands: usize, module: &Module) -> Result<(), String> {
    let mut is_bound = vec![false; 1 + operands + kernel.writes.len()];
    for (_, variable) in module.global_variables.iter() {
        let name = variable.name.as_deref().unwrap_or("a variable");
        let Some(binding) = &variable.binding else {
            match variable.space {
                AddressSpace::Private | AddressSpace::WorkGroup => continue,
                _ => {
                    return Err(format!(
                        "`{name}` is of an address space that no kernel has"
                    ));
                }
            }
        };
        let ty = &module.types[variable.ty];
        let at = binding.binding as usize;
        let of_group = || format!("`{name}` at binding {at} of group {}", binding.group);
        let slot = is_bound.get_mut(at).filter(|_| binding.group == 0);
        let Some(slot) = slot.filter(|taken| !**taken) else {
            return Err(format!("{} is one binding too many", of_group()));
        };
        *slot = true;
        match (variable.space, at) {
            (AddressSpace::Uniform, 0) if kernel.params.is_empty() => {
                return Err(format!(
                    "{} is a block, but there are no parameters",
                    of_group()
                ));
            }
            (AddressSpace::Uniform, 0) => block(&kernel.params, ty, module)?,
            (AddressSpace::Storage { access }, 1..) => {
                let is_operand = at <= operands;
                tensor(name, ty, access, is_operand, module)?;
            }
            _ => return Err(format!("{} is no block and no tensor", of_group())),
        }
    }
    if !is_bound[0] && !kernel.params.is_empty() {
        return Err("it has no block at binding 0 for its parameters".to_string());
    }
    match is_bound.iter().skip(1).position(|bound| !bound) {
        None => Ok(()),
        Some(i) if i < operands => Err(format!("it has no binding {} for operand {i}", i + 1)),
        Some(i) => {
            let port = kernel.writes[i - operands];
            Err(format!("it has no binding {} for result {port}", i + 1))
        }
    }
}

/// The struct at binding 0.
fn block(params: &[WgslParam], ty: &Type, module: &Module) -> Result<(), String> {
    let TypeInner::Struct { members, .. } = &ty.inner else {
        return Err("binding 0 is no struct".to_string());
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
    let names: Vec<&str> = params.iter().map(|p| spelled(kind(p))).collect();
    Err(format!(
        "the struct at binding 0 does not have the fields of the parameters: {}",
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

fn spelled(kind: ScalarKind) -> &'static str {
    match kind {
        ScalarKind::Uint => "u32",
        ScalarKind::Sint => "i32",
        ScalarKind::Float => "f32",
        ScalarKind::Bool | ScalarKind::AbstractInt | ScalarKind::AbstractFloat => "another",
    }
}

/// An array of words, read or written as it should be.
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
                "`{name}` is no array of u32, i32 or f32 of any length"
            ));
        }
    }
    let is_written = access.contains(StorageAccess::STORE);
    match (is_operand, is_written) {
        (true, true) => Err(format!("`{name}` is an operand and not only read")),
        (false, false) => Err(format!("`{name}` is a result and only read")),
        (true, false) | (false, true) => Ok(()),
    }
}
