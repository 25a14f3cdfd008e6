//! Kernels on cooperative matrices in the language of Metal: naga compiles them to products of SIMD
//! groups.

use naga::back::msl;
use naga::proc::{BoundsCheckPolicies, BoundsCheckPolicy};
use naga::valid::ModuleInfo;
use naga::{Expression, Module, Statement, TypeInner};
use tercet_plan::DeviceCaps;

use crate::wgsl_matrices::{CAPABILITIES, kernels_with_matrices, validate};

/// The first version of the language with matrices of SIMD groups.
const VERSION: (u8, u8) = (2, 3);

/// The source for Metal, as wgpu requests it with and without runtime checks.
fn compiled(module: &Module, info: &ModuleInfo, is_checked: bool) -> Result<String, String> {
    let policy = match is_checked {
        true => BoundsCheckPolicy::Restrict,
        false => BoundsCheckPolicy::Unchecked,
    };
    let options = msl::Options {
        lang_version: VERSION,
        bounds_check_policies: BoundsCheckPolicies {
            index: policy,
            buffer: policy,
            image_load: policy,
            binding_array: BoundsCheckPolicy::Unchecked,
        },
        zero_initialize_workgroup_memory: false,
        force_loop_bounding: is_checked,
        emit_int_div_checks: is_checked,
        ..msl::Options::default()
    };
    let pipeline = msl::PipelineOptions::default();
    let (text, names) =
        msl::write_string(module, info, &options, &pipeline).map_err(|e| e.to_string())?;
    let entry = names.entry_point_names.into_iter().next();
    entry
        .ok_or("no entry point")?
        .map_err(|e| format!("{e:?}"))?;
    Ok(text)
}

/// Checks that MSL code has simdgroup matrix products: operands of the scalar type `operand`, sums in
/// F32.
fn check_products(text: &str, operand: &str) -> Result<(), String> {
    let matrix = |scalar: &str| format!("metal::simdgroup_{scalar}8x8");
    let (of_operand, of_sums) = (matrix(operand), matrix("float"));
    let wanted = [
        format!(
            "{of_sums} NagaCooperativeMultiplyAdd(const thread {of_operand}& a, \
             const thread {of_operand}& b, const thread {of_sums}& c)"
        ),
        "simdgroup_multiply_accumulate(d,a,b,c);".to_string(),
        format!("{of_operand} NagaCooperativeLoad(const threadgroup {operand}* ptr,"),
        "simdgroup_load(m, ptr, stride,".to_string(),
        "= NagaCooperativeMultiplyAdd(".to_string(),
        "simdgroup_store(".to_string(),
    ];
    let missing: Vec<&String> = wanted.iter().filter(|part| !text.contains(*part)).collect();
    // All matrices have a type that Metal has.
    let known = [of_operand.as_str(), of_sums.as_str()];
    let mut others: Vec<&str> = Vec::new();
    for part in text.split("metal::simdgroup_").skip(1) {
        let end = part.find(|c: char| !c.is_ascii_alphanumeric());
        let name = &part[..end.unwrap_or(part.len())];
        let is_known = |known: &&str| known.strip_prefix("metal::simdgroup_") == Some(name);
        if !known.iter().any(is_known) && !name.starts_with("barrier") {
            others.push(name);
        }
    }
    match missing.is_empty() && others.is_empty() {
        true => Ok(()),
        false => Err(format!("missing {missing:?}, other matrices {others:?}")),
    }
}

/// Checks that fragments are loaded from and stored to pointers to scalars: Metal has no others, and
/// naga translates pointers to vectors without an error.
fn check_pointers(module: &Module, info: &ModuleInfo) -> Result<(), String> {
    let function = &module.entry_points[0].function;
    let types = info.get_entry_point(0);
    let mut pointers = Vec::new();
    for (_, expression) in function.expressions.iter() {
        if let Expression::CooperativeLoad { data, .. } = expression {
            pointers.push(data.pointer);
        }
    }
    add_stores(&function.body, &mut pointers);
    if pointers.is_empty() {
        return Err("no fragment is loaded or stored".to_string());
    }
    for pointer in pointers {
        let inner = types[pointer].ty.inner_with(&module.types);
        let is_scalar = match inner {
            TypeInner::Pointer { base, .. } => {
                matches!(module.types[*base].inner, TypeInner::Scalar(_))
            }
            TypeInner::ValuePointer { size, .. } => size.is_none(),
            _ => false,
        };
        if !is_scalar {
            return Err(format!("a pointer is {inner:?}"));
        }
    }
    Ok(())
}

/// Adds the pointers of stored fragments.
fn add_stores(block: &naga::Block, pointers: &mut Vec<naga::Handle<Expression>>) {
    for statement in block {
        match statement {
            Statement::CooperativeStore { data, .. } => pointers.push(data.pointer),
            Statement::Block(inner) => add_stores(inner, pointers),
            Statement::If { accept, reject, .. } => {
                add_stores(accept, pointers);
                add_stores(reject, pointers);
            }
            Statement::Switch { cases, .. } => {
                for case in cases {
                    add_stores(&case.body, pointers);
                }
            }
            Statement::Loop {
                body, continuing, ..
            } => {
                add_stores(body, pointers);
                add_stores(continuing, pointers);
            }
            _ => {}
        }
    }
}

#[test]
fn kernels_with_matrices_are_products_of_simd_groups_on_metal() {
    assert!(msl::supported_capabilities().contains(CAPABILITIES));
    let mut wrong = Vec::new();
    let mut counts = [0; 2];
    for (name, texts) in kernels_with_matrices(&DeviceCaps::apple()) {
        let operand = match name.contains("_half_8") {
            true => "half",
            false => "float",
        };
        counts[usize::from(operand == "float")] += texts.len();
        for text in texts {
            let (module, info) = validate(&text);
            let mut check = check_pointers(&module, &info);
            for is_checked in [false, true] {
                let source = compiled(&module, &info, is_checked);
                check = check.and(source.and_then(|source| check_products(&source, operand)));
            }
            if let Err(e) = check {
                wrong.push(format!("{name}: {e}"));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(counts.iter().all(|n| *n > 4), "{counts:?}");
}

/// The checks find matrices that Metal does not have, and vectors in shared memory.
#[test]
fn kernels_with_large_fragments_are_no_kernels_of_metal() {
    let found = kernels_with_matrices(&DeviceCaps::h200_without_passthrough());
    let text = &found["gemm_coop_wgsl_half_16"][0];
    let (module, info) = validate(text);
    assert!(check_pointers(&module, &info).is_err());
    let source = compiled(&module, &info, false).expect("naga translates all shapes");
    let error = check_products(&source, "half").unwrap_err();
    assert!(error.contains("half16x16"), "{error}");
}
