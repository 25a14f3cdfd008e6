//! Tests that parameter blocks have the same layout in Rust and in shaders.

use naga::{AddressSpace, ScalarKind, StorageAccess, TypeInner};
use tercet_plan::{ArgAccess, FieldType, KernelCode, KernelDef, ParamField, kernels};

/// Name, offset and type of each field of a WGSL kernel's block, and the access modes of its
/// arguments.
fn reflect(def: &KernelDef, text: &str) -> (Vec<(String, u32, FieldType)>, Vec<ArgAccess>) {
    let module = naga::front::wgsl::parse_str(text)
        .unwrap_or_else(|e| panic!("{}: {}", def.name, e.emit_to_string(text)));
    let mut fields = Vec::new();
    let mut args = Vec::new();
    for (_, var) in module.global_variables.iter() {
        let Some(binding) = &var.binding else {
            continue;
        };
        assert_eq!(binding.group, 0, "{}", def.name);
        match var.space {
            AddressSpace::Uniform => {
                assert_eq!(binding.binding, 0, "{}", def.name);
                let TypeInner::Struct { members, .. } = &module.types[var.ty].inner else {
                    panic!("{}: the block is a struct", def.name)
                };
                for m in members {
                    let name = m.name.clone().unwrap_or_default();
                    fields.push((name, m.offset, field_type(def, &module, m.ty)));
                }
            }
            AddressSpace::Storage { access } => {
                // The counters of dependent launches are modified, but they are declared as read so
                // that they cause no barriers.
                let counts = var.name.as_deref() == Some("chain");
                let access = match access.contains(StorageAccess::STORE) && !counts {
                    true => ArgAccess::Write,
                    false => ArgAccess::Read,
                };
                args.push((binding.binding, access));
            }
            _ => panic!("{}: a binding in another address space", def.name),
        }
    }
    args.sort_by_key(|(at, _)| *at);
    let places: Vec<u32> = args.iter().map(|(at, _)| *at).collect();
    let wanted: Vec<u32> = (1..=args.len() as u32).collect();
    assert_eq!(places, wanted, "{}: bindings of the arguments", def.name);
    (fields, args.into_iter().map(|(_, a)| a).collect())
}

fn field_type(def: &KernelDef, module: &naga::Module, ty: naga::Handle<naga::Type>) -> FieldType {
    match &module.types[ty].inner {
        TypeInner::Scalar(s) => match s.kind {
            ScalarKind::Uint => FieldType::U32,
            ScalarKind::Sint => FieldType::I32,
            ScalarKind::Float => FieldType::F32,
            _ => panic!("{}: a field that is no number", def.name),
        },
        TypeInner::Array {
            size, stride: 16, ..
        } => match size {
            naga::ArraySize::Constant(n) if n.get() == 2 => FieldType::U32x8,
            _ => panic!("{}: an array that is not two vec4<u32>", def.name),
        },
        _ => panic!("{}: a field of another type", def.name),
    }
}

#[test]
fn blocks_and_arguments_agree_with_the_shaders() {
    let mut checked = 0;
    for def in kernels() {
        let KernelCode::Wgsl(pieces) = def.code else {
            continue;
        };
        // As in a kernel instance, WGSL constants replace the overrides.
        let text = pieces.join("\n").replace("override ", "const ");
        let (fields, args) = reflect(def, &text);
        let own = def.fields.iter();
        let own: Vec<_> = own
            .map(|f| (f.name.to_string(), f.offset_bytes, f.ty))
            .collect();
        checked += 1;
        assert_eq!(fields, own, "{}: block", def.name);
        assert_eq!(args, def.args, "{}: arguments", def.name);
    }
    assert!(checked > 3);
}

#[test]
fn constants_are_declared_in_the_shaders() {
    for def in kernels() {
        let KernelCode::Wgsl(pieces) = def.code else {
            continue;
        };
        let text = pieces.join("\n");
        for name in def.consts {
            let line = format!("override {name}: u32 = ");
            assert_eq!(text.matches(&line).count(), 1, "{}: `{line}`", def.name);
        }
    }
}

/// Checks computed offsets of block fields against offsets written in the test.
#[test]
fn eight_word_fields_keep_their_alignment() {
    tercet_plan::params! {
        /// A parameter block for this test.
        pub struct Example { shape: U32x8, n: U32, scale: F32 }
    }
    let fields: &[ParamField] = <Example as tercet_plan::ParamBlock>::FIELDS;
    let offsets: Vec<u32> = fields.iter().map(|f| f.offset_bytes).collect();
    assert_eq!(offsets, [0, 32, 36]);
}
